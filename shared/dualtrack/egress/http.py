"""HTTP/1.1 over a stream, both ends of it: h11 parses and writes, so that nothing is passed on that was not understood."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import h11

from dualtrack.egress.stream import CHUNK, Clock, Stream

Event = Any
"""One of h11's."""

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authorization",
        b"proxy-authenticate",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
"""They are about one connection, not about the request (RFC 9110, 7.6.1)."""

Fields = list[tuple[bytes, bytes]]
Count = Callable[[int], None]


def _free(_: int) -> None:
    """Counts nothing."""


class Peer:
    """One HTTP connection: events in, events out.

    Attributes:
        received: bytes read so far.
    """

    def __init__(
        self,
        role: type[h11.CLIENT | h11.SERVER],
        stream: Stream,
        clock: Clock,
        head_bytes: int,
        *,
        first: bytes = b"",
        count: Count = _free,
    ) -> None:
        """Takes the role that we play, bytes that were read from the stream before, and who counts those that are read from now on."""
        self.h11 = h11.Connection(role, max_incomplete_event_size=head_bytes)
        self.stream = stream
        self._clock = clock
        self._count = count
        self.received = 0
        if first:
            self.h11.receive_data(first)

    def event(self) -> Event:
        """The next event.

        Raises:
            h11.RemoteProtocolError: what came is no HTTP, or breaks off.
            OSError: it broke off, or took too long.
        """
        while True:
            event = self.h11.next_event()
            if event is not h11.NEED_DATA:
                return event
            self.stream.settimeout(self._clock.wait_s())
            self._receive(self.stream.recv(CHUNK))

    def next_request(self, head_s: float) -> Event:
        """The next event where a request may begin: it may be long in coming, but once begun its head takes `head_s` seconds at most.

        Raises as `event`.
        """
        deadline: float | None = None
        while True:
            event = self.h11.next_event()
            if event is not h11.NEED_DATA:
                return event
            if deadline is None and self.h11.trailing_data[0]:
                deadline = time.monotonic() + head_s
            if deadline is not None and deadline <= time.monotonic():
                raise TimeoutError("the request's head took too long")
            self.stream.settimeout(self._clock.wait_s(None if deadline is None else deadline - time.monotonic()))
            self._receive(self.stream.recv(CHUNK))

    def glance(self) -> Event:
        """The next event if it is there already; `h11.NEED_DATA` if not."""
        event = self.h11.next_event()
        if event is not h11.NEED_DATA:
            return event
        self.stream.settimeout(0)
        try:
            self._receive(self.stream.recv(CHUNK))
        except (BlockingIOError, ssl.SSLWantReadError):
            return h11.NEED_DATA
        return self.h11.next_event()

    def _receive(self, data: bytes) -> None:
        self.received += len(data)
        self._count(len(data))
        self.h11.receive_data(data)

    def send(self, event: Event) -> None:
        """Write an event. Raises `OSError`, `h11.LocalProtocolError`."""
        self.write(self.render(event))

    def render(self, event: Event) -> bytes:
        """An event's bytes, for `write`."""
        return self.h11.send(event) or b""

    def write(self, data: bytes) -> None:
        """Write what `render` gave."""
        if data:
            self.stream.settimeout(self._clock.wait_s())
            self.stream.sendall(data)


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Fields:
    """Headers without those that are about the connection they came on; framing is left to whoever sends them on."""
    fields = [(bytes(name), bytes(value)) for name, value in headers]
    named = {part.strip().lower() for name, value in fields if name.lower() == b"connection" for part in value.split(b",")}
    return [(name, value) for name, value in fields if name.lower() not in HOP_BY_HOP and name.lower() not in named]


def field(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """All values of a header."""
    return [bytes(value) for found, value in headers if found.lower() == name]
