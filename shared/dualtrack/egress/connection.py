"""One connection of a sandbox to its proxy: requests are judged, carried and told of, tunnels opened."""

from __future__ import annotations

import re
import select
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import h11

from dualtrack.domain.egress import EgressReason, EgressRequest
from dualtrack.domain.hosts import HOST_CHARS, is_address
from dualtrack.domain.limits import KIB, EgressLimits
from dualtrack.domain.network import EgressPolicy
from dualtrack.egress.asked import HTTP_PORT, METHOD, TLS_PORT, check, destination, named
from dualtrack.egress.broker import Broker, Origin
from dualtrack.egress.certificates import Certificates
from dualtrack.egress.dialler import Dialler
from dualtrack.egress.exchange import BROKEN, Exchange, Progress, Upstream
from dualtrack.egress.http import Peer
from dualtrack.egress.meter import Meter
from dualtrack.egress.refusal import Cut, Refusal
from dualtrack.egress.stream import CHUNK, Clock, ServedTls, Stream, client_name
from dualtrack.egress.tunnel import Carried, carry

_REQUEST_LINE: Final = re.compile(rb"[A-Z][A-Z-]{0,31} ")
_TLS_HANDSHAKE: Final = b"\x16"
_GREETING_BYTES: Final = 32 * KIB
_H2_PREFACE: Final = b"PRI * HTTP/2"


@dataclass(frozen=True)
class Session:
    """What all connections of a sandbox share."""

    policy: EgressPolicy
    broker: Broker
    meter: Meter
    limits: EgressLimits
    dialler: Dialler
    certificates: Callable[[], Certificates]
    """What speaks TLS in the hosts' names."""
    tell: Callable[[EgressRequest], None]


