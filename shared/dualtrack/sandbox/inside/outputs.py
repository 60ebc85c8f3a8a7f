"""The pipes that commands write to: sent to the host while a command runs, drained slowly and dropped afterwards."""

from __future__ import annotations

import array
import fcntl
import os
import select
import termios
import time

from . import protocol
from .wire import CHUNK, Poller, Wire

_LINGERING = 128
"""Pipes of ended commands that are still drained; the oldest are closed, so that what writes to them gets SIGPIPE."""
_PAUSE_S = 0.02
"""Between two reads of a pipe nobody wants: a background flood then costs next to nothing."""


class Output:
    """The reading end of one pipe, and the channel its bytes go to."""

    def __init__(self, poller: Poller, wire: Wire, descriptor: int, kind: int) -> None:
        os.set_blocking(descriptor, False)
        self._poller = poller
        self._wire = wire
        self._kind = kind
        self._channel = 0
        self._watched = False
        self.descriptor = descriptor

    def open(self, channel: int) -> None:
        """From now on send what comes to `channel`."""
        self._channel = channel
        self._watch()

    def _watch(self) -> None:
        if self.descriptor >= 0 and self._channel and not self._watched:
            self._poller.add(self.descriptor, select.EPOLLIN, self._ready)
            self._watched = True

    def _unwatch(self) -> None:
        if self._watched:
            self._poller.remove(self.descriptor)
            self._watched = False

    def _ready(self, _: int) -> None:
        if self._wire.full:
            self._unwatch()
            self._wire.when_relieved(self._watch)
        else:
            self._send(CHUNK)

    def _send(self, count: int) -> int:
        try:
            data = os.read(self.descriptor, min(count, CHUNK))
        except BlockingIOError:
            return 0
        if data:
            self._wire.send(protocol.frame(self._kind, self._channel, data))
        else:
            self.close()
        return len(data)

    def finish(self) -> None:
        """Send what is in the pipe now, and nothing that comes later."""
        if self.descriptor >= 0:
            left = _readable(self.descriptor)
            while left > 0 and self.descriptor >= 0:
                count = self._send(left)
                if not count:
                    break
                left -= count
        self._unwatch()
        self._channel = 0

    def close(self) -> None:
        """Close the pipe."""
        self._unwatch()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _readable(descriptor: int) -> int:
    """Bytes that can be read at once."""
    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]


class Drain:
    """Reads pipes that background processes may go on writing to, and drops it."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._watched: dict[int, None] = {}  # in order of age
        self._resting: list[tuple[float, int]] = []  # in order of time

    def add(self, descriptor: int) -> None:
        """Take a non-blocking descriptor."""
        while len(self._watched) >= _LINGERING:
            self._close(next(iter(self._watched)))
        self._watched[descriptor] = None
        self._poller.add(descriptor, select.EPOLLIN | select.EPOLLONESHOT, lambda _: self._read(descriptor))

    def closed(self, descriptor: int) -> bool:
        """Stop draining one and leave it to its owner again; True where it is closed by now, because its last writer has gone."""
        if descriptor not in self._watched:
            return True
        self._forget(descriptor)
        return False

    def _forget(self, descriptor: int) -> None:
        del self._watched[descriptor]
        self._poller.remove(descriptor)
        self._resting = [(until, other) for until, other in self._resting if other != descriptor]

    def timeout(self) -> float | None:
        """Seconds until `turn` has something to do."""
        return max(0.0, self._resting[0][0] - time.monotonic()) if self._resting else None

    def turn(self) -> None:
        """Go on with the pipes that have rested."""
        now = time.monotonic()
        while self._resting and self._resting[0][0] <= now:
            descriptor = self._resting.pop(0)[1]
            self._poller.again(descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            data = b"-"
        if data:
            self._resting.append((time.monotonic() + _PAUSE_S, descriptor))
        else:
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        self._forget(descriptor)
        os.close(descriptor)
