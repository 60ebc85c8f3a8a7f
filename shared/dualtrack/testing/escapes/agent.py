"""The sandbox's own machinery: its init and the agent that starts commands and reports how they ended."""

from __future__ import annotations

from typing import Any, Final

from dualtrack.sandbox.inside.protocol import EXIT
from dualtrack.sandbox.port import Ended
from dualtrack.testing.escapes.attempt import Attempt, Evidence, Kind, Proof, said_so


def _attempt(name: str, tries: str, source: str, proof: Proof = said_so, *, control: bool = True, **limits: Any) -> Attempt:
    return Attempt(name, Kind.AGENT, tries, source, proof, alone=True, control=control, limits=limits)


def _claimed_success(evidence: Evidence) -> str:
    """The run is told as ended by itself with success, though its machinery was killed."""
    outcome = evidence.outcome
    return "the outcome tells of success" if outcome.ended is Ended.EXITED and outcome.exit_code == 0 else ""


_FORGED: Final = 86


def _forged(evidence: Evidence) -> str:
    """The outcome is the one that the code inside made up."""
    return "the outcome is a forged one" if evidence.outcome.exit_code == _FORGED else ""


_ANCESTORS: Final = (
    "others = [p for p in {1, os.getppid()} if p > 0 and p != os.getpid()]\n"
    "if len(list(filter(str.isdigit, os.listdir('/proc')))) > 30: others = [HOST['witnesses'][NAME]]\n"
)
"""Its init and its parent; without a sandbox a process of the same user stands in for them."""

AGENT: Final = (
    _attempt(
        "agent-memory",
        "write to the memory of the program that started it",
        _ANCESTORS + "DETAIL = first_that_works([lambda p=p: os.open(f'/proc/{p}/mem', os.O_RDWR) for p in others])",
    ),
    _attempt(
        "agent-descriptors",
        "open what the program that started it has open",
        _ANCESTORS + "DETAIL = first_that_works([lambda p=p: os.listdir(f'/proc/{p}/fd') for p in others])",
    ),
    _attempt(
        "agent-debug",
        "debug the program that started it",
        _ANCESTORS + "DETAIL = first_that_works([lambda p=p: heard('ptrace', 0x4206, p, 0, 0) for p in others])",
    ),
    _attempt(
        "agent-steal",
        "take an open file out of the program that started it",
        _ANCESTORS + "first_that_works([lambda p=p: call('pidfd_getfd', call('pidfd_open', p, 0), 1, 0) for p in others])",
    ),
    _attempt(
        "agent-environment",
        "read the environment of the program that started it",
        _ANCESTORS + "def look(p):\n"
        "  data = open(f'/proc/{p}/environ', 'rb').read()\n"
        "  if not data: raise Refused('empty')\n"
        "  return f'{len(data)} bytes'\n"
        "DETAIL = first_that_works([lambda p=p: look(p) for p in others])",
    ),
    _attempt(
        "agent-next-command",
        "change the memory of a process that waits to become the next command",
        "pids = [int(name) for name in os.listdir('/proc') if name.isdigit()]\n"
        "others = [p for p in pids if p not in (1, os.getpid(), os.getppid())] if len(pids) < 30 else [HOST['witnesses'][NAME]]\n"
        "DETAIL = first_that_works([lambda p=p: os.open(f'/proc/{p}/mem', os.O_RDWR) for p in others])",
    ),
    _attempt(
        "agent-end",
        "end the program that started it and all in the sandbox, and have that look like success",
        "for p in {1, os.getppid()}:\n  try: os.kill(p, signal.SIGKILL)\n  except OSError: pass\nimport time\ntime.sleep(0.5)\nos._exit(3)",
        _claimed_success,
        control=False,
    ),
    _attempt(
        "agent-forge",
        "write a forged report of its end where the program that started it writes",
        "import json, struct\n"
        f"report = {{'status': {_FORGED} << 8, 'user_us': 0, 'system_us': 0, 'max_rss_kib': 0, 'background': 0, 'persistent': False,"
        " 'new': False}\n"
        "body = json.dumps(report).encode()\n"
        f"frames = b''.join(struct.pack('>BII', {EXIT}, channel, len(body)) + body for channel in range(64))\n"
        "for p in {1, os.getppid()}:\n"
        "  try: names = os.listdir(f'/proc/{p}/fd')\n"
        "  except OSError: continue\n"
        "  for name in names:\n"
        "    try: os.write(os.open(f'/proc/{p}/fd/{name}', os.O_WRONLY | os.O_NONBLOCK), frames)\n"
        "    except OSError: pass\n"
        "import time\ntime.sleep(0.5)\nos._exit(3)",
        _forged,
        control=False,
    ),
    _attempt(
        "agent-stop",
        "stop the program that started it, so that no end is reported",
        "for p in {1, os.getppid()}:\n  try: os.kill(p, signal.SIGSTOP)\n  except OSError: pass\nos._exit(3)",
        lambda evidence: f"the run took {evidence.outcome.wall_s:.0f} s" if evidence.outcome.wall_s > 40 else "",
        control=False,
        wall_time_s=4,
    ),
    _attempt(
        "agent-descriptor-inherited",
        "find a descriptor of the agent's among its own",
        "import stat\n"
        "found = [fd for fd in range(3, 64) if os.path.exists(f'/proc/self/fd/{fd}')"
        " and not os.readlink(f'/proc/self/fd/{fd}').endswith('/fd')]\n"
        "if not found: raise Refused('none')\nDETAIL = found",
    ),
)
