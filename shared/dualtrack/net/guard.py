"""One HTTP request to an address that somebody else named, such as a webhook's: never to anything inside, unless the operator allows it.

The host is resolved once, every address is checked, and the connection goes to exactly one that was checked: a name that changes its
address in between (DNS rebinding) gains nothing. Redirects are not followed, proxies of the environment not used. TLS is verified
against the host's name. Times and sizes are bounded as a whole, so that a server that sends a byte a second doesn't hold the caller.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse
from io import BufferedReader, RawIOBase
from ipaddress import ip_address
from typing import Any, Final

from dualtrack.domain.errors import AddressRefused, AnswerBroken, HostUnreachable
from dualtrack.net.addresses import Address, AllowList
from dualtrack.net.target import Target, parse

CONNECT_S: Final = 10.0
"""Longest wait for one address to accept a connection."""
_CHUNK: Final = 64 * 1024
_FINAL: Final = 200
"""Statuses below it announce another answer; they are waited through or refused."""


@dataclass(frozen=True, slots=True)
class Response:
    """What came back.

    Attributes:
        headers: names in lower case; of repeated ones the values are joined by ", ".
        body: at most the bytes that were asked for; `truncated` when there were more.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool


def check(url: str, *, allow: AllowList, timeout_s: float = 2.0, param: str = "url") -> None:
    """Refuse a URL that `request` would refuse now. A host that can't be found now is let pass: `request` looks again.

    Raises:
        AddressRefused: it is no URL, or none of its addresses may be reached.
    """
    target = parse(url, param)
    try:
        _addresses(target, allow, time.monotonic() + timeout_s, param)
    except HostUnreachable:
        return


def request(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes,
    timeout_s: float,
    max_bytes: int,
    allow: AllowList,
) -> Response:
    """Send one request and read its answer, all of it within `timeout_s`. A redirect is an answer like any other.

    Args:
        method: such as POST.
        url: http or https.
        headers: without Host, Content-Length and Connection, which are set here.
        body: may be empty.
        timeout_s: for resolving, connecting, sending and reading together.
        max_bytes: of the answer's body that are read; the rest is left.
        allow: what may be reached although it is not public.

    Raises:
        AddressRefused: the URL or a header can't be sent, or the host has no address that may be reached. Nothing was sent.
        HostUnreachable: no such host, no connection, or no TLS with it. Nothing was sent.
        AnswerBroken: the request was sent, or part of it, and no full answer came: what the server did is not known.
    """
    deadline = time.monotonic() + timeout_s
    target = parse(url)
    line = _request_head(method, target, headers, body)
    wire = _connect(target, _addresses(target, allow, deadline, "url"), deadline)
    try:
        wire.sendall(line + body)
        return _read(wire, method, max_bytes)
    except (OSError, HTTPException, ValueError) as error:
        raise AnswerBroken(f"{target.authority} gave no answer that can be used: {_reason(error)}.") from error
    finally:
        wire.close()


def dial(host: str, port: int, *, allow: AllowList, timeout_s: float) -> socket.socket:
    """A plain connection to a host: looked up once, to an address that was checked.

    Args:
        host: a name or an address, without brackets.
        port: where to.
        allow: what may be reached although it is not public.
        timeout_s: for resolving and connecting together.

    Raises:
        AddressRefused: it has no address that may be reached.
        HostUnreachable: no such host, or no connection.
    """
    deadline = time.monotonic() + timeout_s
    target = Target("http", host, port, "/")
    failure: OSError = TimeoutError("timed out")
    for address in _addresses(target, allow, deadline, "host"):
        try:
            return _open(address, port, deadline)
        except OSError as error:
            failure = error
    raise HostUnreachable(f"{target.authority} can't be reached: {_reason(failure)}.") from failure


class _Wire(RawIOBase):
    """A connected socket every operation of which ends by one deadline."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        super().__init__()
        self._socket = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any writable buffer, as in the base class
        self._hurry()
        return self._socket.recv_into(buffer)

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._hurry()
            view = view[self._socket.send(view[:_CHUNK]) :]

    def makefile(self, _mode: str) -> BufferedReader:
        """What `HTTPResponse` reads from."""
        return BufferedReader(self, _CHUNK)

    def close(self) -> None:
        if not self.closed:
            self._socket.close()
        super().close()

    def _hurry(self) -> None:
        self._socket.settimeout(_left(self._deadline))


def _left(deadline: float) -> float:
    """Seconds until then. Raises `TimeoutError`."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


