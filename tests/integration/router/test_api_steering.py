"""Jobs steered over HTTP: pause, resume, messages."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from dualtrack.db import claims, jobs, messages
from dualtrack.db.presence import Presence
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.waiting import Hold
from dualtrack.engine import flow
from dualtrack.engine.runtime import Runtime
from dualtrack.tools.registry import Registry

from .conftest import Api, MakeApi


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


@pytest.mark.parametrize("action", ["cancel", "pause", "resume"])
def test_what_takes_nothing_refuses_a_body_with_something_in_it(client: httpx.Client, action: str) -> None:
    job_id = submit(client)
    if action == "resume":
        client.post(f"/v1/jobs/{job_id}/pause")
    before = client.get(f"/v1/jobs/{job_id}").json()
    address = f"/v1/jobs/{job_id}/{action}"
    answer = client.post(address, json={"reason": "lunch"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reason")
    assert "no such field" in answer.json()["error"]["message"]
    assert client.post(address, json=[1]).status_code == 400
    assert client.post(address, content=b"{", headers={"content-type": "application/json"}).json()["error"]["code"] == "invalid_json"
    assert client.post(address, data={"reason": "lunch"}).status_code == 415
    assert client.get(f"/v1/jobs/{job_id}").json() == before
    assert client.post(address, json={}).status_code == 200


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
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "job_waits")
        assert "extend the limit" in refused.json()["error"]["message"]
    client.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
    for what in ("pause", "resume"):
        refused = client.post(f"/v1/jobs/{job_id}/{what}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "job_ended")
        assert "ended: cancelled" in refused.json()["error"]["message"]


def test_another_tenants_job_can_not_be_steered(api: Api, client: httpx.Client) -> None:
    job_id = submit(client)
    with api.client(api.new_key()[1]) as other:
        for what in ("pause", "resume"):
            assert other.post(f"/v1/jobs/{job_id}/{what}").status_code == 404
            assert other.post(f"/v1/jobs/nonsense/{what}").status_code == 404
        assert other.post(f"/v1/jobs/{job_id}/messages", json={"content": "x"}).status_code == 404
        assert other.get(f"/v1/jobs/{job_id}/messages").status_code == 404
    assert client.get(f"/v1/jobs/{job_id}").json()["status"] == "queued"


def test_messages_are_kept_in_order_and_listed(api: Api, client: httpx.Client) -> None:
    job_id = submit(client)
    for n in range(1, 4):
        made = client.post(f"/v1/jobs/{job_id}/messages", json={"content": f"message {n}"})
        assert made.status_code == 201
        assert (made.json()["number"], made.json()["content"], made.json()["after_step"]) == (n, f"message {n}", None)
    page = client.get(f"/v1/jobs/{job_id}/messages?limit=2").json()
    assert ([row["number"] for row in page["data"]], page["has_more"], page["next_cursor"]) == ([1, 2], True, 2)
    page = client.get(f"/v1/jobs/{job_id}/messages?after=2").json()
    assert ([row["number"] for row in page["data"]], page["has_more"], page["next_after"]) == ([3], False, 3)
    assert client.get(f"/v1/jobs/{job_id}/messages?nonsense=1").status_code == 400
    with api.database.transaction() as tx:
        messages.take(tx, job_id, 0)
    assert [row["after_step"] for row in client.get(f"/v1/jobs/{job_id}/messages").json()["data"]] == [0, 0, 0]
    told = [event["type"] for event in client.get(f"/v1/jobs/{job_id}/events").json()["data"]]
    assert told == ["job.queued", "message.added", "message.added", "message.added"]


def test_the_same_message_sent_again_is_one(client: httpx.Client) -> None:
    job_id = submit(client)
    path, headers = f"/v1/jobs/{job_id}/messages", {"idempotency-key": "m1"}
    first, again = (client.post(path, json={"content": "x"}, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert client.post(path, json={"content": "y"}, headers=headers).json()["error"]["code"] == "idempotency_key_reused"
    assert client.post(f"/v1/jobs/{submit(client)}/messages", json={"content": "x"}, headers=headers).status_code == 409
    assert len(client.get(path).json()["data"]) == 1


def test_messages_that_can_not_be_sent_say_why(client: httpx.Client, make_api: MakeApi) -> None:
    job_id = submit(client)
    path = f"/v1/jobs/{job_id}/messages"
    for body in ({}, {"content": ""}, {"content": " \n"}, {"content": 1}, {"content": "x", "more": 1}, {"content": "a\0b"}):
        assert client.post(path, json=body).status_code == 400, body
    assert client.post(path, json={"content": "a\0b"}).json()["error"]["param"] == "content"
    long = client.post(path, json={"content": "x" * (PlatformLimits().message_chars + 1)})
    assert (long.status_code, long.json()["error"]["param"]) == (413, "content")
    client.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
    assert client.post(path, json={"content": "x"}).status_code == 409
    assert client.get(path).json()["data"] == []
    with make_api(messages=1) as other, other.client(other.new_key()[1]) as few:
        job_id = submit(few)
        assert few.post(f"/v1/jobs/{job_id}/messages", json={"content": "x"}).status_code == 201
        refused = few.post(f"/v1/jobs/{job_id}/messages", json={"content": "x"})
        assert (refused.status_code, "limits.messages" in refused.json()["error"]["message"]) == (409, True)
