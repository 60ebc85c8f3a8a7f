"""Start of the agent: take the protocol's descriptors away from everybody else, preload, report ready, serve."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys

from . import agent, children, protocol, system
from .processes import Processes
from .tasks import Forked
from .wire import CHUNK, Closed

_PRELOADED = ("ast", "traceback", "tokenize", "threading", "random", "tempfile", "math", "re", "json", "datetime", "pathlib", "collections")
"""What cells use most, beside what a template names."""


def main() -> int:
    """Run the agent, or what one of its children is to do; returns the exit status."""
    source, target = _take_descriptors()
    system.set_dumpable(False)
    system.become_subreaper()
    for number in children.IGNORED:
        signal.signal(number, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    soft = children.DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, children.DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        start = _read_start(source)
        os.chdir(start.text("workspace"))
        _set_environment()
        processes = Processes(own=start.flag("own_processes"), census=_census())
        problems = _start_relay(start, processes)
        serving = agent.Agent(source, target, processes=processes, workspace=start.text("workspace"))
        problems += _preload(start.texts("preload"))
        gc.collect()
        gc.freeze()  # the collector of a child must not touch, and so copy, what it shares with the agent
        serving.ready(version=protocol.VERSION, python=agent.version(), problems=problems)
        serving.prepare()
        serving.run()
    except Forked as forked:
        job = forked.job
    except Closed:
        return 0
    except protocol.ProtocolError as error:
        os.write(2, ("dualtrack agent: %s\n" % error).encode())
        return 1
    return job()


def _census() -> int:
    """Socket to a supervisor, which gives its number as the only argument; -1 where there is none."""
    if not sys.argv[1:]:
        return -1
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - has no name
    return descriptor


def _take_descriptors() -> tuple[int, int]:
    """Move the protocol to descriptors that no child inherits; 0 and 1 become /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    taken = os.dup(0), os.dup(1)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return taken


def _read_start(source: int) -> protocol.Fields:
    """The first request.

    Raises:
        Closed: there is none.
        ProtocolError: it is something else.
    """
    decoder = protocol.Decoder(protocol.FROM_HOST)
    while True:
        data = os.read(source, CHUNK)
        if not data:
            raise Closed
        frames = decoder.feed(data)
        if frames:
            break
    if len(frames) != 1 or frames[0][0] != protocol.START:
        raise protocol.ProtocolError("the first request must be the start, alone until it is answered")
    return protocol.Fields(frames[0][2])


def _set_environment() -> None:
    """What serves programs that nobody watches, where nobody has said otherwise: no windows, no byte code beside the sources."""
    scratch = os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - the sandbox's own
    for name, value in (("MPLBACKEND", "Agg"), ("MPLCONFIGDIR", scratch + "/matplotlib"), ("PYTHONDONTWRITEBYTECODE", "1")):
        os.environ.setdefault(name, value)


def _start_relay(start: protocol.Fields, processes: Processes) -> list[str]:
    """Open the way out, where there is one; returns what went wrong."""
    if not start.has("relay_port"):
        return []
    from . import relay

    try:
        processes.helpers.add(relay.start(start.number("relay_port", 1, 65535)))
    except OSError as error:
        return ["the way out could not be opened: %s" % error]
    return []


def _preload(names: list[str]) -> list[str]:
    """Import modules, so that children have them at once; returns a line for each that can't be."""
    problems = []
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[1:1] = path
    for name in (*_PRELOADED, *names):
        try:
            __import__(name)
        except (Exception, SystemExit) as error:  # whatever a package does at its import
            problems.append("module %s can't be imported: %s: %s" % (name, type(error).__name__, str(error)[:200]))
    return problems
