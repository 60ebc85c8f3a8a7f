"""What stays on the host after a sandbox has ended. `MARKER` is a number that nothing else on the machine has in its command line."""

from __future__ import annotations

from typing import Final

from dualtrack.testing.escapes.attempt import Attempt, Evidence, Kind, Proof
from dualtrack.testing.escapes.remains import abstract_socket_exists, processes_with, segment_exists

_PATIENCE_S: Final = 20.0


def _leaves(name: str, tries: str, source: str, proof: Proof) -> Attempt:
    return Attempt(name, Kind.LEFTOVERS, tries, source, proof, alone=True)


def _process(evidence: Evidence) -> str:
    """A process of it lives on the host."""
    found = processes_with(evidence.host.marker(evidence.attempt), within_s=8)
    return f"process {found[0]} lives on" if found else ""


def _held(evidence: Evidence) -> str:
    """The run did not come back."""
    return f"the run took {evidence.outcome.wall_s:.0f} s" if evidence.outcome.wall_s > _PATIENCE_S else _process(evidence)


def _segment(evidence: Evidence) -> str:
    return "a shared memory segment is left" if segment_exists(int(evidence.host.marker(evidence.attempt))) else ""


def _temporary(evidence: Evidence) -> str:
    found = evidence.host.temporary_files(evidence.attempt)
    return f"{found[0]} is left" if found else ""


def _socket(evidence: Evidence) -> str:
    return "an abstract socket is left" if abstract_socket_exists(evidence.host.marker(evidence.attempt)) else ""


_MARKER: Final = "HOST['markers'][NAME]"
"""Attempts with this in their source are given a marker."""
_LINGER: Final = f"linger({_MARKER})"
_DAEMON: Final = "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n"
_WAIT: Final = "import time\ntime.sleep(0.4)\n"

LEFTOVERS: Final = (
    _leaves("orphan", "leave a process in the background", f"if os.fork() == 0: {_LINGER}\n{_WAIT}", _process),
    _leaves(
        "daemon",
        "leave a daemon that has left its parents, its group and its session",
        f"{_DAEMON}    {_LINGER}\n  os._exit(0)\n{_WAIT}",
        _process,
    ),
    _leaves(
        "deaf-daemon",
        "leave a daemon that ignores all signals",
        f"{_DAEMON}    for n in range(1, 32):\n      try: signal.signal(n, signal.SIG_IGN)\n      except (OSError, ValueError): pass\n"
        f"    {_LINGER}\n  os._exit(0)\n{_WAIT}",
        _process,
    ),
    _leaves(
        "stopped-daemon",
        "leave a daemon that is stopped and hears nothing",
        f"{_DAEMON}    os.closerange(0, 64)\n    if os.fork() == 0: {_LINGER}\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
        f"  os._exit(0)\n{_WAIT}",
        _process,
    ),
    _leaves(
        "hopping-daemon",
        "leave a daemon that forks on and on, so that whoever counts and kills it comes too late",
        f"{_DAEMON}    os.closerange(0, 64)\n    import time\n    end = time.monotonic() + 1\n"
        f"    while time.monotonic() < end:\n      if os.fork(): os._exit(0)\n      time.sleep(0.002)\n"
        f"    {_LINGER}\n  os._exit(0)\nimport time\ntime.sleep(1.8)\n",
        _process,
    ),
    _leaves(
        "output-holder",
        "keep its output open by a daemon, so that whoever reads to its end waits for ever",
        f"if os.fork() == 0:\n  os.setsid()\n  linger({_MARKER}, hold=True)\n{_WAIT}",
        _held,
    ),
    _leaves(
        "zombies",
        "leave ended processes that nobody has waited for, and one that lives",
        f"for n in range(20):\n  if os.fork() == 0: os._exit(0)\nif os.fork() == 0: {_LINGER}\n{_WAIT}",
        _process,
    ),
    _leaves(
        "killed-parent",
        "end its own leader by a signal while others go on",
        f"{_DAEMON}    {_LINGER}\n  os._exit(0)\n{_WAIT}os.kill(os.getpid(), signal.SIGKILL)",
        _process,
    ),
    _leaves(
        "segment",
        "leave a System V memory segment, which outlives its process",
        "call('shmget', int(HOST['markers'][NAME]), 4096, 0o1666)",
        _segment,
    ),
    _leaves(
        "temporary-files",
        "leave files in the host's /tmp and /dev/shm",
        "for place in ('/tmp', '/dev/shm', '/var/tmp'):\n"
        "  try: open(f\"{place}/dualtrack-{HOST['markers'][NAME]}\", 'w').close()\n"
        "  except OSError: pass",
        _temporary,
    ),
    _leaves(
        "left-socket",
        "leave a daemon that holds an abstract socket of the host",
        f"s = socket.socket(socket.AF_UNIX)\ns.bind('\\0dualtrack-' + HOST['markers'][NAME])\ns.listen()\nos.dup2(s.fileno(), 100)\n"
        f"if os.fork() == 0:\n  os.setsid()\n  {_LINGER}\n{_WAIT}",
        _socket,
    ),
)


def wants_marker(attempt: Attempt) -> bool:
    """Whether it is given a number to mark what it leaves."""
    return _MARKER in attempt.source
