"""The tools of the fault matrix do what they say: the proxy breaks what is behind it, the witness writes everything down."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from dualtrack.testing.chaos.rig import wrong_clock
from dualtrack.testing.servers.process import ServerProcess
from dualtrack.testing.tcp_proxy import TcpProxy
from dualtrack.testing.witness import Effect, read


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(b"there")

    def do_PUT(self) -> None:
        self._answer(self.rfile.read(int(self.headers["content-length"])))

    def _answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with TcpProxy(server.server_address[1]) as running:
            yield running
        server.shutdown()
        thread.join()


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{proxy.port}", trust_env=False, timeout=60) as opened:
        yield opened


def test_it_passes_everything_on_both_ways(client: httpx.Client) -> None:
    assert client.get("/").text == "there"
    big = os.urandom(3_000_000)
    assert client.put("/", content=big).content == big


def test_it_refuses_and_is_back_at_the_same_port(proxy: TcpProxy, client: httpx.Client) -> None:
    client.get("/")
    proxy.refuse()
    with pytest.raises(httpx.TransportError):
        client.get("/")
    proxy.allow()
    assert client.get("/").text == "there"


def test_a_cut_connection_is_gone_and_a_new_one_is_welcome(proxy: TcpProxy, client: httpx.Client) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        proxy.cut()
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1000) in {b"", b"there"}
            assert connection.recv(1000) == b""
    assert client.get("/").text == "there"


def test_it_is_slow_when_told(proxy: TcpProxy, client: httpx.Client) -> None:
    proxy.delay_s = 0.2
    began = time.monotonic()
    client.get("/")
    assert time.monotonic() - began >= 0.4
    proxy.delay_s = 0
    assert client.get("/").text == "there"


def test_it_falls_silent_when_told_and_refuses_nobody(proxy: TcpProxy, client: httpx.Client) -> None:
    client.get("/")
    proxy.silent = True
    with pytest.raises(httpx.ReadTimeout):
        client.get("/", timeout=0.2)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        proxy.silent = False
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    assert client.get("/").text == "there"


def test_it_answers_writes_like_a_full_disk_and_still_reads(proxy: TcpProxy, client: httpx.Client) -> None:
    proxy.refuse_writes = True
    assert client.put("/", content=b"x").status_code == 507
    assert client.get("/").text == "there"
    proxy.refuse_writes = False
    assert client.put("/", content=b"x").text == "x"


def test_a_refused_write_is_answered_although_its_body_comes_late(proxy: TcpProxy) -> None:
    proxy.refuse_writes = True
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as connection:
        connection.sendall(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n")
        answer = connection.recv(1000)
        connection.sendall(bytes(300_000))
        while data := connection.recv(1000):
            answer += data
    assert answer.startswith(b"HTTP/1.1 507 ")
    assert answer.endswith(b"</Error>")


def test_the_witness_writes_every_call_down_before_it_answers(tmp_path: Path) -> None:
    log, output = tmp_path / "calls", tmp_path / "output"
    argv = [sys.executable, "-m", "dualtrack.testing.witness", "--log", str(log)]
    process = ServerProcess("witness", argv, log=output, env=os.environ, cwd=tmp_path)
    try:
        process.wait_until(lambda: b"\n" in output.read_bytes(), timeout_s=60)
        url = json.loads(output.read_text())["url"]
        for key in ("one", "two"):
            httpx.post(
                f"{url}/effects/paid", headers={"idempotency-key": key}, content=b"{}", trust_env=False, timeout=60
            ).raise_for_status()
        httpx.post(f"{url}/hooks/done", headers={"webhook-id": "msg_1"}, trust_env=False, timeout=60).raise_for_status()
        assert httpx.post(f"{url}/elsewhere", trust_env=False, timeout=60).status_code == 404
        assert read(log) == [Effect("paid", "one"), Effect("paid", "two"), Effect("hook:done", "msg_1")]
    finally:
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="libfaketime is preloaded, which only Linux has")
def test_a_process_can_be_given_a_wrong_clock(tmp_path: Path) -> None:
    output = tmp_path / "output"
    code = "import time, datetime; print(time.time(), datetime.datetime.now().timestamp(), time.monotonic(), flush=True); time.sleep(60)"
    process = ServerProcess("clock", [sys.executable, "-c", code], log=output, env=os.environ | wrong_clock(), cwd=tmp_path)
    try:
        process.wait_until(lambda: b"\n" in output.read_bytes(), timeout_s=60)
        shown, local, steady = map(float, output.read_text().split())
        assert shown - time.time() == pytest.approx(600, abs=30)
        assert local - time.time() == pytest.approx(600, abs=30)
        assert time.monotonic() - steady == pytest.approx(0, abs=30)
    finally:
        process.kill()
