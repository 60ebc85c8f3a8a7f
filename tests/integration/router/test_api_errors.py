"""Bad input of every kind: a clear error with a stable code, nothing leaked, and the server goes on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from dualtrack.db.engine import Database
from dualtrack.settings import DatabaseSettings

from .conftest import Api, MakeApi

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


def error(response: httpx.Response) -> tuple[int, str]:
    body = response.json()["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["message"]
    return response.status_code, body["code"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer dt_wrong"},
        {"authorization": "Basic dXNlcjpwYXNz"},
        {"authorization": "Bearer " + "x" * 5000},
        {"authorization": b"Bearer \xff\xfe"},
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/jobs"), ("POST", CHAT), ("POST", "/v1/files"), ("GET", "/v1/models")])
def test_without_a_good_key(api: Api, method: str, path: str, headers: dict[str, Any]) -> None:
    with api.client(None) as client:
        files = {"file": ("a", b"x")} if path == "/v1/files" else None
        body = {"model": "fast", "messages": [{"role": "user", "content": "x"}]} if path == CHAT else None
        answer = client.request(method, path, headers=headers, json=body, files=files)
        assert error(answer) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["type"] == "authentication_error"


def test_a_revoked_key_stops_working(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from router import auth

    monkeypatch.setattr(auth, "REMEMBERED_S", 0.0)
    tenant, key = api.new_key()
    with api.client(key) as client:
        assert client.get("/v1/jobs").status_code == 200
        with api.database.transaction() as tx:
            from sqlalchemy import func, update

            from dualtrack.db.tables import api_keys

            tx.connection.execute(update(api_keys).where(api_keys.c.tenant_id == tenant).values(revoked_at=func.now()))
        assert error(client.get("/v1/jobs")) == (401, "invalid_api_key")


def test_unknown_addresses_and_methods(client: httpx.Client) -> None:
    assert error(client.get("/v1/nothing")) == (404, "not_found")
    answer = client.delete("/v1/jobs")
    assert error(answer) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, POST"
    assert client.post("/readyz").headers["allow"] == "GET"
    assert error(client.get("/v1/models/nope/deep")) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/v1/jobs", CHAT])
@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"{", JSON, 400, "invalid_json"),
        (b"{'a': 1}", JSON, 400, "invalid_json"),
        (b"\xff\xfe\xff", JSON, 400, "invalid_json"),
        (b"[" * 100_000, JSON, 400, "invalid_json"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, JSON, 400, "invalid_json"),
        (b"1" * 5000, JSON, 400, "invalid_json"),
        (b"[]", JSON, 400, "invalid_request"),
        (b"null", JSON, 400, "invalid_request"),
        (b"", JSON, 400, "invalid_request"),
        (b"{}", {}, 415, "unsupported_media_type"),
        (b"a=b", {"content-type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
    ],
)
def test_bodies_that_are_none(client: httpx.Client, path: str, content: bytes, headers: dict[str, str], status: int, code: str) -> None:
    assert error(client.post(path, content=content, headers=headers)) == (status, code)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"a": ' + b"1" * 5000 + b"}", "digits"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"[" * 100_000, "nested"),
        (b'{"instructions": "a", "k\\ud800": 1}', "ud800"),
    ],
)
def test_the_real_reason_is_told(client: httpx.Client, content: bytes, reason: str) -> None:
    answer = client.post("/v1/jobs", content=content, headers=JSON)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]


def test_a_compressed_body_is_refused_by_its_encoding(client: httpx.Client) -> None:
    answer = client.post("/v1/jobs", content=b"\x1f\x8b", headers={**JSON, "content-encoding": "gzip"})
    assert error(answer) == (415, "unsupported_media_type")
    assert "gzip" in answer.json()["error"]["message"]


def test_a_prompt_of_100_mb_is_refused_and_the_client_reads_why(client: httpx.Client) -> None:
    prompt = b'{"model": "fast", "messages": [{"role": "user", "content": "' + b"x" * 100_000_000 + b'"}]}'
    answer = client.post(CHAT, content=prompt, headers=JSON)
    assert error(answer) == (413, "request_too_large")

    def pieces() -> Iterator[bytes]:
        for n in range(0, len(prompt), 1_000_000):
            yield prompt[n : n + 1_000_000]

    assert error(client.post(CHAT, content=pieces(), headers=JSON)) == (413, "request_too_large")
    assert client.get("/healthz").status_code == 200


def test_a_client_that_asks_first_is_told_before_it_sends(api: Api, key: str) -> None:
    with socket.create_connection(("127.0.0.1", api.server.port), timeout=60) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        connection.sendall((head + "Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n").encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("value", ["", "x" * 256, "käse", "a\tb"])
def test_idempotency_keys_are_printable_and_short(client: httpx.Client, value: str) -> None:
    headers = {"idempotency-key": value.encode("latin-1")}
    answer = client.post("/v1/jobs", json={"instructions": "x"}, headers=headers)  # type: ignore[arg-type] # raw bytes on purpose
    assert error(answer) == (400, "invalid_request")
    assert answer.json()["error"]["param"] == "idempotency-key"


def test_request_ids(client: httpx.Client) -> None:
    made = client.get("/healthz").headers["x-request-id"]
    assert made.startswith("req_")
    assert client.get("/healthz").headers["x-request-id"] != made
    assert client.get("/healthz", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert client.get("/healthz", headers={"x-request-id": "no good"}).headers["x-request-id"].startswith("req_")


def test_a_database_that_is_gone_is_503_and_chat_goes_on(make_api: MakeApi, router_database: Database) -> None:
    class Breakable(Database):
        gone = False

        def transaction(self, *, vital: bool = False) -> Any:
            return dead.transaction() if self.gone else super().transaction(vital=vital)

    dead = Database(DatabaseSettings(url=SecretStr("postgresql+psycopg://x@127.0.0.1:1/x"), pool_size=1))
    database = Breakable(DatabaseSettings(url=SecretStr(router_database.engine.url.render_as_string(hide_password=False))))
    try:
        with make_api(database=database, stream_poll_s=0.02) as api, api.client(api.new_key()[1]) as client:
            job_id = client.post("/v1/jobs", json={"instructions": "x"}).json()["id"]
            lines: list[str] = []

            def follow() -> None:
                with api.client(client.headers["authorization"].removeprefix("Bearer ")) as own:
                    lines.extend(own.get(f"/v1/jobs/{job_id}/events?stream=true").text.splitlines())

            thread = threading.Thread(target=follow)
            thread.start()
            while "dualtrack_event_streams 1.0" not in client.get("/metrics").text:
                pass
            database.gone = True
            answer = client.get("/v1/jobs")
            assert error(answer) == (503, "database_unavailable")
            assert answer.headers["retry-after"]
            assert "127.0.0.1" not in answer.text
            chat = client.post(CHAT, json={"model": "fast", "messages": [{"role": "user", "content": "x"}]})
            assert chat.status_code == 200  # the key is remembered, nothing else of it needs the database
            assert "dualtrack_jobs{" not in client.get("/metrics").text
            ready = client.get("/readyz")
            assert (ready.status_code, ready.json()["checks"]["database"]["ok"]) == (503, False)
            database.gone = False
            assert client.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
            thread.join(60)
            assert [line for line in lines if line.startswith("id:")] == ["id: 1", "id: 2", "id: 3"]
    finally:
        database.close()
        dead.close()


def test_a_pool_that_is_used_up_is_503(make_api: MakeApi, router_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    address = SecretStr(router_database.engine.url.render_as_string(hide_password=False))
    database = Database(DatabaseSettings(url=address, pool_size=1, pool_overflow=0))
    try:
        with make_api(database=database) as api, api.client(api.new_key()[1]) as client:
            assert client.get("/v1/jobs").status_code == 200
            with database.engine.connect(), monkeypatch.context() as patched:
                patched.setattr(database.engine.pool, "_timeout", 0.05)
                assert error(client.get("/v1/jobs")) == (503, "database_unavailable")
            assert client.get("/v1/jobs").status_code == 200
    finally:
        database.close()