class Connection:
    """Serves one connection to its end."""

    def __init__(self, session: Session, sock: socket.socket) -> None:
        self._session = session
        self._socket = sock
        self._clock = Clock(session.limits.lifetime_s, session.limits.idle_s)
        self._told = 0

    def serve(self) -> None:
        """Serve it; raises nothing for what its client does."""
        self._requests(self._socket, None, b"")

    def _requests(self, stream: Stream, fixed: Origin | None, first: bytes, dialled: socket.socket | None = None) -> None:
        """Serve requests one after the other, until either side has enough. A tunnel in which none came is told of as such.

        Args:
            stream: where they come from.
            fixed: the only place they may be for, where they come through a tunnel; None: each names its own.
            first: what was read before.
            dialled: a connection to that place which is open already.
        """
        limits = self._session.limits
        client = Peer(h11.SERVER, stream, self._clock, limits.head_bytes, first=first, count=self._session.meter.heard)
        waiting = [dialled] if dialled is not None else []
        upstream = Upstream(
            lambda origin: self._session.dialler.connected(origin, waiting.pop() if waiting else None),
            self._session.meter,
            self._clock,
            limits,
        )
        told = self._told
        try:
            while self._one(client, upstream, fixed):
                if client.h11.our_state is not h11.DONE or client.h11.their_state is not h11.DONE:
                    break
                client.h11.start_next_cycle()
        except BROKEN:  # whoever had asked for something was told of already
            pass
        finally:
            upstream.close()
            for sock in waiting:
                sock.close()
        if fixed is not None and self._told == told:
            self._tell(fixed, "CONNECT", None, Progress())

    def _one(self, client: Peer, upstream: Upstream, fixed: Origin | None) -> bool:
        """Serve one request; whether another may follow."""
        try:
            request = self._head(client)
        except h11.RemoteProtocolError as error:
            self._refuse(client, fixed, "", Refusal(error.error_status_hint, EgressReason.BAD_REQUEST, f"This is no HTTP/1.1: {error}."))
            return False
        if request is None:
            return False
        method = request.method.decode()
        place = fixed
        try:
            self._count()
            check(request, self._session.limits)
            if method == "CONNECT" and fixed is None:
                place = Origin("https", *named(request.target))
                self._permit(place)
                self._tunnel(client, place)
                return False
            place, target = destination(request, fixed)
            self._permit(place)
        except Refusal as refusal:
            self._refuse(client, place, method, refusal)
            return False
        return self._carried(client, upstream, request, place, target)

    def _head(self, client: Peer) -> h11.Request | None:
        """The next request's head; None where the client has closed."""
        event = client.next_request(self._session.limits.head_s)
        return event if isinstance(event, h11.Request) else None

    def _count(self) -> None:
        if not self._session.meter.begin():
            raise Refusal(429, EgressReason.REQUESTS_LIMIT, "The sandbox has made all the requests that it may.")

    def _permit(self, place: Origin) -> None:
        if not self._session.policy.permits(place.host, place.port):
            raise Refusal(
                403,
                EgressReason.NOT_ALLOWED,
                f"{place.host}:{place.port} is not on this agent's allow-list (agent.network.allow): it can't be reached from here.",
            )
        if self._session.meter.spent:
            raise Refusal(403, EgressReason.BYTES_LIMIT, "The sandbox has sent or received all the bytes that it may.")

    def _carried(self, client: Peer, upstream: Upstream, request: h11.Request, place: Origin, target: bytes) -> bool:
        progress = Progress()
        exchange = Exchange(client, upstream, self._session.broker, self._session.meter, progress)
        reason: EgressReason | None = None
        try:
            exchange.run(request, place, target)
        except Refusal as refusal:
            self._refuse(client, place, request.method.decode(), refusal, progress)
            return False
        except Cut as cut:
            reason = cut.reason
        except BROKEN:
            reason = EgressReason.BROKEN
        self._tell(place, request.method.decode(), reason, progress)
        if reason is None:
            return True
        if not exchange.answering:
            self._answer(client, 502, "The host gave no whole answer." if reason is EgressReason.BROKEN else "No more bytes are allowed.")
        return False

    # --- tunnels ----------------------------------------------------------------------------------------------------

    def _tunnel(self, client: Peer, place: Origin) -> None:
        """Answer a CONNECT and carry what comes. Raises `Refusal` before the answer, nothing after it."""
        outside = self._session.dialler.plain(place)
        try:
            client.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
            self._through(place, self._first_bytes(outside, client.h11.trailing_data[0]), outside)
        except Refusal as refusal:  # too late to say so in HTTP
            self._session.meter.refused()
            self._tell(place, "CONNECT", refusal.reason, Progress(), allowed=refusal.allowed)
        except BROKEN:
            self._tell(place, "CONNECT", EgressReason.BROKEN, Progress())
        finally:
            outside.close()

    def _through(self, place: Origin, first: bytes, outside: socket.socket) -> None:
        """Carry what a client sends through a tunnel, by what it is: TLS, HTTP, or something else on a port of its own."""
        if first[:1] == _TLS_HANDSHAKE:
            first = self._greeting(place, first)
            if self._session.broker.bound(place.host, place.port):
                self._intercept(place, first, outside)
                return
        elif _REQUEST_LINE.match(first) and place.port != TLS_PORT and not (first.startswith(_H2_PREFACE) and place.port != HTTP_PORT):
            self._requests(self._socket, Origin("http", place.host, place.port), first, outside)
            return
        elif place.port in {HTTP_PORT, TLS_PORT}:
            raise Refusal(400, EgressReason.NOT_TLS, "")
        self._blind(place, first, outside)

    def _first_bytes(self, outside: socket.socket, first: bytes) -> bytes:
        """What the client says first; nothing where it is the host that speaks first."""
        if first:
            return first
        poll = select.poll()
        for sock in (self._socket, outside):
            poll.register(sock, select.POLLIN)
        ready = dict(poll.poll(self._clock.wait_s() * 1000))
        if not ready:
            raise TimeoutError("idle")
        if self._socket.fileno() not in ready:
            return b""
        first = self._socket.recv(CHUNK)
        if not first:
            raise ConnectionResetError("the client went away")
        return first

    def _greeting(self, place: Origin, first: bytes) -> bytes:
        """All of a TLS client's greeting, which must name the host that was asked for. Raises `Refusal`."""
        clock = Clock(self._session.limits.head_s, self._session.limits.head_s)
        wanted = None if is_address(place.host) else place.host
        while True:
            try:
                complete, name = client_name(first)
            except ssl.SSLError as error:
                raise Refusal(400, EgressReason.NOT_TLS, "") from error
            if complete:
                break
            if len(first) > _GREETING_BYTES:
                raise Refusal(400, EgressReason.NOT_TLS, "")
            self._socket.settimeout(clock.wait_s())
            data = self._socket.recv(CHUNK)
            if not data:
                raise ConnectionResetError("the client went away")
            first += data
        if name != wanted:
            raise Refusal(400, EgressReason.HOST_MISMATCH, "")
        return first

    def _blind(self, place: Origin, first: bytes, outside: socket.socket) -> None:
        carried = Carried()
        reason: EgressReason | None = None
        try:
            carry(self._socket, outside, first, self._session.meter, self._clock, carried)
        except Cut as cut:
            reason = cut.reason
        except OSError:
            reason = EgressReason.BROKEN
        self._tell(place, "CONNECT", reason, Progress(bytes_up=carried.up, bytes_down=carried.down))

    def _intercept(self, place: Origin, first: bytes, outside: socket.socket) -> None:
        """Speak TLS with the client in the host's name, and serve its requests to that host."""
        served = ServedTls(self._socket, self._session.certificates().context(place.host), first)
        served.settimeout(self._session.limits.head_s)
        served.handshake()
        try:
            self._requests(served, place, b"", outside)
        finally:
            served.close()

    # --- answers ----------------------------------------------------------------------------------------------------

    def _refuse(self, client: Peer, place: Origin | None, method: str, refusal: Refusal, progress: Progress | None = None) -> None:
        if not refusal.allowed:
            self._session.meter.refused()
        self._tell(place, method, refusal.reason, progress or Progress(), allowed=refusal.allowed)
        self._answer(client, refusal.status, refusal.message)

    def _answer(self, client: Peer, status: int, message: str) -> None:
        """An answer of the proxy itself, after which the connection ends."""
        body = f"dualtrack egress proxy: {message}\n".encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), ("Connection", "close")]
        try:
            client.send(h11.Response(status_code=status, headers=headers, reason=_reason_phrase(message)))
            client.send(h11.Data(data=body))
            client.send(h11.EndOfMessage())
        except BROKEN:
            return

    def _tell(self, place: Origin | None, method: str, reason: EgressReason | None, progress: Progress, *, allowed: bool = True) -> None:
        self._told += 1
        host, port = (place.host, place.port) if place is not None else ("", 0)
        method = method if METHOD.fullmatch(method.encode()) else ""
        self._session.tell(
            EgressRequest(host, port, method, allowed, reason, progress.status, progress.bytes_up, progress.bytes_down, progress.secrets)
        )


def _reason_phrase(message: str) -> bytes:
    """A short form for the status line: some clients show nothing else."""
    return re.sub(rb"[^ -~]", b"?", message.encode())[:HOST_CHARS]
