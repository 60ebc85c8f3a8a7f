"""Liveness, readiness, metrics and the front page."""

from __future__ import annotations

import re
import threading
import time

import httpx
import pytest
from pydantic import SecretStr

from dualtrack.db.engine import Database
from dualtrack.settings import DatabaseSettings
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.servers import Postgres
from router import health

from .conftest import Api, MakeApi


def test_ready_and_alive_without_a_key(api: Api) -> None:
    with api.client(None) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        ready = client.get("/readyz")
        assert ready.status_code == 200
        assert ready.json()["status"] == "ready"
        assert {name: check["ok"] for name, check in ready.json()["checks"].items()} == dict.fromkeys(
            ("database", "broker", "objects", "models_configured"), True
        )
        root = client.get("/").json()
        assert root["name"] == "dualtrack"
        assert all(client.get(root[name]).status_code == 200 for name in ("docs", "openapi", "health", "ready", "metrics"))


def test_what_is_down_is_named(make_api: MakeApi) -> None:
    store = MemoryStore()
    with make_api(store=store, gateway=ScriptedModel(tracks=["fast"])) as api, api.client(None) as client:
        store.unavailable = True
        api.doorbell.down = True
        ready = client.get("/readyz")
        assert ready.status_code == 503
        checks = ready.json()["checks"]
        assert {name for name, check in checks.items() if not check["ok"]} == {"broker", "objects", "models_configured"}
        assert "DUALTRACK_BROKER__URL" in checks["broker"]["message"]
        assert "deep" in checks["models_configured"]["message"]
        assert client.get("/healthz").status_code == 200


def test_an_old_schema_is_not_ready(make_api: MakeApi, postgres: Postgres) -> None:
    url = postgres.create_database()
    database = Database(DatabaseSettings(url=SecretStr(url)))
    with make_api(database=database) as api, api.client(None) as client:
        ready = client.get("/readyz")
        assert ready.status_code == 503
        assert "dualtrack migrate" in ready.json()["checks"]["database"]["message"]
    database.close()
    postgres.drop_database(url)


def test_a_check_that_hangs_is_cut_off_and_not_asked_twice(make_api: MakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    class Hanging(MemoryStore):
        def check(self) -> None:
            super().check()
            release.wait(300)

    monkeypatch.setattr(health, "CHECK_S", 0.2)
    monkeypatch.setattr(health, "FRESH_S", 0.0)
    store = Hanging()
    with make_api(store=store) as api, api.client(None) as client:
        for _ in range(3):
            began = time.monotonic()
            ready = client.get("/readyz")
            assert (ready.status_code, ready.json()["checks"]["objects"]["ok"]) == (503, False)
            assert time.monotonic() - began < 60
        assert store.calls["check"] == 1
        release.set()
        deadline = time.monotonic() + 60
        while client.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline


def test_answers_are_kept_for_a_moment(make_api: MakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "FRESH_S", 1000.0)
    store = MemoryStore()
    with make_api(store=store) as api, api.client(None) as client:
        for _ in range(20):
            assert client.get("/readyz").status_code == 200
        assert store.calls["check"] == 1


def test_metrics_count_by_template_and_jobs_by_status(client: httpx.Client) -> None:
    job_id = client.post("/v1/jobs", json={"instructions": "x"}).json()["id"]
    client.get(f"/v1/jobs/{job_id}")
    client.get("/v1/../../etc/passwd")
    client.request("PROPFIND", "/v1/jobs")
    text = client.get("/metrics").text
    assert 'dualtrack_http_requests_total{method="GET",route="/v1/jobs/{job_id}",status="200"}' in text
    assert 'dualtrack_http_request_duration_seconds_bucket{le="0.001",method="GET",route="/v1/jobs/{job_id}"}' in text
    assert 'route="unmatched",status="404"' in text
    assert 'method="other"' in text
    assert "passwd" not in text
    assert job_id not in text
    (queued,) = [line for line in text.splitlines() if line.startswith('dualtrack_jobs{status="queued"}')]
    assert float(queued.split()[1]) >= 1


def test_the_documentation_pages_bring_their_own_files(api: Api) -> None:
    with api.client(None) as client:
        for path in ("/docs", "/redoc"):
            page = client.get(path).raise_for_status().text
            assert "https://" not in page.replace("https://fastapi.tiangolo.com/img/favicon.png", "")
            for file in re.findall(r'(?:src|href)="(/[^"]+)"', page):
                assert client.get(file).raise_for_status().content
