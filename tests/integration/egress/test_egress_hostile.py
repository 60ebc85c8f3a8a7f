"""A sandbox that does its worst to its proxy: nothing is smuggled, nothing is held for ever, every limit holds, others go on."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dualtrack.domain.egress import EgressReason
from dualtrack.egress import proxy
from dualtrack.testing.waiting import PATIENCE_S
from dualtrack.testing.website import Website

from .conftest import VALUE, Outlet, api_secret, read_all, wait

Outlets = Callable[..., Outlet]


def head(site: Website, *lines: str, target: str = "/", method: str = "GET") -> bytes:
    host = f"web.example.test:{site.port}"
    return "\r\n".join([f"{method} http://{host}{target} HTTP/1.1", f"Host: {host}", *lines, "", ""]).encode()


@pytest.fixture
def one(site: Website, outlet: Outlets) -> Outlet:
    return outlet([f"*.example.test:{site.port}"])


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: 5", "Content-Length: 6"],
        ["Content-Length: 5, 6"],
        ["Content-Length: +5"],
        ["Content-Length: 0x5"],
        ["Content-Length: -1"],
        ["Content-Length: 99999999999999999999999"],
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 5"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding: xchunked"],
        ["Transfer-Encoding : chunked"],
        ["Transfer-Encoding:\x0bchunked"],
        ["Content-Length : 5"],
        [" Content-Length: 5"],
        ["Host: evil.example"],
        ["No colon"],
        ["X: a\x00b"],
        ["X\x01: a"],
        [": empty"],
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(lines: list[str], site: Website, one: Outlet) -> None:
    smuggled = b"5\r\nhello\r\n0\r\n\r\nGET http://web.example.test/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = one.say(head(site, *lines, method="POST") + smuggled)
    assert answer.split(b" ")[1] in {b"400", b"501"}, answer
    assert len(re.findall(rb"HTTP/1.1 [0-9]{3} ", answer)) == 1
    assert site.visits == []
    assert (one.wait_told()[0].reason, one.told[0].allowed) == (EgressReason.BAD_REQUEST, False)


@pytest.mark.parametrize(
    "data",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET ftp://web.example.test/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET https://web.example.test/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET //web.example.test/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"get http://web.example.test/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://web.example.test/ HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET http://web.example.test/\r\n\r\n",
        b"\x16\x03\x01\x00\x05hello",
        b"\x00\xff" * 100 + b"\r\n\r\n",
        b"GET http://web.example.test/\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://web.example.test/ HTTP/1.1\r\nHost: a b\r\n\r\n",
        b"CONNECT http://web.example.test:80/ HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_what_is_no_request_to_a_proxy_is_refused(data: bytes, site: Website, one: Outlet) -> None:
    answer = one.say(data)
    assert answer.split(b" ")[1] in {b"400", b"403", b"505"}, answer
    assert site.visits == []


def test_absurd_heads_are_refused(site: Website, outlet: Outlets) -> None:
    one = outlet([f"web.example.test:{site.port}"], head_bytes=8192, head_fields=50)
    for lines in ([f"X-{n}: y" for n in range(60)], ["X: " + "y" * 20_000], [f"X-{n}: " + "y" * 1000 for n in range(20)]):
        assert one.say(head(site, *lines)).split(b" ")[1] in {b"400", b"431"}
    assert one.say(head(site, target="/" + "a" * 20_000)).split(b" ")[1] in {b"400", b"431"}
    assert site.visits == []
    assert one.say(head(site, *[f"X-{n}: y" for n in range(40)], "Connection: close")).split(b" ")[1] == b"200"


def test_folded_headers_are_one_line_to_the_host(site: Website, one: Outlet) -> None:
    one.say(head(site, "X-Folded: a", "\tTransfer-Encoding: chunked", "Connection: close"))
    assert site.visits[0].headers["x-folded"] == "a Transfer-Encoding: chunked"
    assert "transfer-encoding" not in site.visits[0].headers


def test_words_about_the_connection_are_not_passed_on(site: Website, one: Outlet) -> None:
    lines = [
        "Proxy-Authorization: Basic eDp5", "Proxy-Connection: keep-alive", "Keep-Alive: timeout=5", "TE: trailers", "Upgrade: websocket",
        "Connection: close, Upgrade, X-Hop", "X-Hop: 1", "X-Kept: 1", "Via: 1.1 mine", "Expect: 100-continue",
    ]  # fmt: skip
    one.say(head(site, *lines))
    assert set(site.visits[0].headers) == {"host", "x-kept", "via"}


def test_an_upgrade_that_nobody_asked_for_ends_the_connection(site: Website, one: Outlet) -> None:
    answer = one.say(head(site, "Connection: Upgrade", "Upgrade: websocket", target="/upgrade"))
    assert answer.split(b" ")[1] == b"502"
    assert b"frames" not in answer
    assert one.wait_told()[0].reason is EgressReason.BROKEN


def test_requests_one_after_the_other_are_each_judged(site: Website, one: Outlet) -> None:
    refused = b"GET http://web.example.org/ HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = one.say(head(site) + head(site, target="/bytes/3") + refused + head(site))
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.count(b"HTTP/1.1 403 ") == 1
    assert [visit.path for visit in site.visits] == ["/", "/bytes/3"]


def test_a_request_that_comes_slowly_is_given_up(site: Website, outlet: Outlets) -> None:
    one = outlet([f"web.example.test:{site.port}"], head_s=0.5)
    started = time.monotonic()
    with one.connect() as sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for byte in head(site, "X: " + "y" * 200):
            sock.sendall(bytes([byte]))
            time.sleep(0.02)
        read_all(sock)
    assert time.monotonic() - started < PATIENCE_S
    assert site.visits == []


def test_a_body_that_does_not_come_is_given_up(site: Website, outlet: Outlets) -> None:
    one = outlet([f"web.example.test:{site.port}"], idle_s=0.4)
    answer = one.say(head(site, "Content-Length: 100", method="POST") + b"some")
    assert answer.split(b" ")[1] == b"502"
    assert one.wait_told()[0].reason is EgressReason.BROKEN


def test_an_idle_connection_is_closed(outlet: Outlets) -> None:
    assert outlet(["*"], idle_s=0.3).say(b"") == b""
    started = time.monotonic()
    with outlet(["*"], lifetime_s=0.3).connect() as sock:
        assert read_all(sock) == b""
    assert time.monotonic() - started < PATIENCE_S


def test_a_body_of_any_size_costs_no_memory_and_ends_at_the_cap(site: Website, outlet: Outlets) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sink:
        port = sink.getsockname()[1]
        one = outlet([f"web.example.test:{site.port}", f"sink.example.test:{port}"], up=3_000_000)
        with one.connect() as sock:
            sock.sendall(f"POST http://sink.example.test:{port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000000\r\n\r\n".encode())
            peer, _ = sink.accept()
            reader = threading.Thread(target=read_all, args=(peer,), daemon=True)
            reader.start()
            with contextlib.suppress(OSError):
                for _ in range(200):
                    sock.sendall(b"x" * 65536)
        reader.join(60)
        peer.close()
    told = one.wait_told()[0]
    assert (told.reason, told.allowed) == (EgressReason.BYTES_LIMIT, True)
    assert told.bytes_up <= 3_000_000
    assert one.proxy.usage.bytes_up == 3_000_000
    refused = one.curl(f"http://web.example.test:{site.port}/")
    assert "all the bytes that it may" in refused.stdout
    assert one.told[1].reason is EgressReason.BYTES_LIMIT


def test_what_comes_down_is_capped_too(site: Website, secure_site: Website, outlet: Outlets) -> None:
    one = outlet([f"*.example.test:{site.port}", f"*.example.test:{secure_site.port}"], down=500_000)
    done = one.curl(
        "--insecure", f"https://other.example.test:{secure_site.port}/bytes/2000000", "-o", "/dev/null", "--write-out", "%{size_download}"
    )
    assert 0 < int(done.stdout) < 500_000
    assert (one.wait_told()[0].reason, one.told[0].method) == (EgressReason.BYTES_LIMIT, "CONNECT")
    assert "all the bytes that it may" in one.curl(f"http://web.example.test:{site.port}/bytes/10").stdout


def test_a_refusal_before_the_body_came_reaches_the_client(site: Website, one: Outlet) -> None:
    done = one.curl("-H", "Expect:", "--data-binary", "x" * 100_000, f"http://web.example.test:{site.port}/early")
    assert done.stdout == "too much"


def test_requests_and_connections_are_limited(site: Website, outlet: Outlets) -> None:
    one = outlet([f"web.example.test:{site.port}"], requests=3, connections=4, head_s=300)
    for expected in (b"200", b"200", b"200", b"429"):
        assert one.say(head(site, "Connection: close")).split(b" ")[1] == expected
    one.proxy.settle(60)  # one that is just ending takes the place of another
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(one.connect()) for _ in range(4)]
        for sock in held:
            sock.sendall(b"GET ")
        wait(lambda: len(one.proxy._threads) == 4)
        assert one.say(head(site)).startswith(b"HTTP/1.1 503 ")
    assert [told.reason for told in one.wait_told(5)[3:5]] == [EgressReason.REQUESTS_LIMIT, EgressReason.CONNECTIONS_LIMIT]
    wait(lambda: one.say(head(site)).startswith(b"HTTP/1.1 429 "))  # room again


@contextlib.contextmanager
def answering(data: bytes) -> Iterator[int]:
    """A host that says this to whoever comes, whatever was asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer, contextlib.suppress(OSError):
                    asked = b""
                    while b"\r\n\r\n" not in asked:  # what is left unread would reset the connection
                        asked += peer.recv(65536)
                    peer.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
)
def test_a_host_that_speaks_no_http(data: bytes, outlet: Outlets) -> None:
    with answering(data) as port:
        one = outlet([f"bad.example.test:{port}"])
        done = one.curl(f"http://bad.example.test:{port}/")
    assert "The host gave no whole answer" in done.stdout
    assert (one.wait_told()[0].reason, one.told[0].allowed) == (EgressReason.BROKEN, True)


