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
        self._watched: dict[Output, bool] = {}  # in order of age; whether its process may be asked for more
        self._lingering = 0
        self._resting: list[tuple[float, Output]] = []  # in order of time

    def add(self, output: Output, *, lasting: bool) -> None:
        """Take an open one; `lasting`: its process may be asked for more, so it stays open in any case."""
        if output.descriptor < 0:
            return
        if not lasting:
            while self._lingering >= _LINGERING:
                self._close(next(other for other, kept in self._watched.items() if not kept))
            self._lingering += 1
        self._watched[output] = lasting
        self._poller.add(output.descriptor, select.EPOLLIN | select.EPOLLONESHOT, lambda _: self._read(output))

    def remove(self, output: Output) -> None:
        """Leave it to its owner again; harmless where it is closed by now, because its last writer has gone."""
        if output in self._watched:
            self._lingering -= not self._watched.pop(output)
            self._poller.remove(output.descriptor)
            self._resting = [(until, other) for until, other in self._resting if other is not output]

    def timeout(self) -> float | None:
        """Seconds until `turn` has something to do."""
        return max(0.0, self._resting[0][0] - time.monotonic()) if self._resting else None

    def turn(self) -> None:
        """Go on with the pipes that have rested."""
        now = time.monotonic()
        while self._resting and self._resting[0][0] <= now:
            self._poller.again(self._resting.pop(0)[1].descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def _read(self, output: Output) -> None:
        try:
            data = os.read(output.descriptor, CHUNK)
        except BlockingIOError:
            data = b"-"
        if data:
            self._resting.append((time.monotonic() + _PAUSE_S, output))
        else:
            self._close(output)

    def _close(self, output: Output) -> None:
        self.remove(output)
        output.close()
