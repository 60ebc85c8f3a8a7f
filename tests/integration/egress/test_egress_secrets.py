"""Secrets put into requests on their way out, and taken out of answers: the sandbox never sees one."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dualtrack.domain.egress import EgressReason
from dualtrack.egress.certificates import process_certificates
from dualtrack.testing.website import Website

from .conftest import VALUE, Outlet, api_secret, wait

Outlets = Callable[..., Outlet]


def bound(secure_site: Website, outlet: Outlets, *more: str) -> Outlet:
    return outlet([f"*.example.test:{secure_site.port}", *more], secrets=[api_secret(secure_site.port)])


def everything(one: Outlet, *outputs: str) -> str:
    """All that a sandbox could look at."""
    files = [path.read_text() for path in one.proxy.directory.iterdir() if path.is_file()]
    return "".join((*outputs, *files, json.dumps(one.environment)))


def test_curl_sends_the_value_and_never_sees_it(secure_site: Website, outlet: Outlets) -> None:
    one = bound(secure_site, outlet)
    url = f"https://api.example.test:{secure_site.port}/echo"
    placeholder = one.environment["API_TOKEN"]
    done = one.curl("--include", "-H", f"Authorization: Bearer {placeholder}", url)
    assert secure_site.visits[0].headers["authorization"] == f"Bearer {VALUE}"
    assert secure_site.visits[0].headers["accept-encoding"] == "identity"
    assert f'"Authorization": "Bearer {placeholder}"' in done.stdout, done.stderr
    assert f"x-seen: Bearer {placeholder}".lower() in done.stdout.lower()
    assert VALUE not in everything(one, done.stdout, done.stderr)
    (told,) = one.wait_told()
    assert (told.host, told.method, told.status, told.secrets, told.reason) == ("api.example.test", "GET", 200, ("api",), None)
    assert VALUE not in str(told.data)
    assert placeholder not in str(told.data)


def test_basic_authentication_by_curl_and_by_python(secure_site: Website, outlet: Outlets) -> None:
    one = bound(secure_site, outlet)
    url = f"https://api.example.test:{secure_site.port}/echo"
    blob = base64.b64encode(f"user:{VALUE}".encode()).decode()
    done = one.curl("--user", f"user:{one.environment['API_TOKEN']}", url)
    assert secure_site.visits[0].headers["authorization"] == f"Basic {blob}"
    assert blob not in done.stdout
    source = (
        "import os, urllib.request\n"
        f"request = urllib.request.Request({url!r}, data=b'body', headers={{'Authorization': 'token ' + os.environ['API_TOKEN']}})\n"
        "print(urllib.request.urlopen(request).read().decode())"
    )
    ran = one.python(source)
    assert secure_site.visits[1].headers["authorization"] == f"token {VALUE}", ran.stderr
    assert secure_site.visits[1].body == b"body"
    assert '"body": "body"' in ran.stdout
    assert VALUE not in everything(one, done.stdout, ran.stdout, ran.stderr)


def test_git_sends_the_value(secure_site: Website, outlet: Outlets, tmp_path: Path) -> None:
    one = bound(secure_site, outlet)
    url = f"https://x-access-token:{one.environment['API_TOKEN']}@api.example.test:{secure_site.port}/repo.git"
    environment = one.environment | {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(tmp_path)}
    subprocess.run(["git", "ls-remote", url], env=environment, capture_output=True, timeout=90, check=False)
    assert secure_site.visits, "git did not come through"
    header = secure_site.visits[0].headers.get("authorization", "")
    if header:  # some versions ask without it first, and this site never says 401
        assert base64.b64decode(header.removeprefix("Basic ")) == f"x-access-token:{VALUE}".encode()


def test_an_echo_in_pieces_is_found(secure_site: Website, outlet: Outlets) -> None:
    one = bound(secure_site, outlet)
    done = one.curl("-H", f"Authorization: Bearer {one.environment['API_TOKEN']}", f"https://api.example.test:{secure_site.port}/drip")
    assert done.stdout == f"Bearer {one.environment['API_TOKEN']}"


def test_a_compressed_answer_is_not_handed_on(secure_site: Website, outlet: Outlets) -> None:
    one = bound(secure_site, outlet)
    done = one.curl("-H", f"Authorization: {one.environment['API_TOKEN']}", f"https://api.example.test:{secure_site.port}/gzip")
    assert "compressed its answer" in done.stdout
    assert (one.wait_told()[0].reason, one.told[0].allowed, one.told[0].status) == (EgressReason.UNREADABLE_ANSWER, True, 200)


def test_parts_of_an_answer_are_not_asked_for(secure_site: Website, outlet: Outlets) -> None:
    one = bound(secure_site, outlet)
    one.curl("--range", "0-5", "-H", "If-Range: x", f"https://api.example.test:{secure_site.port}/echo")
    assert not {"range", "if-range"} & set(secure_site.visits[0].headers)


@pytest.mark.parametrize(
    "arguments",
    [
        ["-H", "X-Other: {token}", "{url}/"],
        ["-H", "Cookie: {token}", "{url}/"],
        ["{url}/?token={token}"],
        ["{url}/{token}"],
        ["-H", "Authorization: Bearer dualtrack-secret-api-00000000000000000000000000000000", "{url}/"],
    ],
)
def test_in_another_place_the_placeholder_is_refused(arguments: list[str], secure_site: Website, outlet: Outlets) -> None:
    one = bound(secure_site, outlet)
    url = f"https://api.example.test:{secure_site.port}"
    done = one.curl(*(text.format(url=url, token=one.environment["API_TOKEN"]) for text in arguments))
    assert "dualtrack egress proxy: " in done.stdout
    assert "placeholder" in done.stdout or "not put into the header" in done.stdout
    assert secure_site.visits == []
    assert (one.wait_told()[0].reason, one.told[0].allowed) == (EgressReason.SECRET_NOT_BOUND, False)


def test_another_host_never_gets_the_value(site: Website, secure_site: Website, outlet: Outlets) -> None:
    one = bound(secure_site, outlet, f"*.example.test:{site.port}")
    token = one.environment["API_TOKEN"]
    plain = one.curl("-H", f"Authorization: Bearer {token}", f"http://api.example.test:{site.port}/echo")
    assert "is not bound to" in plain.stdout
    assert site.visits == []
    # A tunnel that nobody looks into carries the placeholder as it is: it is of no use to anybody.
    one.curl("--insecure", "-H", f"Authorization: Bearer {token}", f"https://other.example.test:{secure_site.port}/echo")
    assert secure_site.visits[0].headers["authorization"] == f"Bearer {token}"
    assert [told.reason for told in one.wait_told(2)] == [EgressReason.SECRET_NOT_BOUND, None]


def test_a_tunnel_for_a_bound_host_does_not_serve_another(secure_site: Website, outlet: Outlets) -> None:
    one = bound(secure_site, outlet)
    url = f"https://api.example.test:{secure_site.port}/"
    done = one.curl("-H", f"Host: other.example.test:{secure_site.port}", "-H", f"Authorization: {one.environment['API_TOKEN']}", url)
    assert f"This tunnel leads to api.example.test:{secure_site.port} and nowhere else" in done.stdout
    assert (one.wait_told()[0].reason, secure_site.visits) == (EgressReason.HOST_MISMATCH, [])


def test_many_requests_go_over_one_connection(secure_site: Website, outlet: Outlets) -> None:
    one = bound(secure_site, outlet)
    url = f"https://api.example.test:{secure_site.port}"
    done = one.curl("-v", f"{url}/status/204", f"{url}/echo", f"{url}/status/304", "-d", "x=1", f"{url}/bytes/200000", "-o", "/dev/null")
    assert [visit.path for visit in secure_site.visits] == ["/status/204", "/echo", "/status/304", "/bytes/200000"]
    assert done.stderr.count("Re-using existing connection") == 3 or done.stderr.count("Re-using") == 3, done.stderr
    assert [told.status for told in one.wait_told(4)] == [204, 200, 304, 200]
    head = one.curl("--head", f"{url}/bytes/1234")
    assert "Content-Length: 1234" in head.stdout or "content-length: 1234" in head.stdout


@pytest.mark.parametrize("asks", [True, False])
def test_a_client_that_goes_without_a_word_is_told_of_once(asks: bool, secure_site: Website, outlet: Outlets) -> None:
    one = bound(secure_site, outlet)
    trust = ssl.create_default_context(cafile=str(one.proxy.directory / "ca.pem"))
    sock = one.connect()
    sock.sendall(f"CONNECT api.example.test:{secure_site.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
    secured = trust.wrap_socket(sock, server_hostname="api.example.test")
    if asks:
        secured.sendall(f"GET / HTTP/1.1\r\nHost: api.example.test:{secure_site.port}\r\n\r\n".encode())
        assert secured.recv(65536).startswith(b"HTTP/1.1 200 ")
    socket.socket(fileno=secured.detach()).close()  # without TLS's farewell
    one.wait_told()
    one.proxy.settle(60)
    assert [(told.method, told.allowed, told.reason) for told in one.told] == [("GET" if asks else "CONNECT", True, None)]


def test_a_host_that_cannot_be_verified_gets_nothing(outlet: Outlets) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    import trustme

    trustme.CA().issue_cert("api.example.test").configure_cert(context)
    with Website(context) as stranger:
        one = outlet([f"api.example.test:{stranger.port}"], secrets=[api_secret(stranger.port)])
        url = f"https://api.example.test:{stranger.port}/"
        done = one.curl("-H", f"Authorization: {one.environment['API_TOKEN']}", url)
        assert "There is no TLS with" in done.stdout
        assert stranger.visits == []
        assert (one.wait_told()[0].reason, one.told[0].bytes_up) == (EgressReason.UNREACHABLE, 0)


def test_only_sandboxes_trust_the_proxys_authority(secure_site: Website, outlet: Outlets) -> None:
    one = bound(secure_site, outlet)
    own = {name: value for name, value in one.environment.items() if "PROXY" in name or "proxy" in name or name in {"PATH", "HOME"}}
    argv = ["curl", "--silent", "--show-error", "--max-time", "60", f"https://api.example.test:{secure_site.port}/"]
    done = subprocess.run(argv, env=own, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 60, done  # not verified
    assert secure_site.visits == []
    assert "PRIVATE KEY" not in everything(one)
    assert process_certificates().bundle.count(b"BEGIN CERTIFICATE") == (one.proxy.directory / "ca.pem").read_text().count(
        "BEGIN CERTIFICATE"
    )


def test_plain_http_where_the_operator_says_so(site: Website, outlet: Outlets) -> None:
    one = outlet([f"api.example.test:{site.port}"], secrets=[api_secret(site.port, headers=("x-api-key",), plain_http=True)])
    done = one.curl("-H", f"X-Api-Key: {one.environment['API_TOKEN']}", f"http://api.example.test:{site.port}/echo")
    assert site.visits[0].headers["x-api-key"] == VALUE
    assert VALUE not in done.stdout
    assert one.environment["API_TOKEN"] in done.stdout
    tunnelled = one.curl("--proxytunnel", "-H", f"X-Api-Key: {one.environment['API_TOKEN']}", f"http://api.example.test:{site.port}/echo")
    assert site.visits[1].headers["x-api-key"] == VALUE
    assert VALUE not in tunnelled.stdout


def test_an_unbounded_stream_is_handed_on_as_it_comes(outlet: Outlets) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        one = outlet([f"api.example.test:{port}"], secrets=[api_secret(port, plain_http=True)])
        got: list[str] = []
        url = f"http://api.example.test:{port}/"
        argv = ["curl", "--silent", "--no-buffer", "--max-time", "60", url]
        with subprocess.Popen(argv, env=one.environment, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            reader = threading.Thread(target=lambda: got.extend(iter(client.stdout.readline, "")), daemon=True)  # type: ignore[union-attr]
            reader.start()
            peer, _ = server.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(b"HTTP/1.1 200 OK\r\n\r\ndata: one\n")
                wait(lambda: got == ["data: one\n"])
                peer.sendall(f"data: {VALUE[:10]}".encode())
                peer.sendall(f"{VALUE[10:]}\n".encode())
                wait(lambda: len(got) == 2)
            client.wait(60)
            reader.join(60)
        assert got[1] == f"data: {one.environment['API_TOKEN']}\n"
