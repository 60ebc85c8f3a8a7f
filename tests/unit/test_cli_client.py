"""HTTP: errors, pages, retries, and a key that stays at home."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from cli.client import Client, ConnectionBroken
from cli.credentials import Credentials
from cli.outcome import ApiError, Unreachable


def _client(answer: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client(Credentials("http://platform:8080", "dt_secret"), version="1.2", transport=httpx.MockTransport(answer))


def test_the_apis_error_is_kept() -> None:
    error = {"message": "No such job.", "type": "invalid_request_error", "param": "id", "code": "not_found"}
    with pytest.raises(ApiError) as caught:
        _client(lambda _: httpx.Response(404, json={"error": error})).get("/v1/jobs/x")
    assert caught.value.as_json() == {"error": error}
    assert caught.value.status == 404


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"error": "x"}', b'{"error": {}}', b"[" * 50_000, b"x" * 200_000])
def test_an_error_in_another_shape(body: bytes) -> None:
    with pytest.raises(ApiError, match="HTTP 502") as caught:
        _client(lambda _: httpx.Response(502, content=body)).get("/v1/jobs/x")
    assert caught.value.code == "http_502"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"", b"\xff"])
def test_an_answer_that_is_no_object(body: bytes) -> None:
    with pytest.raises(ApiError, match="no JSON object"):
        _client(lambda _: httpx.Response(200, content=body)).get("/v1/models")


def test_a_broken_connection_is_tried_again_only_where_that_is_safe() -> None:
    keys: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers.get("idempotency-key"))
        raise httpx.RemoteProtocolError("cut")

    client = _client(answer)
    with pytest.raises(ConnectionBroken):
        client.get("/v1/models")
    assert len(keys) == 3
    with pytest.raises(ConnectionBroken):
        client.post("/v1/jobs", {}, idempotency_key="k")
    assert keys[3:] == ["k", "k", "k"]
    with pytest.raises(ConnectionBroken):
        client.post("/v1/jobs", {})
    assert len(keys) == 7


def test_nobody_there_is_told_at_once() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        raise httpx.ConnectError("refused")

    with pytest.raises(Unreachable, match="http://platform:8080"):
        _client(answer).get("/v1/models")
    assert len(asked) == 1


def _list_of(total: int, asked: list[dict[str, str]]) -> Callable[[httpx.Request], httpx.Response]:
    def answer(request: httpx.Request) -> httpx.Response:
        params = dict(request.url.params)
        asked.append(params)
        start, limit = int(params.get("after", 0)), int(params["limit"])
        rows = [{"id": n} for n in range(start + 1, min(start + limit, total) + 1)]
        more = start + limit < total
        return httpx.Response(200, json={"object": "list", "data": rows, "has_more": more, "next_cursor": rows[-1]["id"] if more else None})

    return answer


def test_pages() -> None:
    asked: list[dict[str, str]] = []
    client = _client(_list_of(250, asked))
    found = client.pages("/v1/jobs", [("status", "running")])
    assert [row["id"] for row in found["data"]] == list(range(1, 251))
    assert (found["has_more"], found["next_cursor"]) == (False, None)
    assert [params.get("after") for params in asked] == [None, "100", "200"]
    assert {params["status"] for params in asked} == {"running"}
    found = client.pages("/v1/jobs", limit=120)
    assert (len(found["data"]), found["has_more"], found["next_cursor"]) == (120, True, 120)
    assert asked[-1]["limit"] == "20"


def test_a_list_that_never_ends_is_left() -> None:
    page = {"data": [{"id": 1}], "has_more": True, "next_cursor": "same"}
    assert len(_client(lambda _: httpx.Response(200, json=page)).pages("/v1/jobs")["data"]) == 2


def test_the_key_does_not_follow_a_redirect_elsewhere() -> None:
    seen: list[tuple[str, str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((str(request.url), request.headers.get("authorization")))
        if request.url.host == "platform" and request.url.path.startswith("/v1"):
            return httpx.Response(307, headers={"location": "/moved"})
        if request.url.path == "/moved":
            return httpx.Response(302, headers={"location": "http://s3:9000/b/k?X-Amz-Signature=1"})
        return httpx.Response(200, content=b"bytes")

    with _client(answer).download("/v1/artifacts/art_1/content") as response:
        assert response.read() == b"bytes"
    assert seen == [
        ("http://platform:8080/v1/artifacts/art_1/content", "Bearer dt_secret"),
        ("http://platform:8080/moved", "Bearer dt_secret"),
        ("http://s3:9000/b/k?X-Amz-Signature=1", None),
    ]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (httpx.ConnectError("refused"), r"^Can't reach http://s3:9000 \(refused\)\. The platform redirects downloads there .*OBJECTS_URL"),
        (httpx.ReadTimeout("late"), r"^http://s3:9000 did not answer in time\.$"),
        (httpx.ReadError("cut"), r"^The connection to http://s3:9000 broke: cut\.$"),
    ],
)
def test_a_download_that_fails_where_it_was_redirected_to_names_that_server(fault: httpx.TransportError, says: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "s3":
            raise fault
        return httpx.Response(302, headers={"location": "http://s3:9000/b/k?X-Amz-Signature=1"})

    with pytest.raises(Unreachable, match=says), _client(answer).download("/v1/artifacts/art_1/content"):
        pass


@pytest.mark.parametrize("location", ["file:///etc/passwd", "http://platform:8080/v1/x", "ftp://x/y"])
def test_a_useless_redirect(location: str) -> None:
    with (
        pytest.raises(ApiError, match="redirected"),
        _client(lambda _: httpx.Response(302, headers={"location": location})).download("/v1/x"),
    ):
        pass


def test_upload(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_bytes(b"id\n1\n")

    def answer(request: httpx.Request) -> httpx.Response:
        body = request.read()
        assert b'name="file"; filename="o.csv"' in body
        assert b"id\n1\n" in body
        return httpx.Response(201, json={"id": "file_1"})

    assert _client(answer).upload(path, name="o.csv") == {"id": "file_1"}
