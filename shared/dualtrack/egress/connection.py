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
from dualtrack.domain.errors import AddressRefused, HostUnreachable
from dualtrack.domain.hosts import HOST_CHARS, is_address, split
from dualtrack.domain.limits import KIB, EgressLimits
from dualtrack.domain.network import EgressPolicy
from dualtrack.egress.broker import Broker, Origin
from dualtrack.egress.certificates import Certificates
from dualtrack.egress.exchange import BROKEN, Exchange, Progress, Upstream
from dualtrack.egress.http import Peer, field
from dualtrack.egress.meter import Meter
from dualtrack.egress.refusal import Cut, Refusal
from dualtrack.egress.stream import CHUNK, Clock, ServedTls, Stream, client_name
from dualtrack.egress.tunnel import Carried, carry
from dualtrack.net import guard
from dualtrack.net.addresses import AllowList

_METHOD: Final = re.compile(rb"[A-Z][A-Z-]{0,31}")
_REQUEST_LINE: Final = re.compile(rb"[A-Z][A-Z-]{0,31} ")
_ABSOLUTE: Final = re.compile(rb"(?i)(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL)
_TLS_HANDSHAKE: Final = b"\x16"
_GREETING_BYTES: Final = 32 * KIB
_HTTP_PORT: Final = 80
_TLS_PORT: Final = 443
"""What goes through these two is HTTP or TLS, and nothing else."""
_H2_PREFACE: Final = b"PRI * HTTP/2"


@dataclass(frozen=True)
class Session:
    """What all connections of a sandbox share."""

    policy: EgressPolicy
    broker: Broker
    meter: Meter
    limits: EgressLimits
    private: AllowList
    """What the operator lets sandboxes reach although it is not public."""
    trust: Callable[[], ssl.SSLContext]
    """How hosts are verified."""
    certificates: Callable[[], Certificates]
    tell: Callable[[EgressRequest], None]
    opened: Callable[[socket.socket], None]
    """Told of every connection to a host, so that the end of the session ends it."""


class Connection:
    """Serves one connection to its end."""

    def __init__(self, session: Session, sock: socket.socket) -> None:
        self._session = session
        self._socket = sock
        self._clock = Clock(session.limits.lifetime_s, session.limits.idle_s)

    def serve(self) -> None:
        """Serve it; raises nothing for what its client does."""
        try:
            self._requests(self._socket, None, b"")
        except BROKEN:
            return

    def _requests(self, stream: Stream, fixed: Origin | None, first: bytes, dialled: socket.socket | None = None) -> None:
        """Serve requests one after the other.

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
            lambda origin: self._connected(origin, waiting.pop() if waiting else None), self._session.meter, self._clock, limits
        )
        try:
            while self._one(client, upstream, fixed):
                if client.h11.our_state is not h11.DONE or client.h11.their_state is not h11.DONE:
                    return
                client.h11.start_next_cycle()
        finally:
            upstream.close()
            for sock in waiting:
                sock.close()

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
            self._check(request)
            if method == "CONNECT" and fixed is None:
                place = Origin("https", *_place(request.target))
                self._permit(place)
                self._tunnel(client, place)
                return False
            place, target = _destination(request, fixed)
            self._permit(place)
        except Refusal as refusal:
            self._refuse(client, place, method, refusal)
            return False
        return self._carried(client, upstream, request, place, target)

    def _head(self, client: Peer) -> h11.Request | None:
        """The next request's head; None where the client has closed."""
        event = client.next_request(self._session.limits.head_s)
        return event if isinstance(event, h11.Request) else None

    def _check(self, request: h11.Request) -> None:
        """Refuse what is too much, and what programs may understand differently."""
        if not self._session.meter.begin():
            raise Refusal(429, EgressReason.REQUESTS_LIMIT, "The sandbox has made all the requests that it may.")
        headers = request.headers
        if not _METHOD.fullmatch(request.method):
            raise _bad("the method is none")
        limits = self._session.limits
        if len(headers) > limits.head_fields or len(request.target) + sum(len(n) + len(v) for n, v in headers) > limits.head_bytes:
            raise Refusal(
                431, EgressReason.BAD_REQUEST, f"A request may have {limits.head_fields} headers and {limits.head_bytes} bytes of them."
            )
        if field(headers, b"transfer-encoding") and (field(headers, b"content-length") or request.http_version < b"1.1"):
            raise _bad("Transfer-Encoding and Content-Length must not come together")
        for host in field(headers, b"host"):
            _place(host, _HTTP_PORT)

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
        outside = self._dialled(place)
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
        elif _REQUEST_LINE.match(first) and place.port != _TLS_PORT and not (first.startswith(_H2_PREFACE) and place.port != _HTTP_PORT):
            self._requests(self._socket, Origin("http", place.host, place.port), first, outside)
            return
        elif place.port in {_HTTP_PORT, _TLS_PORT}:
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

    # --- hosts ------------------------------------------------------------------------------------------------------

    def _connected(self, place: Origin, dialled: socket.socket | None) -> Stream:
        """A connection to a host, over TLS where that is what its scheme says. Raises `Refusal`."""
        sock = dialled if dialled is not None else self._dialled(place)
        if place.scheme != "https":
            return sock
        try:
            sock.settimeout(self._session.limits.connect_s)
            secured = self._session.trust().wrap_socket(sock, server_hostname=place.name)
        except (OSError, ValueError) as error:
            sock.close()
            problem = getattr(error, "verify_message", "") or getattr(error, "reason", "") or "it ended the connection"
            raise Refusal(502, EgressReason.UNREACHABLE, f"There is no TLS with {place.authority}: {problem}.", allowed=True) from error
        self._session.opened(secured)
        return secured

    def _dialled(self, place: Origin) -> socket.socket:
        """A plain connection to a host, at an address that was checked. Raises `Refusal`."""
        try:
            sock = guard.dial(place.name, place.port, allow=self._session.private, timeout_s=self._session.limits.connect_s)
        except AddressRefused as error:
            raise Refusal(
                403,
                EgressReason.PRIVATE_ADDRESS,
                f"{place.host} is not on the public internet; the operator may allow it (DUALTRACK_EGRESS__PRIVATE).",
            ) from error
        except HostUnreachable as error:
            raise Refusal(502, EgressReason.UNREACHABLE, error.message, allowed=True) from error
        self._session.opened(sock)
        return sock

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
        host, port = (place.host, place.port) if place is not None else ("", 0)
        method = method if _METHOD.fullmatch(method.encode()) else ""
        self._session.tell(
            EgressRequest(host, port, method, allowed, reason, progress.status, progress.bytes_up, progress.bytes_down, progress.secrets)
        )


def _bad(problem: str) -> Refusal:
    return Refusal(400, EgressReason.BAD_REQUEST, f"The request is not understood: {problem}.")


def _reason_phrase(message: str) -> bytes:
    """A short form for the status line: some clients show nothing else."""
    return re.sub(rb"[^ -~]", b"?", message.encode())[:HOST_CHARS]


def _place(authority: bytes, default_port: int | None = None) -> tuple[str, int]:
    """A host and its port. Raises `Refusal`."""
    try:
        return split(authority.decode(), default_port)
    except ValueError as error:
        raise _bad(str(error)) from error


def _destination(request: h11.Request, fixed: Origin | None) -> tuple[Origin, bytes]:
    """Where a request goes, and its path with its query. Raises `Refusal`."""
    target = bytes(request.target)
    hosts = field(request.headers, b"host")
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        if fixed is None:
            raise _bad("this is a proxy: ask it for http://host/path, or for a tunnel by CONNECT")
        if not hosts:
            raise _bad("it names no host")
        origin = Origin(fixed.scheme, *_place(hosts[0], _TLS_PORT if fixed.scheme == "https" else _HTTP_PORT))
    else:
        scheme = found["scheme"].decode().lower()
        if scheme != (fixed.scheme if fixed else "http"):
            raise _bad(f"{scheme}:// is not served here; https goes through a tunnel by CONNECT")
        origin = Origin(scheme, *_place(found["authority"], _TLS_PORT if scheme == "https" else _HTTP_PORT))
        target = found["rest"].partition(b"#")[0]
        target = target if target.startswith(b"/") else b"/" + target
    if fixed is not None and (origin.host, origin.port) != (fixed.host, fixed.port):
        raise Refusal(421, EgressReason.HOST_MISMATCH, f"This tunnel leads to {fixed.authority} and nowhere else.")
    if not target.startswith(b"/") and not (target == b"*" and request.method == b"OPTIONS"):
        raise _bad("its address is no path")
    return origin, target
