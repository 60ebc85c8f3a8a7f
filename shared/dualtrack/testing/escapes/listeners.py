"""Sockets of the host that wait for somebody to get out of a sandbox."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import threading
from pathlib import Path
from typing import Any, Final, Self

_GROUP: Final = "239.255.77.77"
_TICK_S: Final = 0.05
_BYTES: Final = 4096


class Listeners:
    """Listens on loopback (TCP, UDP, IPv6), on this machine's own address, on abstract names, on a path and for multicast. Use as a context
    manager.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._selector = selectors.DefaultSelector()
        self._stop = threading.Event()
        self._heard: set[str] = set()
        self._lock = threading.Lock()
        self._facts: dict[str, Any] = {}
        self._name = f"dualtrack-{secrets.token_hex(8)}"

    def __enter__(self) -> Self:
        self._stack.callback(self._selector.close)
        self._tcp("tcp", socket.AF_INET, "127.0.0.1")
        self._tcp("tcp6", socket.AF_INET6, "::1")
        self._tcp("tcp_own_address", socket.AF_INET, _own_address())
        udp = self._bound("udp", socket.AF_INET, ("127.0.0.1", 0))
        if udp is not None:
            self._facts["udp"] = udp.getsockname()[1]
        self._multicast()
        self._unix("abstract", f"\0{self._name}", socket.SOCK_STREAM)
        self._unix("abstract_datagram", f"\0{self._name}-datagram", socket.SOCK_DGRAM)
        self._facts["own_address"] = _own_address()
        thread = threading.Thread(target=self._serve, daemon=True)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(self._stop.set)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def addresses(self, folder: Path) -> dict[str, Any]:
        """Where they listen, by name; what this machine does not have is missing. Opens one more in `folder`."""
        path = folder / "host.sock"
        self._unix("path", str(path), socket.SOCK_STREAM)
        path.chmod(0o777)
        return {"listeners": dict(self._facts)}

    def heard(self, name: str) -> bool:
        """Whether an attempt of that name has knocked anywhere."""
        with self._lock:
            return name in self._heard

    def _bound(self, name: str, family: int, address: Any, kind: int = socket.SOCK_DGRAM) -> socket.socket | None:
        try:
            sock = socket.socket(family, kind)
            self._stack.callback(sock.close)
            sock.bind(address)
        except OSError:  # this machine has no such address
            return None
        if kind == socket.SOCK_STREAM:
            sock.listen(64)
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, name)
        return sock

    def _tcp(self, name: str, family: int, address: str) -> None:
        sock = self._bound(name, family, (address, 0), socket.SOCK_STREAM) if address else None
        if sock is not None:
            self._facts[name] = sock.getsockname()[1]

    def _unix(self, name: str, address: str, kind: int) -> None:
        if self._bound(name, socket.AF_UNIX, address, kind) is not None:
            self._facts[name] = address

    def _multicast(self) -> None:
        sock = self._bound("multicast", socket.AF_INET, ("", 0))
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(_GROUP) + socket.inet_aton("127.0.0.1"))
                self._facts["multicast"] = [_GROUP, sock.getsockname()[1]]

    def _serve(self) -> None:
        while not self._stop.is_set():
            for key, _ in self._selector.select(_TICK_S):
                with contextlib.suppress(OSError):
                    self._take(key.fileobj)  # type: ignore[arg-type]

    def _take(self, sock: socket.socket) -> None:
        if sock.type == socket.SOCK_DGRAM:
            self._keep(sock.recv(_BYTES))
            return
        caller = sock.accept()[0]
        with caller:
            caller.settimeout(1)
            self._keep(caller.recv(_BYTES))

    def _keep(self, data: bytes) -> None:
        with self._lock:
            self._heard.add(os.fsdecode(data))


def _own_address() -> str:
    """This machine's address beside loopback; empty if it has none. No packet is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("192.0.2.1", 9))
        return str(sock.getsockname()[0])
    return ""