class _Recorder(HTTPConnection):
    """Builds a request's head, with the checks of `http.client` against injected lines, and connects nowhere."""

    def connect(self) -> None:
        self.sock = None

    def head(self) -> bytes:
        return b"".join(self._parts)

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self._parts: list[bytes] = []

    def send(self, data: Any) -> None:  # noqa: ANN401 - as in the base class
        self._parts.append(bytes(data))


def _request_head(method: str, target: Target, headers: Mapping[str, str], body: bytes) -> bytes:
    recorder = _Recorder(target.authority)
    try:
        recorder.putrequest(method, target.path, skip_host=True)
        recorder.putheader("Host", target.authority)
        for name, value in headers.items():
            if not (value.isascii() and value.isprintable()):
                raise ValueError(f"the value of {name!r} is no printable ASCII")  # noqa: TRY301 - as those of `http.client`
            recorder.putheader(name, value)
        if body or method not in {"GET", "HEAD", "DELETE", "OPTIONS"}:
            recorder.putheader("Content-Length", str(len(body)))
        recorder.putheader("Connection", "close")
        recorder.endheaders()
    except (ValueError, HTTPException) as error:
        raise AddressRefused(f"The request can't be sent: {error}.", param="headers") from error
    return recorder.head()


def _addresses(target: Target, allow: AllowList, deadline: float, param: str) -> list[Address]:
    """The addresses of a host that may be reached, in the resolver's order."""
    found = _resolve(target, deadline)
    permitted = [address for address in found if allow.permits(target.host, target.port, address)]
    if not permitted:
        raise AddressRefused(
            f"{param}: {target.host} is not on the public internet; the operator may allow it (DUALTRACK_NET__ALLOW).", param=param
        )
    return permitted


def _resolve(target: Target, deadline: float) -> list[Address]:
    """All addresses of the host, as the system finds them: odd spellings (`0x7f.1`) come out as what they mean."""
    answer: list[Any] = []

    def look_up() -> None:
        try:
            answer.append(socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answer.append(error)

    # The system's resolver takes no timeout; one that is slow is left behind and ends by its own.
    thread = threading.Thread(target=look_up, name="resolve", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if not answer:
        raise HostUnreachable(f"{target.host} could not be looked up in time.")
    if isinstance(answer[0], Exception):
        raise HostUnreachable(f"{target.host} is no host that can be found: {_reason(answer[0])}.") from answer[0]
    return list(dict.fromkeys(ip_address(entry[4][0]) for entry in answer[0]))


def _connect(target: Target, addresses: list[Address], deadline: float) -> _Wire:
    failure: Exception = TimeoutError("timed out")
    for address in addresses:
        try:
            sock = _open(address, target.port, deadline)
            if target.scheme == "https":
                sock = _secured(sock, target.host, deadline)
        except (OSError, ValueError) as error:  # TLS failures are OSErrors; a name that TLS can not carry is the other
            failure = error
            continue
        return _Wire(sock, deadline)
    raise HostUnreachable(f"{target.authority} can't be reached: {_reason(failure)}.") from failure


def _open(address: Address, port: int, deadline: float) -> socket.socket:
    sock = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)  # noqa: PLR2004 - the protocol
    try:
        sock.settimeout(min(CONNECT_S, _left(deadline)))
        sock.connect((str(address), port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a short head must not wait for the answer to what was sent before
    except OSError:
        sock.close()
        raise
    return sock


def _secured(sock: socket.socket, host: str, deadline: float) -> socket.socket:
    try:
        sock.settimeout(_left(deadline))
        return _tls().wrap_socket(sock, server_hostname=host)
    except (OSError, ValueError):
        sock.close()
        raise


@cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _read(wire: _Wire, method: str, max_bytes: int) -> Response:
    answer = HTTPResponse(wire, method=method)  # type: ignore[arg-type] # it only calls `makefile`
    answer.begin()
    if answer.status < _FINAL:
        raise HTTPException(f"status {answer.status}")
    body = b""
    while len(body) <= max_bytes and (chunk := answer.read1(min(_CHUNK, max_bytes + 1 - len(body)))):
        body += chunk
    if len(body) <= max_bytes and answer.length:
        raise HTTPException(f"{answer.length} bytes are missing")
    headers: dict[str, str] = {}
    for name, value in answer.getheaders():
        key = name.lower()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return Response(answer.status, headers, body[:max_bytes], truncated=len(body) > max_bytes)


def _reason(error: BaseException) -> str:
    """What the system says, in a few words. Some of it the server may have written: every character is one that can be kept and shown."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return "".join(mark if mark.isprintable() else "\ufffd" for mark in str(text).splitlines()[0][:200]).rstrip(".")
