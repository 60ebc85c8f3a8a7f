"""Connections to hosts, at addresses that were checked and, over TLS, to the host that was meant."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from functools import cache

from dualtrack.domain.egress import EgressReason
from dualtrack.domain.errors import AddressRefused, HostUnreachable
from dualtrack.egress.broker import Origin
from dualtrack.egress.refusal import Refusal
from dualtrack.egress.stream import Stream
from dualtrack.net import guard
from dualtrack.net.addresses import AllowList


@cache
def system_trust() -> ssl.SSLContext:
    """Verifies hosts by the system's trust store (SSL_CERT_FILE may name another); speaks HTTP/1.1."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


class Dialler:
    """Opens connections to hosts. Thread-safe."""

    def __init__(
        self,
        private: AllowList,
        timeout_s: float,
        opened: Callable[[socket.socket], None],
        trust: Callable[[], ssl.SSLContext] = system_trust,
    ) -> None:
        """Takes what it goes by.

        Args:
            private: what may be reached although it is not on the public internet.
            timeout_s: for looking up and connecting, and for TLS.
            opened: told of every connection, so that the end of the session ends it.
            trust: how hosts are verified.
        """
        self._private = private
        self._timeout_s = timeout_s
        self._opened = opened
        self._trust = trust

    def plain(self, place: Origin) -> socket.socket:
        """A connection without TLS. Raises `Refusal`."""
        try:
            sock = guard.dial(place.name, place.port, allow=self._private, timeout_s=self._timeout_s)
        except AddressRefused as error:
            raise Refusal(
                403,
                EgressReason.PRIVATE_ADDRESS,
                f"{place.host} is not on the public internet; the operator may allow it (DUALTRACK_EGRESS__PRIVATE).",
            ) from error
        except HostUnreachable as error:
            raise Refusal(502, EgressReason.UNREACHABLE, error.message, allowed=True) from error
        self._opened(sock)
        return sock

    def connected(self, place: Origin, dialled: socket.socket | None) -> Stream:
        """A connection over TLS where that is what the scheme says; `dialled`: one to that host that is open already. Raises `Refusal`."""
        sock = dialled if dialled is not None else self.plain(place)
        if place.scheme != "https":
            return sock
        try:
            sock.settimeout(self._timeout_s)
            secured = self._trust().wrap_socket(sock, server_hostname=place.name)
        except (OSError, ValueError) as error:
            sock.close()
            problem = getattr(error, "verify_message", "") or getattr(error, "reason", "") or "it ended the connection"
            raise Refusal(502, EgressReason.UNREACHABLE, f"There is no TLS with {place.authority}: {problem}.", allowed=True) from error
        self._opened(secured)
        return secured
