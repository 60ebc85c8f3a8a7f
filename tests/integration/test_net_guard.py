"""The outgoing guard against real sockets: what it refuses, pins, bounds and says."""

from __future__ import annotations

import contextlib
import pickle
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trustme

from dualtrack.domain.errors import AddressRefused, AnswerBroken, HostUnreachable, OutgoingError
from dualtrack.net import guard
from dualtrack.net.addresses import AllowList

LOCAL = AllowList.parse(["127.0.0.0/8", "::1"])
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


class Server:
    """Answers every connection with what a function does with it; remembers the requests."""

    def __init__(self, act: Callable[[Any], None], context: ssl.SSLContext | None = None) -> None:
        self.heard: list[bytes] = []
        self._act, self._context = act, context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), peer:
                peer.settimeout(60)
                wire: Any = self._context.wrap_socket(peer, server_side=True, do_handshake_on_connect=False) if self._context else peer
                with contextlib.closing(wire):
                    self.heard.append(_request(wire))
                    self._act(wire)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)


@contextlib.contextmanager
def serving(act: Callable[[Any], None] | bytes, context: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(act if callable(act) else lambda wire: wire.sendall(act), context)
    try:
        yield server
    finally:
        server.close()


def _request(wire: Any) -> bytes:
    """All that a client sends: closing a socket with unread bytes resets it, and the answer might be lost."""
    heard: bytes = wire.recv(65536)
    while heard and b"\r\n\r\n" not in heard:
        heard += wire.recv(65536)
    head, _, body = heard.partition(b"\r\n\r\n")
    found = re.search(rb"\r\nContent-Length: ([0-9]+)", head)
    while found and len(body) < int(found[1]):
        body += wire.recv(65536)
    return head + b"\r\n\r\n" + body if heard else b""


def post(url: str, *, allow: AllowList = LOCAL, **more: Any) -> guard.Response:
    options: dict[str, Any] = {"headers": {"X-Test": "yes"}, "body": b"{}", "timeout_s": 60, "max_bytes": 1000} | more
    return guard.request(options.pop("method", "POST"), url, allow=allow, **options)


def test_a_request_is_sent_whole_and_its_answer_read() -> None:
    with serving(b"HTTP/1.1 201 Created\r\nA: 1\r\na: 2\r\nContent-Length: 2\r\n\r\nhi") as server:
        answer = post(f"http://127.0.0.1:{server.port}/hook?x=1")
    assert answer == guard.Response(201, {"a": "1, 2", "content-length": "2"}, b"hi", truncated=False)
    head, _, body = server.heard[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /hook?x=1 HTTP/1.1"
    assert {f"Host: 127.0.0.1:{server.port}".encode(), b"X-Test: yes", b"Content-Length: 2", b"Connection: close"} <= set(lines)
    assert body == b"{}"


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f.1", "127.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"])
def test_no_spelling_of_an_inside_address_is_let_through(host: str) -> None:
    with serving(OK) as server:
        url = f"http://{host}:{server.port}/"
        with pytest.raises(OutgoingError) as refused:
            post(url, allow=AllowList())
        assert not refused.value.sent
        assert server.heard == []
        if host != "localhost":  # which a machine may not know
            assert isinstance(refused.value, AddressRefused)
            with pytest.raises(AddressRefused):
                guard.check(url, allow=AllowList())


def resolves_to(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """From now on names have these addresses, one answer after the other; the names that were asked for."""
    asked: list[str] = []
    left = list(answers)

    def answer(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in left.pop(0)]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return asked


def test_a_name_is_resolved_once_and_the_connection_goes_to_what_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[Any] = []
    real = socket.socket.connect
    with serving(OK) as server:

        def connect(sock: socket.socket, address: Any) -> None:
            connected.append(address)
            real(sock, ("127.0.0.1", server.port))

        monkeypatch.setattr(socket.socket, "connect", connect)
        asked = resolves_to(monkeypatch, ["93.184.216.34"], ["127.0.0.1"])
        assert post("http://rebinding.example/", allow=AllowList()).status == 200
    assert connected == [("93.184.216.34", 80)]
    assert asked == ["rebinding.example"]
    assert b"Host: rebinding.example\r\n" in server.heard[0]


def test_of_several_addresses_only_permitted_ones_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(OK) as server:
        resolves_to(monkeypatch, ["10.0.0.1", "127.0.0.1"], ["10.0.0.1", "169.254.169.254"])
        assert post(f"http://both.example:{server.port}/").status == 200
        with pytest.raises(AddressRefused, match="DUALTRACK_NET__ALLOW"):
            post(f"http://inside.example:{server.port}/")


def test_a_name_may_be_allowed_with_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(OK) as server:
        resolves_to(monkeypatch, ["127.0.0.1"], ["127.0.0.1"])
        allow = AllowList.parse([f"hooks.internal:{server.port}"])
        assert post(f"http://hooks.internal:{server.port}/", allow=allow).status == 200
        with pytest.raises(AddressRefused):
            post(f"http://hooks.internal:{server.port + 1}/", allow=allow)


def test_a_redirect_is_an_answer() -> None:
    with serving(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n") as server:
        answer = post(f"http://127.0.0.1:{server.port}/")
        assert (answer.status, answer.headers["location"], len(server.heard)) == (302, "http://169.254.169.254/", 1)


def test_no_more_is_read_than_was_asked_for() -> None:
    def pour(wire: Any) -> None:
        wire.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            wire.sendall(b"x" * 65536)

    with serving(pour) as server:
        answer = post(f"http://127.0.0.1:{server.port}/", max_bytes=100_000)
    assert (len(answer.body), answer.truncated) == (100_000, True)
    with serving(OK) as server:
        assert post(f"http://127.0.0.1:{server.port}/", max_bytes=2) == guard.Response(200, {"content-length": "2"}, b"hi", truncated=False)


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"])
def test_a_server_that_drips_does_not_hold_the_caller(start: bytes) -> None:
    def drip(wire: Any) -> None:
        wire.sendall(start)
        for _ in range(2000):
            wire.sendall(b"x")
            time.sleep(0.05)

    with serving(drip) as server:
        began = time.monotonic()
        with pytest.raises(AnswerBroken) as broken:
            post(f"http://127.0.0.1:{server.port}/", timeout_s=0.5)
        assert 0.4 < time.monotonic() - began < 50
    assert broken.value.sent


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
)
def test_an_answer_that_is_none_says_that_the_request_was_sent(answer: bytes) -> None:
    with serving(answer) as server, pytest.raises(AnswerBroken) as broken:
        post(f"http://127.0.0.1:{server.port}/")
    assert (broken.value.sent, broken.value.retryable) == (True, True)
    assert pickle.loads(pickle.dumps(broken.value)).sent


def test_what_was_never_connected_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(HostUnreachable) as unreachable:
        post(f"http://127.0.0.1:{port}/")
    assert not unreachable.value.sent
    with pytest.raises(HostUnreachable):
        post("http://no-such-host.invalid/")
    guard.check("http://no-such-host.invalid/", allow=AllowList())  # may exist later
    ended = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ended.wait(60) and [])
    with pytest.raises(HostUnreachable, match="looked up in time"):
        post("http://slow.example/", timeout_s=0.1)
    ended.set()


@pytest.mark.parametrize("headers", [{"X": "a\r\nB: c"}, {"X\r\nY": "a"}, {"X": "\x00"}, {"X": "€"}])
def test_headers_can_not_smuggle(headers: dict[str, str]) -> None:
    with serving(OK) as server:
        with pytest.raises(AddressRefused):
            post(f"http://127.0.0.1:{server.port}/", headers=headers)
        assert server.heard == []


def test_tls_is_verified_against_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("hooks.example").configure_cert(context)
    with serving(OK, context) as server:
        resolves_to(monkeypatch, *[["127.0.0.1"]] * 3)
        with pytest.raises(HostUnreachable, match="CERTIFICATE_VERIFY_FAILED") as unknown:
            post(f"https://hooks.example:{server.port}/")
        assert not unknown.value.sent
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        monkeypatch.setattr(guard, "_tls", lambda: trusting)
        assert post(f"https://hooks.example:{server.port}/").body == b"hi"
        with pytest.raises(HostUnreachable, match="Hostname mismatch"):
            post(f"https://other.example:{server.port}/")
    assert len([request for request in server.heard if request]) == 1
