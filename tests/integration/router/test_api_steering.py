"""Jobs steered over HTTP: pause and resume."""

from __future__ import annotations

from typing import Any

import httpx

from dualtrack.db import claims, jobs
from dualtrack.db.presence import Presence
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.waiting import Hold
from dualtrack.engine import flow
from dualtrack.engine.runtime import Runtime
from dualtrack.tools.registry import Registry

from .conftest import Api


def submit(client: httpx.Client, **spec: Any) -> str:
    job_id: str = client.post("/v1/jobs", json={"instructions": "Count the orders."} | spec).raise_for_status().json()["id"]
    return job_id


def test_pause_and_resume_in_the_queue(api: Api, client: httpx.Client) -> None:
    job_id = submit(client)
    paused = client.post(f"/v1/jobs/{job_id}/pause")
    assert paused.status_code == 200
    job = paused.json()
    assert (job["status"], job["reason"], job["hold"]) == ("waiting", "paused", "paused")
    assert "resume" in job["message"]
    assert job["waiting"]["since"] < job["waiting"]["until"]
    assert client.post(f"/v1/jobs/{job_id}/pause").json() == job
    assert [row["id"] for row in client.get("/v1/jobs?status=waiting").json()["data"]] == [job_id]

    api.doorbell.planned.clear()
    resumed = client.post(f"/v1/jobs/{job_id}/resume")
    assert resumed.status_code == 200
    job = resumed.json()
    assert (job["status"], job["reason"], job["message"], job["hold"], job["waiting"]) == ("queued", None, None, None, None)
    assert api.doorbell.planned == [job_id]
    assert client.post(f"/v1/jobs/{job_id}/resume").json() == job


def test_a_job_at_work_is_paused_later(api: Api, client: httpx.Client) -> None:
    job_id = submit(client)
    presence = Presence(api.database, check_s=10)
    presence.start()
    try:
        with api.database.transaction() as tx:
            assert claims.claim(tx, "jobs", job_id, presence.key, PlatformLimits()) is not None
            jobs.start(tx, job_id)
        paused = client.post(f"/v1/jobs/{job_id}/pause")
        assert paused.status_code == 202
        assert (paused.json()["status"], paused.json()["hold"], paused.json()["waiting"]) == ("running", "paused", None)
    finally:
        presence.close()
    assert client.post(f"/v1/jobs/{job_id}/resume").json()["hold"] is None


def test_what_can_not_be_paused_or_resumed_says_what_to_do(api: Api, client: httpx.Client) -> None:
    job_id = submit(client)
    runtime = Runtime(database=api.database, doorbell=api.doorbell, store=api.store, registry=Registry(), limits=PlatformLimits())
    with api.database.transaction() as tx:
        flow.hold(tx, runtime, jobs.get(tx, job_id, lock=True), Hold.BUDGET, by="test")
    for what in ("pause", "resume"):
        refused = client.post(f"/v1/jobs/{job_id}/{what}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
        assert "extend the limit" in refused.json()["error"]["message"]
    client.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
    for what in ("pause", "resume"):
        assert "ended: cancelled" in client.post(f"/v1/jobs/{job_id}/{what}").json()["error"]["message"]


def test_another_tenants_job_can_not_be_steered(api: Api, client: httpx.Client) -> None:
    job_id = submit(client)
    with api.client(api.new_key()[1]) as other:
        for what in ("pause", "resume"):
            assert other.post(f"/v1/jobs/{job_id}/{what}").status_code == 404
            assert other.post(f"/v1/jobs/nonsense/{what}").status_code == 404
    assert client.get(f"/v1/jobs/{job_id}").json()["status"] == "queued"
