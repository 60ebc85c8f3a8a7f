"""A connection as the proxy reads and writes it: plain or over TLS, with a time limit on every step."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import Final, Protocol

CHUNK: Final = 64 * 1024


class Stream(Protocol):
    """Blocking bytes with a time limit. Raises `OSError` (`TimeoutError`, those of TLS) for whatever goes wrong."""

    def recv(self, size: int, /) -> bytes:
        """Up to that many bytes; none at the end."""
        ...

    def sendall(self, data: bytes, /) -> None:
        """Send all of it."""
        ...

    def settimeout(self, seconds: float | None, /) -> None:
        """How long each of the above may take; 0: not at all."""
        ...

    def close(self) -> None:
        """Give it up."""
        ...


class Clock:
    """The end of a connection's life, and how long it may be idle."""

    def __init__(self, lifetime_s: float, idle_s: float) -> None:
        self._end = time.monotonic() + lifetime_s
        self._idle_s = idle_s

    def wait_s(self, most: float | None = None) -> float:
        """Seconds that the next step may take. Raises `TimeoutError` at the end of its life."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the connection's time is over")
        return min(left, self._idle_s if most is None else most)


class ServedTls:
    """The server's side of TLS over a socket of which a part was read before. A `Stream`."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, first: bytes) -> None:
        self._socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._incoming.write(first)
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._deadline: float | None = None
        self._seconds: float | None = None

    def settimeout(self, seconds: float | None, /) -> None:
        """See `Stream`."""
        self._seconds = seconds

    def handshake(self) -> None:
        """Do it, within the time limit as a whole."""
        self._begin()
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self._fill()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._flush()  # the alert that says why
                raise
        self._flush()

    def recv(self, size: int, /) -> bytes:
        """See `Stream`."""
        self._begin()
        while True:
            try:
                return self._tls.read(size)
            except ssl.SSLWantReadError:
                self._flush()
                self._fill()
            except ssl.SSLZeroReturnError:
                return b""

    def sendall(self, data: bytes, /) -> None:
        """See `Stream`."""
        self._begin()
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
            self._flush()

    def close(self) -> None:
        """End TLS and close the socket."""
        with contextlib.suppress(OSError, ssl.SSLError):
            self._seconds = 1.0
            self._begin()
            with contextlib.suppress(ssl.SSLWantReadError):
                self._tls.unwrap()
            self._flush()
        self._socket.close()

    def _begin(self) -> None:
        self._deadline = None if self._seconds is None else time.monotonic() + self._seconds

    def _hurry(self) -> None:
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left)

    def _flush(self) -> None:
        while data := self._outgoing.read(CHUNK):
            self._hurry()
            self._socket.sendall(data)

    def _fill(self) -> None:
        self._hurry()
        data = self._socket.recv(CHUNK)
        if data:
            self._incoming.write(data)
        elif self._incoming.eof:
            raise ConnectionResetError("the connection ended in the middle of TLS")
        else:
            self._incoming.write_eof()


def client_name(hello: bytes) -> tuple[bool, str | None]:
    """Whether the first bytes of a TLS client hold its whole greeting, and the server's name in it; None where it names none.

    OpenSSL reads it, as it will at the other end, so that nobody understands it differently.

    Raises:
        ssl.SSLError: it is no greeting that TLS 1.2 or 1.3 knows.
    """
    found: list[str | None] = []

    def note(_: object, name: str | None, __: object) -> int:
        found.append(name)
        return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = note
    incoming = ssl.MemoryBIO()
    incoming.write(hello)
    try:
        context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
    except ssl.SSLWantReadError:
        return False, None
    except ssl.SSLError:
        if not found:
            raise
    return True, found[0].lower() if found and found[0] else None
