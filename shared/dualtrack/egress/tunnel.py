"""A tunnel that nobody looks into: bytes from one socket to the other and back, counted."""

from __future__ import annotations

import select
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dualtrack.egress.meter import Meter
from dualtrack.egress.stream import CHUNK, Clock

_READABLE: Final = select.POLLIN | select.POLLHUP | select.POLLERR


@dataclass
class Carried:
    """Bytes that went through, so far."""

    up: int = 0
    down: int = 0


class _Way:
    """One direction. Holds at most one chunk: while that is not sent, nothing more is read."""

    def __init__(self, source: socket.socket, target: socket.socket, pending: bytes = b"") -> None:
        self.source, self.target = source, target
        self.pending = memoryview(pending)
        self.ended = False
        """The source has said all."""
        self.closed = False
        """And the target knows."""

    def move(self, ready: Mapping[int, int]) -> int:
        """Take the next bytes if there are any and room for them; how many. They are not sent yet."""
        if self.pending or self.ended or not ready.get(self.source.fileno(), 0) & _READABLE:
            return 0
        try:
            data = self.source.recv(CHUNK)
        except BlockingIOError:
            return 0
        self.pending = memoryview(data)
        self.ended = not data
        return len(data)

    def write(self) -> None:
        """Send what is there, and the end after it."""
        if self.pending:
            try:
                self.pending = self.pending[self.target.send(self.pending) :]
            except BlockingIOError:
                return
        if self.ended and not self.pending and not self.closed:
            self.closed = True
            self.target.shutdown(socket.SHUT_WR)


def carry(inside: socket.socket, outside: socket.socket, first: bytes, meter: Meter, clock: Clock, carried: Carried) -> None:
    """Carry bytes until both sides have said all, or nothing moved for too long.

    Args:
        inside: the sandbox.
        outside: the host.
        first: bytes that the sandbox has sent already; counted here.
        meter: stops the tunnel where the session has used up its bytes.
        clock: how long it may last and be idle.
        carried: counts as it goes.

    Raises:
        Cut: by the meter.
        OSError: one of the sides broke off, or the time was over.
    """
    inside.settimeout(0)
    outside.settimeout(0)
    meter.up(len(first))
    carried.up += len(first)
    up, down = _Way(inside, outside, first), _Way(outside, inside)
    up.write()
    while not (up.closed and down.closed):
        ready = _ready((up, down), clock)
        if size := up.move(ready):
            meter.up(size)
            carried.up += size
        if size := down.move(ready):
            meter.down(size)
            carried.down += size
        up.write()
        down.write()


def _ready(ways: tuple[_Way, _Way], clock: Clock) -> Mapping[int, int]:
    """What poll says of the descriptors that one of the ways waits for. Raises `TimeoutError`."""
    interest: dict[int, int] = {}
    for way in ways:
        if way.pending:
            interest[way.target.fileno()] = interest.get(way.target.fileno(), 0) | select.POLLOUT
        elif not way.ended:
            interest[way.source.fileno()] = interest.get(way.source.fileno(), 0) | select.POLLIN
    poll = select.poll()
    for descriptor, events in interest.items():
        poll.register(descriptor, events)
    ready = dict(poll.poll(clock.wait_s() * 1000))
    if not ready:
        raise TimeoutError("nothing was sent for too long")
    return ready
