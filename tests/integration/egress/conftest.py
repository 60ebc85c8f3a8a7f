"""A web site on this machine under names of its own, and proxies that lead to it as a sandbox would use them."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from dualtrack.domain.egress import EgressRequest
from dualtrack.domain.hosts import rules
from dualtrack.domain.limits import EgressLimits
from dualtrack.domain.network import EgressPolicy, SecretGrant
from dualtrack.egress.proxy import RELAY_PORT, EgressProxy
from dualtrack.net.addresses import AllowList
from dualtrack.sandbox.inside import relay
from dualtrack.sandbox.sessions import EGRESS_TARGET
from dualtrack.settings import SandboxSettings
from dualtrack.testing.waiting import wait_until
from dualtrack.testing.website import Website

LOCAL = AllowList.parse(["127.0.0.0/8"])
VALUE = "the-real-value-of-the-secret"


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Addresses of names, 127.0.0.1 for each that is not among them; and the names that were asked for, under ""."""
    known: dict[str, list[str]] = {"": []}
    real = socket.getaddrinfo

    def answer(host: str, port: int, *more: Any, **options: Any) -> Any:
        if host[0].isdigit() or ":" in host:
            return real(host, port, *more, **options)
        known[""].append(host)
        if host in known and not known[host]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in known.get(host, ["127.0.0.1"])]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return known


@pytest.fixture
def site(names: dict[str, list[str]]) -> Iterator[Website]:
    with Website() as server:
        yield server


@pytest.fixture
def secure_site(names: dict[str, list[str]], authority: trustme.CA) -> Iterator[Website]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("api.example.test", "other.example.test", "*.cdn.example.test").configure_cert(context)
    with Website(context) as server:
        yield server


class Outlet:
    """A proxy, the relay that a sandbox has to it, and what the proxy told."""

    def __init__(self, proxy: EgressProxy, port: int, told: list[EgressRequest]) -> None:
        self.proxy, self.port, self.told = proxy, port, told

    @property
    def environment(self) -> dict[str, str]:
        """As a sandbox has it, with the paths and the port of this one."""
        own = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
        ours = {
            name: value.replace(EGRESS_TARGET, str(self.proxy.directory)).replace(f":{RELAY_PORT}", f":{self.port}")
            for name, value in self.proxy.environment.items()
        }
        return own | {name: "" if name.lower() == "no_proxy" else value for name, value in ours.items()}

    def curl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = ["curl", "--silent", "--show-error", "--max-time", "60", *arguments]
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=False, timeout=90)

    def python(self, source: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-I", "-c", source]
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=False, timeout=90)

    def connect(self) -> socket.socket:
        """A connection to the proxy, through the relay."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def say(self, data: bytes) -> bytes:
        """What comes back for these bytes until the proxy closes."""
        with self.connect() as sock:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may have answered before it has read all
                sock.sendall(data)
            return read_all(sock)

    def wait_told(self, count: int = 1) -> list[EgressRequest]:
        """What was told, once it is that many."""
        wait(lambda: len(self.told) >= count)
        return self.told


def raw(directory: Path, data: bytes) -> bytes:
    """What comes back for these bytes from the socket itself."""
    descriptor = os.open(directory, os.O_PATH)  # its path may be too long for a socket's
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(60)
            sock.connect(f"/proc/self/fd/{descriptor}/proxy.sock")
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(data)
            return read_all(sock)
    finally:
        os.close(descriptor)


def read_all(sock: Any) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            parts.append(data)
    return b"".join(parts)


def wait(done: Callable[[], bool]) -> None:
    """Until something is so."""
    wait_until(done, "what the test waits for")


@pytest.fixture
def outlet(authority: trustme.CA, names: dict[str, list[str]]) -> Iterator[Callable[..., Outlet]]:
    """Makes outlets."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with contextlib.ExitStack() as stack:
        # The sandbox's user must be able to enter it, which pytest's own directories don't allow.
        base = stack.enter_context(tempfile.TemporaryDirectory(prefix="egress-", dir="/var/tmp"))
        Path(base).chmod(0o711)

        def make(
            allow: list[str],
            *,
            secrets: list[SecretGrant] | None = None,
            private: AllowList = LOCAL,
            up: int = 10**8,
            down: int = 10**8,
            **limits: Any,
        ) -> Outlet:
            told: list[EgressRequest] = []
            policy = EgressPolicy((rules(allow),), up, down, tuple(secrets or ()))
            proxy = stack.enter_context(
                EgressProxy(
                    policy,
                    {"api": VALUE},
                    told.append,
                    limits=EgressLimits(**limits),
                    private=private,
                    base=Path(base),
                    owner=SandboxSettings().uid if os.geteuid() == 0 else None,
                    trust=lambda: context,
                )
            )
            listener = relay.listen(0)
            thread = threading.Thread(target=relay.serve, args=(listener, str(proxy.directory / "proxy.sock")), daemon=True)
            thread.start()

            def stop() -> None:
                with contextlib.suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)
                thread.join(60)

            stack.callback(stop)
            return Outlet(proxy, listener.getsockname()[1], told)

        yield make


def api_secret(port: int, *, headers: tuple[str, ...] = ("authorization",), plain_http: bool = False) -> SecretGrant:
    return SecretGrant("api", "API_TOKEN", (rules([f"api.example.test:{port}"]),), frozenset(headers), plain_http)
