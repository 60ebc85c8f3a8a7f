"""What a sandbox may reach: judged by name and port, resolved by the proxy, connected to the address that was checked."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from dualtrack.domain.egress import EgressReason, EgressUsage
from dualtrack.net.addresses import AllowList
from dualtrack.testing.website import Website

from .conftest import Outlet, read_all, wait

Outlets = Callable[..., Outlet]


def test_a_request_to_an_allowed_host_goes_through_and_is_told_of(site: Website, outlet: Outlets) -> None:
    one = outlet([f"web.example.test:{site.port}"])
    done = one.curl(f"http://web.example.test:{site.port}/echo?token=of-the-user", "-d", "x=1")
    assert '"body": "x=1"' in done.stdout
    assert site.visits[0].headers["host"] == f"web.example.test:{site.port}"
    (told,) = one.wait_told()
    assert (told.host, told.port, told.method, told.allowed, told.reason, told.status) == (
        "web.example.test", site.port, "POST", True, None, 200,
    )  # fmt: skip
    assert told.bytes_up > 100
    assert told.bytes_down > len(done.stdout)
    assert "of-the-user" not in str(told.data)
    assert "/echo" not in str(told.data)
    assert one.proxy.usage == EgressUsage(1, 0, told.bytes_up, told.bytes_down)


def test_a_tunnel_to_an_allowed_host_is_blind_and_told_of(
    secure_site: Website, outlet: Outlets, authority: trustme.CA, tmp_path: Path
) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "test-ca.pem"))
    one = outlet([f"*.example.test:{secure_site.port}"])
    done = one.curl("--cacert", str(tmp_path / "test-ca.pem"), f"https://api.example.test:{secure_site.port}/echo")
    assert '"headers"' in done.stdout, done.stderr
    (told,) = one.wait_told()
    assert (told.host, told.method, told.allowed, told.reason, told.status) == ("api.example.test", "CONNECT", True, None, None)
    assert told.bytes_up > 200
    assert told.bytes_down > 500
    assert "SSL_CERT_FILE" not in one.proxy.environment


@pytest.mark.parametrize("url", ["http://other.example.test:{port}/", "http://web.example.test:1/", "http://web.example.test.evil:{port}/"])
def test_another_host_or_port_is_refused_with_a_reason_and_never_looked_up(
    url: str, site: Website, outlet: Outlets, names: dict[str, list[str]]
) -> None:
    one = outlet([f"web.example.test:{site.port}"])
    done = one.curl(url.format(port=site.port), "--write-out", "%{http_code}")
    assert done.stdout.endswith("403")
    assert "not on this agent's allow-list" in done.stdout
    (told,) = one.wait_told()
    assert (told.allowed, told.reason, told.bytes_up) == (False, EgressReason.NOT_ALLOWED, 0)
    assert names[""] == []
    assert site.visits == []


@pytest.mark.parametrize(
    "target",
    [
        "127.0.0.1:{port}",
        "127.1:{port}",
        "0x7f.1:{port}",
        "0x7f000001:{port}",
        "2130706433:{port}",
        "0177.0.0.1:{port}",
        "[::ffff:127.0.0.1]:{port}",
        "[::1]:{port}",
        "localhost:{port}",
        "169.254.169.254:80",
        "user@web.example.test:{port}",
        "web.example.test@127.0.0.1:{port}",
        "web.example.test:{port}@127.0.0.1:{port}",
        "web.example.test",
        "web.example.test:",
        "web.example.test:0",
        "web.example.test:99999",
        "web.example.test%00.evil:{port}",
        "%77eb.example.test:{port}",
        "web.example.test/:{port}",
        "*:{port}",
        "",
        "/",
        "web.example.test..:{port}",
    ],
)
def test_no_odd_spelling_gets_anywhere(target: str, site: Website, outlet: Outlets) -> None:
    one = outlet([f"web.example.test:{site.port}", "*"])
    answer = one.say(f"CONNECT {target.format(port=site.port)} HTTP/1.1\r\nHost: web.example.test\r\n\r\n".encode())
    assert answer.split(b" ")[1] in {b"400", b"403"}, answer
    absolute = one.say(f"GET http://{target.format(port=site.port)}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    if not target.startswith(("web.example.test/", "web.example.test:{port}@")) and target != "web.example.test":  # a URL with port 80
        assert absolute.split(b" ")[1] in {b"400", b"403"}, absolute
    assert site.visits == []
    assert not any(told.allowed for told in one.told if told.host != "web.example.test")


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "100.100.100.200", "0.0.0.0"])
def test_an_allowed_name_that_leads_inside_is_refused(address: str, outlet: Outlets, names: dict[str, list[str]]) -> None:
    names["inside.example.test"] = [address]
    one = outlet(["*"], private=AllowList())
    done = one.curl("http://inside.example.test/")
    assert "not on the public internet; the operator may allow it (DUALTRACK_EGRESS__PRIVATE)" in done.stdout
    assert one.curl("https://inside.example.test/").returncode != 0
    assert [told.reason for told in one.wait_told(2)] == [EgressReason.PRIVATE_ADDRESS] * 2


def test_a_named_private_host_may_be_allowed(site: Website, outlet: Outlets) -> None:
    one = outlet(["*.example.test:" + str(site.port)], private=AllowList.parse([f"mirror.example.test:{site.port}"]))
    assert one.curl(f"http://mirror.example.test:{site.port}/").stdout == "hello"
    assert "not on the public internet" in one.curl(f"http://other.example.test:{site.port}/").stdout


def test_an_address_may_be_named(site: Website, outlet: Outlets) -> None:
    assert outlet([f"127.0.0.1:{site.port}"]).curl(f"http://127.0.0.1:{site.port}/").stdout == "hello"
    assert "allow-list" in outlet([f"*:{site.port}"]).curl(f"http://127.0.0.1:{site.port}/").stdout


def test_a_name_that_changes_its_address_gains_nothing(
    site: Website, outlet: Outlets, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[tuple[str, int]] = []
    real = socket.socket.connect

    def connect(sock: socket.socket, address: tuple[str, int]) -> None:
        if sock.family == socket.AF_INET and address[0] == "93.184.216.34":
            connected.append(address)
            names["rebinding.example.test"] = ["127.0.0.1"]
            address = ("127.0.0.1", site.port)
        real(sock, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    names["rebinding.example.test"] = ["93.184.216.34"]
    one = outlet([f"rebinding.example.test:{site.port}"], private=AllowList())
    url = f"http://rebinding.example.test:{site.port}/"
    assert one.curl(url).stdout == "hello"
    assert connected == [("93.184.216.34", site.port)]
    assert names[""] == ["rebinding.example.test"]
    assert "not on the public internet" in one.curl(url).stdout


def test_a_redirect_is_a_request_like_any_other(site: Website, outlet: Outlets) -> None:
    one = outlet([f"web.example.test:{site.port}"])
    done = one.curl("--location", f"http://web.example.test:{site.port}/redirect?http://internal.example.test:{site.port}/secret")
    assert "internal.example.test" in done.stdout
    assert "not on this agent's allow-list" in done.stdout
    assert [visit.path.partition("?")[0] for visit in site.visits] == ["/redirect"]
    assert [(told.host, told.allowed) for told in one.wait_told(2)] == [("web.example.test", True), ("internal.example.test", False)]


def test_a_host_that_is_not_there(outlet: Outlets, names: dict[str, list[str]]) -> None:
    names["gone.example.test"] = []
    one = outlet(["*"])
    assert "gone.example.test is no host that can be found" in one.curl("http://gone.example.test/").stdout
    assert (one.wait_told()[0].allowed, one.told[0].reason) == (True, EgressReason.UNREACHABLE)


def tls_hello(name: str | None) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("name", ["other.example.test", None, "api.example.test.evil"])
def test_the_name_in_tls_must_be_the_one_of_the_tunnel(name: str | None, secure_site: Website, outlet: Outlets) -> None:
    one = outlet([f"api.example.test:{secure_site.port}"])
    with one.connect() as sock:
        sock.sendall(f"CONNECT api.example.test:{secure_site.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        for byte in tls_hello(name)[:-1]:  # however it comes
            sock.sendall(bytes([byte]))
        sock.sendall(tls_hello(name)[-1:])
        assert read_all(sock) == b""
    assert (one.wait_told()[0].allowed, one.told[0].reason, one.told[0].bytes_up) == (False, EgressReason.HOST_MISMATCH, 0)


def test_other_protocols_go_through_ports_of_their_own(outlet: Outlets, names: dict[str, list[str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        one = outlet([f"git.example.test:{port}"])
        with one.connect() as sock:
            sock.sendall(f"CONNECT git.example.test:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            peer, _ = server.accept()
            with peer:
                assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
                peer.sendall(b"SSH-2.0-server\r\n")  # the host speaks first
                assert sock.recv(65536) == b"SSH-2.0-server\r\n"
                sock.sendall(b"SSH-2.0-client\r\n")
                assert peer.recv(65536) == b"SSH-2.0-client\r\n"
                sock.shutdown(socket.SHUT_WR)
                assert peer.recv(65536) == b""
                peer.sendall(b"the end")  # half closed: the other half goes on
        wait(lambda: bool(one.told))
        assert (one.told[0].allowed, one.told[0].bytes_up) == (True, 16)


@pytest.mark.parametrize(
    ("port", "first"),
    [(443, b"GET / HTTP/1.1\r\n\r\n"), (443, b"SSH-2.0-x\r\n"), (80, b"SSH-2.0-x\r\n"), (443, b"\x16\x03\x01" + b"junk" * 40)],
)
def test_ports_of_the_web_are_for_the_web(port: int, first: bytes, outlet: Outlets, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket.connect
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = server.getsockname()

        def connect(sock: socket.socket, address: tuple[str, int]) -> None:
            real(sock, there if address == ("127.0.0.1", port) else address)

        monkeypatch.setattr(socket.socket, "connect", connect)
        one = outlet(["web.example.test"])
        with one.connect() as sock:
            sock.sendall(f"CONNECT web.example.test:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
            sock.sendall(first)
            assert read_all(sock) == b""
        assert (one.wait_told()[0].allowed, one.told[0].reason) == (False, EgressReason.NOT_TLS)
