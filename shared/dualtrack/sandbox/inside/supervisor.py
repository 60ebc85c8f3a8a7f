"""The parent of an agent that no namespace holds: restricts it before it runs, and ends all that came from it, wherever that went.

Stays outside of the restrictions, and reads nothing from inside but one byte, which asks for the list of the processes.
It is the subreaper of them: an orphan becomes its child, so when it has no child left, none of them is left.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys

from . import children, landlock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONFIGURATION = 3
"""Descriptor of the JSON object that says all."""
_CHUNK = 64 * 1024
_MAX_CENSUS = 2000
"""Processes that an answer names at most: one message of a socket."""
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Run until the agent has ended, or SIGTERM, and nothing of it is left."""
    libc = ctypes.CDLL(None)
    parent = os.getppid()
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    wanted = _configuration()
    if wanted is None or os.getppid() != parent:  # whoever wanted it is dead
        return 1
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ended, wake = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(wake, False)
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stops.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent = os.fork()
    if agent == 0:
        ours.close()
        return _become_agent(libc, wanted, theirs.detach())
    theirs.close()
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # its pipes are the agent's
        os.dup2(null, number)
    try:
        _supervise(agent, ours, ended, stops)
    finally:
        _end_all()
    return 0


def _configuration() -> dict[str, Any] | None:
    data = b""
    while part := os.read(CONFIGURATION, _CHUNK):
        data += part
    os.close(CONFIGURATION)
    return json.loads(data) if data else None


def _become_agent(libc: ctypes.CDLL, wanted: dict[str, Any], census: int) -> int:
    """In the child: restricted, become the agent. Returns only when that failed, which stderr tells."""
    try:
        parent = os.getppid()
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            return 1
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        for name, most in wanted["limits"].items():
            children.set_limit(getattr(resource, name), most, most)
        os.chdir(wanted["directory"])
        landlock.no_new_privileges()
        landlock.restrict(wanted["abi"], [(path, rights) for path, rights in wanted["rights"]])
        landlock.filter_calls(base64.b64decode(wanted["filter"]))
        os.set_inheritable(census, True)  # noqa: FBT003 - has no name
        os.execve(wanted["argv"][0], [*wanted["argv"], str(census)], wanted["environment"])  # noqa: S606 - what it is for
    except (OSError, KeyError, ValueError, AttributeError) as error:
        os.write(2, ("dualtrack landlock: %s\n" % error).encode())
    return 1


def _supervise(agent: int, census: socket.socket, ended: int, stops: list[int]) -> None:
    """Answer the agent until it has ended or we are told to stop."""
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    waiting.register(census, select.POLLIN)
    while not stops:
        for descriptor, events in waiting.poll():
            if descriptor == ended:
                _drain(ended)
                if not _reap(agent):
                    return
            elif events & select.POLLIN and census.recv(1):
                answer = [(pid, state) for pid, state in _descendants().items() if pid != agent][:_MAX_CENSUS]
                try:
                    census.send(" ".join("%d %s" % entry for entry in answer).encode() or b" ", socket.MSG_DONTWAIT)
                except OSError:  # the agent has ended, or does not read
                    pass
            else:
                waiting.unregister(census)


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 512):
            pass
    except BlockingIOError:
        pass


def _reap(agent: int) -> bool:
    """Take note of what has ended; whether the agent has not."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == agent:
            return False
        if pid == 0:
            return True


def _end_all() -> None:
    """Kill until no child is left: first nobody may fork, then nobody may live. Orphans become children meanwhile."""
    while True:
        found = _descendants()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                try:
                    os.kill(pid, number)
                except (ProcessLookupError, PermissionError):
                    pass
        try:
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def _descendants() -> dict[int, str]:
    """Process number to state of everything below this process."""
    below: dict[int, list[tuple[int, str]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    state, parent = file.read().decode(errors="replace").rpartition(") ")[2].split(None, 2)[:2]
            except OSError:  # it has ended
                continue
            below.setdefault(int(parent), []).append((int(name), state))
    found: dict[int, str] = {}
    waiting = [os.getpid()]
    while waiting:
        for pid, state in below.get(waiting.pop(), ()):
            found[pid] = state
            waiting.append(pid)
    return found


if __name__ == "__main__":
    sys.exit(main())
