"""Forks and retries over HTTP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
from sqlalchemy import func

from dualtrack.db import jobs, steps, webhooks
from dualtrack.db.engine import Transaction
from dualtrack.domain.usage import Usage
from dualtrack.domain.webhook import Webhook

from .conftest import Api


def submit(client: httpx.Client, **spec: Any) -> str:
    job_id: str = client.post("/v1/jobs", json={"instructions": "Count the orders."} | spec).raise_for_status().json()["id"]
    return job_id


def decided(tx: Transaction, job_id: str, number: int, **call: Any) -> None:
    """A step with one call, as the planner would write it."""
    jobs.change(tx, job_id, {"step": number})
    tenant_id = jobs.get(tx, job_id).tenant_id
    steps.add(tx, job_id=job_id, number=number, thought="t", reflection="", note="", model="m", usage=Usage(7, 3), latency_s=0)
    row = {"id": f"call_{job_id}_{number}", "job_id": job_id, "tenant_id": tenant_id, "step": number, "position": 0}
    ended = {"status": "succeeded", "ok": True, "finished_at": func.now(), "preview": f"seen {number}"}
    steps.add_calls(tx, [row | {"tool": "shell", "effect": "pure", "arguments": {"command": "x"}} | (call or ended)])


def test_a_fork_is_a_job_of_its_own(api: Api, client: httpx.Client) -> None:
    job_id = submit(client, metadata={"a": "b"})
    with api.database.transaction() as tx:
        for number in (1, 2):
            decided(tx, job_id, number)
    body = {"step": 1, "limits": {"steps": 5}, "message": "differently"}
    made = client.post(f"/v1/jobs/{job_id}/fork", json=body, headers={"idempotency-key": "f"})
    assert made.status_code == 201
    job = made.json()
    assert made.headers["location"] == f"/v1/jobs/{job['id']}"
    assert (job["status"], job["step"], job["forked_from"], job["forked_step"]) == ("queued", 1, job_id, 1)
    assert (job["limits"]["steps"], job["metadata"], job["usage"]["total_tokens"]) == (5, {"a": "b"}, 0)
    assert job["id"] in api.doorbell.planned
    (step,) = client.get(f"/v1/jobs/{job['id']}/steps").json()["data"]
    assert (step["usage"]["total_tokens"], step["calls"][0]["observation"]) == (0, "seen 1")
    own = step["calls"][0]["id"]
    assert client.get(f"/v1/jobs/{job['id']}/calls/{own}/observation").text == "seen 1"
    assert [row["content"] for row in client.get(f"/v1/jobs/{job['id']}/messages").json()["data"]] == ["differently"]
    told = [event["type"] for event in client.get(f"/v1/jobs/{job['id']}/events").json()["data"]]
    assert told == ["job.queued", "job.forked", "message.added"]
    again = client.post(f"/v1/jobs/{job_id}/fork", json=body, headers={"idempotency-key": "f"})
    assert (again.status_code, again.json()["id"]) == (200, job["id"])
    assert client.get(f"/v1/jobs/{job_id}").json()["forked_from"] is None


def test_what_can_not_be_forked_or_retried_says_why(api: Api, client: httpx.Client) -> None:
    job_id = submit(client, limits={"steps": 2})
    with api.database.transaction() as tx:
        decided(tx, job_id, 1)
        decided(tx, job_id, 2, status="pending")
    for body, status, param in (
        ({}, 400, "step"),
        ({"step": -1}, 400, "step"),
        ({"step": True}, 400, "step"),
        ({"step": 10**12}, 400, "step"),
        ({"step": 9, "limits": {"steps": 20}}, 400, "step"),
        ({"step": 2, "limits": {"steps": 20}}, 409, "step"),
        ({"step": 2}, 400, "limits.steps"),
        ({"step": 1, "instructions": "  "}, 400, "instructions"),
        ({"step": 1, "message": "  "}, 400, "message"),
        ({"step": 1, "priority": 3}, 400, "priority"),
        ({"step": 1, "agent": {"model": "none"}}, 400, "agent.model"),
        ({"step": 1, "message": "a\0"}, 400, "message"),
    ):
        answer = client.post(f"/v1/jobs/{job_id}/fork", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), (body, answer.text)
    assert client.post(f"/v1/jobs/{job_id}/retry").status_code == 409
    with api.client(api.new_key()[1]) as other:
        assert other.post(f"/v1/jobs/{job_id}/fork", json={"step": 1}).status_code == 404
        assert other.post(f"/v1/jobs/{job_id}/retry").status_code == 404
    client.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
    for retried in (client.post(f"/v1/jobs/{job_id}/retry"), client.post(f"/v1/jobs/{job_id}/retry", json={"limits": {"steps": 9}})):
        assert (retried.status_code, retried.json()["forked_step"]) == (201, 1)


def test_the_webhook_of_a_fork_is_signed_with_the_secret_that_its_receiver_knows(api: Api, client: httpx.Client) -> None:
    job_id = submit(client, webhook={"url": "https://example.com/hook"})
    forked = client.post(f"/v1/jobs/{job_id}/fork", json={"step": 0}).raise_for_status().json()
    with api.database.transaction() as tx:
        tenant_id = jobs.get(tx, job_id).tenant_id
        known, told = (webhooks.of_job(tx, one, tenant_id) for one in (job_id, forked["id"]))
    assert known is not None
    assert told is not None
    assert (told.secret, told.url, told.id != known.id) == (known.secret, known.url, True)


def told_of(api: Api, job_id: str) -> Webhook | None:
    with api.database.transaction() as tx:
        return webhooks.of_job(tx, job_id, jobs.get(tx, job_id).tenant_id)


def test_a_fork_tells_whom_its_job_tells_now(api: Api, client: httpx.Client) -> None:
    job_id = submit(client, webhook={"url": "https://example.com/old", "events": ["job.failed"]})
    own = told_of(api, job_id)
    assert own is not None
    rotated = client.post(f"/v1/webhooks/{own.id}/rotate").raise_for_status().json()
    changes = {"url": "https://example.com/new", "events": ["job.succeeded"], "disabled": True}
    client.patch(f"/v1/webhooks/{own.id}", json=changes).raise_for_status()
    forked = client.post(f"/v1/jobs/{job_id}/fork", json={"step": 0}).raise_for_status().json()
    assert (forked["webhook"]["url"], forked["webhook"]["events"]) == ("https://example.com/new", ["job.succeeded"])
    now, copied = told_of(api, job_id), told_of(api, forked["id"])
    assert now is not None
    assert copied is not None
    assert replace(copied, id=now.id, job_id=now.job_id, created_at=now.created_at) == now
    assert (copied.disabled_reason is not None, copied.previous_secret, rotated["secret"]) == (True, own.secret, copied.secret)
    client.delete(f"/v1/webhooks/{own.id}").raise_for_status()
    silent = client.post(f"/v1/jobs/{job_id}/fork", json={"step": 0}).raise_for_status().json()
    assert (silent["webhook"], told_of(api, silent["id"])) == (None, None)
