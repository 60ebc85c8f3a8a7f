"""The egress proxy of one sandbox session: a unix socket in a directory of its own, served by threads of this process."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dualtrack.domain.egress import EgressReason, EgressRequest, EgressUsage
from dualtrack.domain.limits import EgressLimits
from dualtrack.domain.network import EgressPolicy
from dualtrack.egress.broker import Broker
from dualtrack.egress.certificates import Certificates, process_certificates
from dualtrack.egress.connection import Connection, Session
from dualtrack.egress.dialler import Dialler, system_trust
from dualtrack.egress.meter import Meter
from dualtrack.net.addresses import AllowList
from dualtrack.objects.nofollow import DIRECTORY_FLAGS, opened
from dualtrack.sandbox.sessions import EGRESS_TARGET

SOCKET_NAME: Final = "proxy.sock"
BUNDLE_NAME: Final = "ca.pem"
RELAY_PORT: Final = 3128
"""Port on the sandbox's own loopback that is relayed to the socket."""
_SOCKET_PATH_BYTES: Final = 100
"""A socket's path may have hardly more; a longer one is reached by the descriptor of its directory."""
_JOIN_S: Final = 5.0
_BACKLOG: Final = 64
_BUSY: Final = b"HTTP/1.1 503 too many connections\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_LOG: Final = logging.getLogger(__name__)


class EgressProxy:
    """A way out for one sandbox, until `close`; a context manager. Thread-safe.

    Whoever can open the socket is served, so it lies in a directory that only the sandbox's user may enter, and is shown to one sandbox.

    Attributes:
        directory: to be shown read-only at `/run/egress` inside: holds `proxy.sock`, and `ca.pem` where secrets are put in over TLS.
        environment: variables for everything that runs inside. Holds placeholders, no secrets.
        relay_port: port on the sandbox's loopback that must lead to the socket.
    """

    def __init__(
        self,
        policy: EgressPolicy,
        secrets: Mapping[str, str],
        on_request: Callable[[EgressRequest], None],
        *,
        limits: EgressLimits | None = None,
        private: AllowList | None = None,
        base: Path | None = None,
        owner: int | None = None,
        trust: Callable[[], ssl.SSLContext] = system_trust,
        certificates: Callable[[], Certificates] = process_certificates,
    ) -> None:
        """Start it.

        Args:
            policy: what may be reached.
            secrets: values by name; those that the policy does not grant are not used.
            on_request: told of every request and tunnel at its end, in threads of the proxy; must be quick and raise nothing.
            limits: None: the defaults.
            private: what may be reached although it is not on the public internet, where the policy permits it.
            base: directory to make the session's own in; None: the system's for temporary files.
            owner: user that the sandbox runs as, where this process is root and the sandbox is not.
            trust: how hosts are verified.
            certificates: what speaks TLS in the hosts' names.

        Raises:
            OSError: there is no place for the socket.
        """
        self._broker = Broker(policy, secrets)
        self._limits = limits or EgressLimits()
        self._meter = Meter(policy.max_bytes_up, policy.max_bytes_down, self._limits.requests)
        self._on_request = on_request
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._closed = False
        self._sockets: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        dialler = Dialler(private or AllowList(), self._limits.connect_s, self._opened, trust)
        self._session = Session(policy, self._broker, self._meter, self._limits, dialler, certificates, on_request)
        self.relay_port: Final = RELAY_PORT
        self.directory: Final = Path(tempfile.mkdtemp(prefix="egress-", dir=base))
        intercepts = bool(self._broker.environment)
        try:
            if intercepts:
                (self.directory / BUNDLE_NAME).write_bytes(certificates().bundle)
                (self.directory / BUNDLE_NAME).chmod(0o444)
            self._listener = _listen(self.directory / SOCKET_NAME)
            if owner is not None:
                os.chown(self.directory / SOCKET_NAME, owner, owner)
                os.chown(self.directory, owner, owner)
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        self.environment: Final = {**self._broker.environment, **_environment(RELAY_PORT, intercepts=intercepts)}
        self._acceptor = threading.Thread(target=self._accept, name="egress-accept", daemon=True)
        self._acceptor.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def usage(self) -> EgressUsage:
        """What went through so far."""
        return self._meter.usage

    def settle(self, seconds: float) -> None:
        """Wait until no connection is open, so that all that ended has been told of; at most so long."""
        with self._idle:
            self._idle.wait_for(lambda: not self._threads, seconds)

    @property
    def closed(self) -> bool:
        """Whether it is over."""
        return self._closed

    def close(self) -> None:
        """End every connection and remove the directory; may be repeated. Requests that were under way are told of before it returns."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            sockets, threads = list(self._sockets), list(self._threads)
        _end(self._listener)
        self._listener.close()
        for sock in sockets:
            _end(sock)
        deadline = time.monotonic() + _JOIN_S
        for thread in (self._acceptor, *threads):
            thread.join(max(0.0, deadline - time.monotonic()))
        shutil.rmtree(self.directory, ignore_errors=True)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                continue
            self._meter.heard()
            thread = threading.Thread(target=self._serve, args=(sock,), name="egress", daemon=True)
            with self._lock:
                full = len(self._threads) >= self._limits.connections
                if not full and not self._closed:
                    self._sockets.add(sock)
                    self._threads.add(thread)
            if full or self._closed:
                self._turn_away(sock)
            else:
                thread.start()

    def _turn_away(self, sock: socket.socket) -> None:
        with contextlib.closing(sock), contextlib.suppress(OSError):
            sock.settimeout(0)
            sock.send(_BUSY)
        self._meter.refused()
        self._on_request(EgressRequest("", 0, "", allowed=False, reason=EgressReason.CONNECTIONS_LIMIT))

    def _serve(self, sock: socket.socket) -> None:
        try:
            Connection(self._session, sock).serve()
        except Exception:  # noqa: BLE001 - a fault of ours ends one connection, not the process
            _LOG.exception("an egress connection failed")
        finally:
            with self._lock:
                self._sockets.discard(sock)
                self._threads.discard(threading.current_thread())
                self._idle.notify_all()
            sock.close()

    def _opened(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets = {one for one in self._sockets if one.fileno() >= 0} | {sock}
            closed = self._closed
        if closed:
            _end(sock)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if len(os.fsencode(path)) > _SOCKET_PATH_BYTES and sys.platform == "linux":
            with opened(path.parent, DIRECTORY_FLAGS) as directory:
                listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        else:
            listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _environment(port: int, *, intercepts: bool) -> Mapping[str, str]:
    address = f"http://127.0.0.1:{port}"
    here = "localhost,127.0.0.1,::1"
    found = {"HTTP_PROXY": address, "HTTPS_PROXY": address, "NO_PROXY": here, "NODE_USE_ENV_PROXY": "1"}
    found |= {name.lower(): value for name, value in found.items() if name.endswith("_PROXY")}
    if intercepts:
        bundle = f"{EGRESS_TARGET}/{BUNDLE_NAME}"
        found |= dict.fromkeys(
            (
                "SSL_CERT_FILE",
                "REQUESTS_CA_BUNDLE",
                "CURL_CA_BUNDLE",
                "NODE_EXTRA_CA_CERTS",
                "GIT_SSL_CAINFO",
                "PIP_CERT",
                "AWS_CA_BUNDLE",
                "CARGO_HTTP_CAINFO",
            ),
            bundle,
        )
    return found
