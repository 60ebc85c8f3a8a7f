"""The agent's end of the two descriptors to its host, and other writing that must never block."""

from __future__ import annotations

import os
import select
from collections import deque

from . import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Handler = Callable[[int], None]

CHUNK = protocol.MAX_PAYLOAD
_HIGH = 256 * 1024
"""Bytes waiting for the host above which nothing more is read from commands."""


class Closed(Exception):
    """The host has gone: there is nobody to work for."""


class Poller:
    """An epoll descriptor whose events go to handlers."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}

    def add(self, descriptor: int, events: int, handler: Handler) -> None:
        """Watch a descriptor."""
        self._epoll.register(descriptor, events)
        self._handlers[descriptor] = handler

    def again(self, descriptor: int, events: int) -> None:
        """Watch it for other events, or once more."""
        self._epoll.modify(descriptor, events)

    def remove(self, descriptor: int) -> None:
        """No longer watch it; harmless where it is not watched."""
        if self._handlers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def turn(self, timeout_s: float | None) -> None:
        """Wait for events and handle them."""
        for descriptor, events in self._epoll.poll(timeout_s):
            handler = self._handlers.get(descriptor)
            if handler is not None:  # else an earlier one of these events ended it
                handler(events)

    def close(self) -> None:
        """In a forked child: let go of the descriptor."""
        self._epoll.close()


class Feeder:
    """Bytes on their way into a descriptor, as fast as it takes them. Owns the descriptor."""

    def __init__(self, poller: Poller, descriptor: int, taken: Callable[[int], None] | None = None) -> None:
        """`taken` is told how many bytes the descriptor took (or will never take)."""
        os.set_blocking(descriptor, False)
        self._poller = poller
        self._descriptor = descriptor
        self._taken = taken
        self._waiting: deque[memoryview] = deque()
        self._watched = False
        self._ends = False
        self.backlog = 0

    def add(self, data: bytes) -> None:
        """Send it; dropped where nobody can read it any more."""
        if self._descriptor < 0:
            self._report(len(data))
            return
        self._waiting.append(memoryview(data))
        self.backlog += len(data)
        if not self._watched:
            self._write(0)

    def end(self) -> None:
        """Close the descriptor once everything is written."""
        self._ends = True
        if not self._waiting:
            self.close()

    def close(self) -> None:
        """Drop what is not written and close the descriptor."""
        if self._descriptor >= 0:
            self._poller.remove(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            self._waiting.clear()
            self._report(self.backlog)
            self.backlog = 0

    def _report(self, count: int) -> None:
        if count and self._taken is not None:
            self._taken(count)

    def _write(self, _: int) -> None:
        done = 0
        try:
            while self._waiting:
                first = self._waiting[0]
                count = os.write(self._descriptor, first)
                done += count
                if count == len(first):
                    self._waiting.popleft()
                else:
                    self._waiting[0] = first[count:]
        except BlockingIOError:
            pass
        except OSError:  # its reader has gone
            self.close()
            self._report(done)
            return
        self.backlog -= done
        self._report(done)
        if self._waiting and not self._watched:
            self._poller.add(self._descriptor, select.EPOLLOUT, self._write)
            self._watched = True
        elif not self._waiting and self._watched:
            self._poller.remove(self._descriptor)
            self._watched = False
        if self._ends and not self._waiting:
            self.close()


class Wire:
    """Frames to and from the host."""

    def __init__(self, poller: Poller, source: int, target: int, handle: Callable[[int, int, bytes], None]) -> None:
        self._decoder = protocol.Decoder(protocol.FROM_HOST)
        self._source = source
        self._handle = handle
        self._feeder = Feeder(poller, target, self._took)
        self._relieved: list[Callable[[], None]] = []
        poller.add(source, select.EPOLLIN, self._read)

    @property
    def full(self) -> bool:
        """Whether the host is slow to read, so that whoever has much to send should wait (see `when_relieved`)."""
        return self._feeder.backlog > _HIGH

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """Call back once, when it is no longer full."""
        self._relieved.append(callback)

    def send(self, data: bytes) -> None:
        """Send encoded frames."""
        self._feeder.add(data)

    def _took(self, _: int) -> None:
        if self._relieved and not self.full:
            callbacks, self._relieved = self._relieved, []
            for callback in callbacks:
                callback()

    def _read(self, _: int) -> None:
        try:
            data = os.read(self._source, CHUNK)
        except BlockingIOError:
            return
        if not data:
            raise Closed
        for kind, channel, payload in self._decoder.feed(data):
            self._handle(kind, channel, payload)
