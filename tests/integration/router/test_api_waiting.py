"""Half-sent requests: the key is judged before the body, nothing is waited for without end, and who still sends reads the answer."""

from __future__ import annotations

import socket
import time

import httpx
import pytest

from router import body, connection

from .conftest import Api

LONG_S = 60


def exchange(api: Api, sent: str, *, silence_s: float = LONG_S) -> tuple[bytes, bool]:
    """What comes back for this much of a request, and whether the connection was closed after it (else: silence for so long)."""
    with socket.create_connection(("127.0.0.1", api.server.port), timeout=LONG_S) as client:
        client.sendall(sent.encode())
        answer = b""
        while True:
            try:
                piece = client.recv(65536)
            except TimeoutError:
                return answer, False
            if not piece:
                return answer, True
            answer += piece
            client.settimeout(silence_s)


def head(method: str, path: str, *fields: str) -> str:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: x", *fields, "", ""))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "INCOMPLETE_S", 0.3)
    monkeypatch.setattr(body, "SILENCE_S", 0.3)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("sent", ["", "\r\n", "GET /healthz HTTP/1.1\r\n", "GET /healthz HTTP/1.1\r\nHost: x\r\n"])
def test_a_request_that_is_never_complete_is_cut(api: Api, sent: str) -> None:
    assert exchange(api, sent) == (b"", True)


@pytest.mark.usefixtures("quick")
def test_a_second_request_that_is_never_complete_is_cut_too(api: Api) -> None:
    with socket.create_connection(("127.0.0.1", api.server.port), timeout=LONG_S) as client:  # uvicorn itself waits without end
        client.sendall(head("GET", "/healthz").encode())
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(b"GET /healthz")
        assert client.recv(65536) == b""


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("size", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v1/jobs", "application/json"), ("/v1/chat/completions", "application/json"), ("/v1/files", "multipart/form-data; boundary=b")],
)
def test_a_body_that_falls_silent_is_408(api: Api, key: str, path: str, kind: str, size: str) -> None:
    begun = "1\r\n{\r\n" if "chunked" in size else "{"
    begun = begun.replace("{", "-") if "form" in kind else begun
    answer, closed = exchange(api, head("POST", path, f"Authorization: Bearer {key}", f"Content-Type: {kind}", size) + begun)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"request_timeout" in answer
    assert closed


def test_a_route_that_takes_longer_than_the_deadline_is_left_alone(api: Api, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "INCOMPLETE_S", 1.0)  # a busy client needs a while for a whole request
    monkeypatch.setattr(body, "SILENCE_S", 1.0)
    with api.client(key) as client:
        job_id = client.post("/v1/jobs", json={"instructions": "x"}).json()["id"]
        with client.stream("GET", f"/v1/jobs/{job_id}/events?stream=true") as stream:
            lines = stream.iter_lines()
            assert "id: 1" in (next(lines), next(lines), next(lines))
            until = time.monotonic() + 3
            while time.monotonic() < until:  # three deadlines, while requests go on beside it
                assert client.get("/healthz").status_code == 200
            client.post(f"/v1/jobs/{job_id}/cancel")
            assert any("job.cancelled" in line for line in lines)


@pytest.mark.parametrize("authorization", ["X-None: x", "Authorization: Bearer dt_wrong"])
@pytest.mark.parametrize("path", ["/v1/files", "/v1/jobs", "/v1/chat/completions"])
@pytest.mark.parametrize("size", ["Content-Length: 1000000", "Content-Length: 99999999999", "Transfer-Encoding: chunked"])
def test_the_key_is_judged_before_the_body(api: Api, path: str, authorization: str, size: str) -> None:
    began = time.monotonic()
    answer, _ = exchange(api, head("POST", path, authorization, "Content-Type: application/json", size), silence_s=1)
    assert answer.startswith(b"HTTP/1.1 401")
    assert time.monotonic() - began < 2 / 3 * body.SILENCE_S


def test_refusals_are_counted_under_their_route(api: Api) -> None:
    exchange(api, head("POST", "/v1/files", "Content-Length: 5"), silence_s=1)
    with api.client(None) as client:
        assert 'method="POST",route="/v1/files",status="401"' in client.get("/metrics").text


@pytest.mark.parametrize("path", ["/v1/files", "/v1/jobs"])
@pytest.mark.parametrize("size", ["99999999999", "9" * 400])
def test_a_length_beyond_all_limits_is_refused_at_once(api: Api, key: str, path: str, size: str) -> None:
    fields = (f"Authorization: Bearer {key}", "Content-Type: multipart/form-data; boundary=b", f"Content-Length: {size}")
    answer, closed = exchange(api, head("POST", path, *fields))
    assert answer.startswith(b"HTTP/1.1 413" if len(size) < 20 else b"HTTP/1.1 400")  # the parser knows no such number
    assert closed


def test_who_still_sends_reads_why_it_was_refused_and_goes_on(api: Api) -> None:
    with api.client("dt_wrong") as client:
        for _ in range(2):
            answer = client.post("/v1/chat/completions", content=b"x" * 50_000_000, headers={"content-type": "application/json"})
            assert answer.status_code == 401


@pytest.mark.usefixtures("quick")
def test_who_sends_on_after_the_answer_is_cut_in_the_end(api: Api) -> None:
    with socket.create_connection(("127.0.0.1", api.server.port), timeout=LONG_S) as client:
        client.sendall(head("POST", "/v1/files", "Content-Length: 1000000").encode())
        assert client.recv(65536).startswith(b"HTTP/1.1 401")
        until = time.monotonic() + LONG_S
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while time.monotonic() < until:
                client.sendall(b"x")


def test_an_answered_client_may_ask_again_on_its_connection(api: Api) -> None:
    with httpx.Client(base_url=api.url) as client:
        for _ in range(20):
            assert client.get("/healthz").status_code == 200