def test_an_answer_that_breaks_off_is_not_made_whole(outlet: Outlets) -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart") as port:
        one = outlet([f"bad.example.test:{port}"], secrets=[api_secret(port)])
        done = one.curl(f"http://bad.example.test:{port}/")
    assert done.returncode == 18  # curl: the transfer ended with data missing
    assert one.wait_told()[0].reason is EgressReason.BROKEN


def test_an_answer_cannot_smuggle_a_second_one_with_the_secret(outlet: Outlets) -> None:
    data = f"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{VALUE}".encode()
    with answering(data) as port:
        one = outlet([f"api.example.test:{port}"], secrets=[api_secret(port, plain_http=True)])
        done = one.curl(f"http://api.example.test:{port}/1", f"http://api.example.test:{port}/2")
    assert VALUE not in done.stdout


def test_the_end_of_the_session_ends_everything(site: Website, outlet: Outlets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_JOIN_S", 2 * PATIENCE_S)  # how long it waits for threads that hang: none does
    descriptors, threads = sum(1 for _ in Path("/proc/self/fd").iterdir()), threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        one = outlet([f"*.example.test:{site.port}", f"*.example.test:{port}"])
        with one.connect() as waiting, one.connect() as tunnel, one.connect() as idle:
            waiting.sendall(f"GET http://a.example.test:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            tunnel.sendall(f"CONNECT b.example.test:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert tunnel.recv(1000).startswith(b"HTTP/1.1 200")
            peers = [silent.accept()[0] for _ in range(2)]
            tunnel.sendall(b"\x00raw")
            started = time.monotonic()
            one.proxy.close()
            one.proxy.close()
            assert time.monotonic() - started < PATIENCE_S
            assert not one.proxy.directory.exists()
            assert read_all(tunnel) == b""
            assert read_all(idle) == b""
            for peer in peers:
                read_all(peer)
                peer.close()
    assert {told.host for told in one.told} == {"a.example.test", "b.example.test"}
    wait(lambda: threading.active_count() <= threads + 1)  # the relay of this test
    wait(lambda: sum(1 for _ in Path("/proc/self/fd").iterdir()) <= descriptors + 3)


def test_one_sandbox_does_not_disturb_another(site: Website, outlet: Outlets) -> None:
    """A flood of connections in one session, and requests of another beside it."""
    bad, good = outlet(["*"], connections=8), outlet([f"web.example.test:{site.port}"])
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError), bad.connect() as sock:
                sock.sendall(b"GET http://127.0.0.1/ HTTP/1.1\r\nHost: x\r\n\r\n")
                sock.recv(10)

    threads = [threading.Thread(target=flood, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        answers = [good.say(head(site, "Connection: close")).split(b" ")[1] for _ in range(20)]
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert answers == [b"200"] * 20
    assert good.proxy.usage.refused == 0
    assert bad.proxy.usage.refused > 0
