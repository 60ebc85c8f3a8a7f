"""One HTTP request carried to its host, and the answer back: secrets put in on the way there, taken out on the way back."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import h11

from dualtrack.domain.egress import EgressReason
from dualtrack.domain.limits import EgressLimits
from dualtrack.egress.broker import Broker, Filled, Origin
from dualtrack.egress.http import Fields, Peer, end_to_end, field
from dualtrack.egress.meter import Meter
from dualtrack.egress.redaction import Redactor
from dualtrack.egress.refusal import Refusal
from dualtrack.egress.stream import Clock, Stream

_SWITCHING: Final = 101
_ERRORS: Final = 400
_BODILESS: Final = frozenset({204, 304})
_UNSEARCHABLE: Final = frozenset({b"accept-encoding", b"range", b"if-range", b"a-im"})
"""Of a request to a host that gets secrets: its answers must come whole and uncompressed, so that they can be searched."""

Connect = Callable[[Origin], Stream]
"""A connection to a host, TLS included. Raises `Refusal`."""


@dataclass
class Progress:
    """What is known of a request so far, for its record."""

    status: int | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    secrets: tuple[str, ...] = ()


class Upstream:
    """The hosts' side of one client connection: a connection to the last host, kept for its next request."""

    def __init__(self, connect: Connect, meter: Meter, clock: Clock, limits: EgressLimits) -> None:
        self._connect = connect
        self._meter = meter
        self._clock = clock
        self._limits = limits
        self._origin: Origin | None = None
        self._peer: Peer | None = None

    def peer(self, origin: Origin) -> Peer:
        """A connection to a host, ready for a request. Raises `Refusal`."""
        if self._peer is not None and self._origin == origin and self._reusable(self._peer):
            return self._peer
        self.close()
        stream = self._connect(origin)
        self._origin, self._peer = origin, Peer(h11.CLIENT, stream, self._clock, self._limits.head_bytes, count=self._meter.down)
        return self._peer

    def close(self) -> None:
        """Give the connection up."""
        if self._peer is not None:
            self._peer.stream.close()
        self._origin = self._peer = None

    @staticmethod
    def _reusable(peer: Peer) -> bool:
        """Whether the last answer is over and the host has not closed since."""
        if peer.h11.our_state is not h11.DONE or peer.h11.their_state is not h11.DONE:
            return False
        try:
            peer.h11.start_next_cycle()
            return peer.glance() is h11.NEED_DATA
        except (OSError, h11.ProtocolError):
            return False


class Exchange:
    """Carries one request."""

    def __init__(self, client: Peer, upstream: Upstream, broker: Broker, meter: Meter, progress: Progress) -> None:
        self._client = client
        self._upstream = upstream
        self._broker = broker
        self._meter = meter
        self._progress = progress
        self._answering = False

    @property
    def answering(self) -> bool:
        """Whether the client has got the beginning of an answer: nothing else can be said to it any more."""
        return self._answering

    def run(self, request: h11.Request, origin: Origin, target: bytes) -> None:
        """Carry it.

        Args:
            request: as the client sent it; its Host was checked.
            origin: where it goes.
            target: path and query.

        Raises:
            Refusal: it was not sent, or its answer can't be handed on; nothing was answered yet.
            Cut: the session's bytes are used up.
            OSError, h11.ProtocolError: one of the two broke off or is no HTTP.
        """
        watched = self._broker.bound(origin.host, origin.port)
        filled = self._broker.fill(origin, target, _headers(request, origin, watched=watched))
        self._progress.secrets = filled.names
        redactor = self._broker.redactor(origin, filled.echoes) if watched else Redactor({})
        host = self._upstream.peer(origin)
        received = host.received
        try:
            early = self._send(host, request, target, filled)
            answer = early if early is not None else self._head(host)
            self._answer(host, request, answer, redactor, watched=watched)
        finally:
            self._progress.bytes_down += host.received - received
        if early is not None:
            self._upstream.close()

    def _send(self, host: Peer, request: h11.Request, target: bytes, filled: Filled) -> h11.Response | None:
        """Send the request with its body; the answer, where it came before all was sent."""
        self._up(host, h11.Request(method=request.method, target=target, headers=filled.headers))
        if self._client.h11.they_are_waiting_for_100_continue:
            self._client.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
        while True:
            event = self._client.event()
            if isinstance(event, h11.Data):
                self._up(host, h11.Data(data=event.data))
                early = host.glance()
                if isinstance(early, h11.Response):
                    return early
            elif isinstance(event, h11.EndOfMessage):
                self._up(host, h11.EndOfMessage())
                return None
            else:
                raise ConnectionResetError("the client went away")

    def _up(self, host: Peer, event: object) -> None:
        data = host.render(event)
        self._meter.up(len(data))
        self._progress.bytes_up += len(data)
        host.write(data)

    def _head(self, host: Peer) -> h11.Response:
        """The answer's head; announcements before it are dropped."""
        while True:
            event = host.event()
            if isinstance(event, h11.Response):
                return event
            if isinstance(event, h11.InformationalResponse) and event.status_code != _SWITCHING:
                continue
            raise ConnectionResetError("the host gave no answer")

    def _answer(self, host: Peer, request: h11.Request, answer: h11.Response, redactor: Redactor, *, watched: bool) -> None:
        self._progress.status = answer.status_code
        headers = end_to_end(answer.headers.raw_items())
        if watched:
            encodings = [value.strip().lower() for value in field(headers, b"content-encoding")]
            if any(encoding not in {b"", b"identity"} for encoding in encodings):
                raise Refusal(
                    502,
                    EgressReason.UNREADABLE_ANSWER,
                    "The host compressed its answer although it was asked not to: it gets a secret, so its answers must be readable.",
                    allowed=True,
                )
            empty = request.method == b"HEAD" or answer.status_code in _BODILESS
            headers = [(name, redactor.whole(value)) for name, value in headers if empty or name.lower() != b"content-length"]
        self._answering = True
        self._client.send(h11.Response(status_code=answer.status_code, headers=headers, reason=redactor.whole(answer.reason)))
        while True:
            event = host.event()
            if isinstance(event, h11.Data):
                data = redactor.feed(bytes(event.data))
                if data:
                    self._client.send(h11.Data(data=data))
            elif isinstance(event, h11.EndOfMessage):
                rest = redactor.flush()
                if rest:
                    self._client.send(h11.Data(data=rest))
                self._client.send(h11.EndOfMessage())
                return
            else:
                raise ConnectionResetError("the answer broke off")


def _headers(request: h11.Request, origin: Origin, *, watched: bool) -> Fields:
    """What goes on to the host: Host as it was checked, no word about connections, the body framed as it came."""
    chunked = bool(field(request.headers, b"transfer-encoding"))
    kept = [
        (name, value)
        for name, value in end_to_end(request.headers.raw_items())
        if name.lower() not in {b"host", b"expect"} and not (watched and name.lower() in _UNSEARCHABLE)
    ]
    headers = [(b"Host", origin.authority.encode()), *kept]
    if watched:
        headers.append((b"Accept-Encoding", b"identity"))
    if chunked:
        headers.append((b"Transfer-Encoding", b"chunked"))
    return headers


BROKEN: Final = (OSError, ssl.SSLError, h11.ProtocolError)
"""What ends a connection without anybody having decided so."""
