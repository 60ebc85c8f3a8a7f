"""All processes of the sandbox: counting them, and stopping them all at once."""

from __future__ import annotations

import os
import signal
import time

_SETTLE_S = 2.0
_CENSUS_BYTES = 128 * 1024
_RUNNING = frozenset("RSD")


class Processes:
    """Those that are not the agent itself."""

    def __init__(self, *, own: bool, census: int = -1) -> None:
        """Takes how they are found.

        Args:
            own: `kill(-1)` reaches all of them and no others; else only the agent's descendants are touched.
            census: socket to the supervisor, which says what there is where /proc can't be read; -1: none.
        """
        self._own = own
        self._census = census
        self.helpers: set[int] = set()
        """The agent's own children that are no commands."""

    def background(self) -> int:
        """How many processes there are beside the agent's helpers, as far as /proc shows them."""
        return sum(state != "Z" for pid, state in self._seen().items() if pid not in self.helpers)

    def freeze(self) -> None:
        """Stop them all; returns once they stand still, after 2 s at the latest."""
        deadline = time.monotonic() + _SETTLE_S
        while True:
            self._signal(signal.SIGSTOP)
            if not any(state in _RUNNING for state in self._seen().values()) or time.monotonic() > deadline:
                return
            time.sleep(0.001)

    def thaw(self) -> None:
        """Let them all go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        targets = [-1] if self._own else list(self._seen())  # -1: all at once, none can fork away
        for pid in targets:
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    def _seen(self) -> dict[int, str]:
        """Process number to state, without the agent and the init of its pid namespace."""
        own = os.getpid()
        if self._census >= 0:
            return self._asked()
        if self._own:
            try:
                pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
            except OSError:
                return {}
            pids = [pid for pid in pids if pid not in (1, own)]
        else:
            pids = _descendants(own)
        return {pid: state for pid, state in ((pid, _state(pid)) for pid in pids) if state}

    def _asked(self) -> dict[int, str]:
        try:
            os.write(self._census, b"?")
            words = os.read(self._census, _CENSUS_BYTES).split()
        except OSError:  # the supervisor has ended, and so will we
            return {}
        return {int(words[at]): words[at + 1].decode() for at in range(0, len(words) - 1, 2)}


def _state(pid: int) -> str:
    """The letter of /proc; empty for one that has ended."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read().rpartition(b") ")[2][:1].decode()
    except OSError:
        return ""


def _descendants(pid: int) -> list[int]:
    """All processes below one."""
    found = []
    waiting = [pid]
    while waiting:
        pid = waiting.pop()
        try:
            for thread in os.listdir("/proc/%d/task" % pid):
                with open("/proc/%d/task/%s/children" % (pid, thread), "rb") as file:
                    children = [int(child) for child in file.read().split()]
                found += children
                waiting += children
        except OSError:  # it has ended
            continue
    return found
