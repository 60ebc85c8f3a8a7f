"""Jobs over HTTP: submitting, listing, showing, cancelling."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from sqlalchemy import func

from dualtrack.db import claims, events, jobs, steps
from dualtrack.db.presence import Presence
from dualtrack.domain.events import EventType
from dualtrack.domain.ids import new_id
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.templates import STANDARD

from .conftest import Api, MakeApi

SPEC = {"instructions": "Count the orders."}


def submit(client: httpx.Client, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return client.post("/v1/jobs", json=SPEC | fields, headers=headers or {})


def error(response: httpx.Response) -> dict[str, Any]:
    body: dict[str, Any] = response.json()["error"]
    assert set(body) == {"message", "type", "param", "code"}
    return body


def test_a_submitted_job_is_queued_rung_for_and_shown(api: Api, client: httpx.Client) -> None:
    made = submit(client, metadata={"team": "a"}, priority=3, limits={"steps": 7})
    assert made.status_code == 201
    job = made.json()
    assert made.headers["location"] == f"/v1/jobs/{job['id']}"
    assert (job["status"], job["object"], job["step"], job["last_seq"]) == ("queued", "job", 0, 1)
    assert job["limits"]["steps"] == 7
    assert job["metadata"] == {"team": "a"}
    assert job["usage"]["cost_usd"] == "0"
    assert job["id"] in api.doorbell.planned
    assert client.get(made.headers["location"]).json() == job


def test_a_job_that_may_have_children_shows_its_family(client: httpx.Client) -> None:
    job = submit(client, agent={"tools": ["delegate", "finish"]}).json()
    assert job["family"] == {"jobs": 0, "live": 0, "waiting": 0, "step": 0, "usage": job["usage"], "complete": True}
    assert job["waiting_for"] is None
    assert client.get(f"/v1/jobs/{job['id']}").json() == job
    (row,) = client.get("/v1/jobs").json()["data"]
    assert row == {**job, "family": None}
    assert submit(client).json()["family"] is None


def test_the_job_belongs_to_the_trace_of_the_request(client: httpx.Client) -> None:
    job = submit(client, headers={"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}).json()
    assert job["trace_id"] == "ab" * 16


def test_an_idempotency_key_gives_the_same_job(client: httpx.Client) -> None:
    headers = {"idempotency-key": "one"}
    first, again = submit(client, headers), submit(client, headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["location"] == f"/v1/jobs/{first.json()['id']}"
    other = submit(client, headers, priority=1)
    assert other.status_code == 409
    assert error(other)["code"] == "idempotency_key_reused"
    assert error(other)["param"] == "Idempotency-Key"
    spaced = b'{ "instructions" :  "SAME" }'
    bodies = [b'{"instructions":"SAME","priority":1}', b'{ "priority": 1,\n "instructions": "SAME" }']
    answers = [
        client.post("/v1/jobs", content=body, headers={"content-type": "application/json", "idempotency-key": "two"})
        for body in (*bodies, spaced)
    ]
    assert [answer.status_code for answer in answers] == [201, 200, 409]


def test_a_lost_ring_loses_no_job(make_api: MakeApi) -> None:
    with make_api() as api, api.client(api.new_key()[1]) as client:
        api.doorbell.down = True
        assert submit(client).status_code == 201


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"instructions": ""}, "invalid_request", "instructions"),
        ({"instructions": None}, "invalid_request", "instructions"),
        ({"instructions": "a\x00b"}, "invalid_request", "instructions"),
        ({"metadata": {"k": "a\x00"}}, "invalid_request", "metadata.k"),
        ({"metadata": {"k\x00": "a"}}, "invalid_request", "metadata"),
        ({"metadata": {"k": 1}}, "invalid_request", "metadata.k"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "invalid_request", "metadata"),
        ({"limits": {"steps": 0}}, "invalid_request", "limits.steps"),
        ({"limits": {"cost_usd": "NaN"}}, "invalid_request", "limits.cost_usd"),
        ({"limits": {"stesp": 1}}, "invalid_request", "limits.stesp"),
        ({"agent": {"tools": ["shell", "no_such_tool"]}}, "tool_not_found", "agent.tools"),
        ({"agent": {"model": "no-such-model"}}, "model_not_found", "agent.model"),
        ({"inputs": [{"file_id": "file_x", "path": "../x"}]}, "invalid_request", "inputs.0.path"),
        ({"inputs": [{"file_id": "a\x00"}]}, "invalid_request", "inputs.0.file_id"),
        ({"checks": [""]}, "invalid_request", "checks.0"),
        ({"surprise": 1}, "invalid_request", "surprise"),
    ],
)
def test_a_wrong_field_is_named(client: httpx.Client, fields: dict[str, Any], code: str, param: str) -> None:
    answer = submit(client, **fields)
    assert (answer.status_code, error(answer)["code"], error(answer)["param"]) == (400, code, param)


def test_an_input_that_is_not_there_is_named(client: httpx.Client) -> None:
    answer = submit(client, inputs=[{"file_id": "file_01k9zq7f6e4r8s3t5v7w9x1y2z", "path": "a"}])
    assert (answer.status_code, error(answer)["param"]) == (404, "inputs.0.file_id")


def test_a_template_that_there_is_not_is_refused_where_all_are_known(make_api: MakeApi, client: httpx.Client) -> None:
    wanted = {"agent": {"template": "reporst"}}
    assert submit(client, **wanted).status_code == 201, "the usual router knows of none"
    with make_api(templates=STANDARD | {"reports"}) as api, api.client(api.new_key()[1]) as knowing:
        answer = submit(knowing, **wanted)
        assert (answer.status_code, error(answer)["code"], error(answer)["param"]) == (400, "invalid_request", "agent.template")
        assert "there are: default, python-data, reports, shell" in error(answer)["message"]
        schedule = knowing.post("/v1/schedules", json={"cron": "0 9 * * MON", "job": SPEC | wanted})
        assert (schedule.status_code, error(schedule)["param"]) == (400, "job.agent.template")
        assert knowing.get("/v1/jobs").json()["data"] == []
        for name in ("reports", "shell"):
            assert submit(knowing, agent={"template": name}).status_code == 201
        assert submit(knowing).status_code == 201


def test_half_a_surrogate_pair_is_refused_by_name(client: httpx.Client) -> None:
    raw = r'{"instructions": "x", "metadata": {"team": "\ud800"}}'
    answer = client.post("/v1/jobs", content=raw, headers={"content-type": "application/json"})
    assert (answer.status_code, error(answer)["param"]) == (400, "metadata.team")


def test_lists_are_newest_first_paged_and_filtered(client: httpx.Client) -> None:
    made = [submit(client, metadata={"n": str(n), "kind": "even" if n % 2 == 0 else "odd"}).json()["id"] for n in range(5)]
    client.post(f"/v1/jobs/{made[0]}/cancel")
    first = client.get("/v1/jobs", params={"limit": 2}).json()
    assert [job["id"] for job in first["data"]] == made[:2:-1]
    assert (first["object"], first["has_more"], first["next_cursor"]) == ("list", True, made[3])
    seen = [job["id"] for job in first["data"]]
    page = first
    while page["has_more"]:
        page = client.get("/v1/jobs", params={"limit": 2, "after": page["next_cursor"]}).json()
        seen += [job["id"] for job in page["data"]]
    assert seen == made[::-1]
    assert page["next_cursor"] is None

    def found(**params: Any) -> list[int]:
        return sorted(made.index(job["id"]) for job in client.get("/v1/jobs", params=params).json()["data"])

    assert found(status="cancelled") == [0]
    assert found(status=["queued", "cancelled"]) == [0, 1, 2, 3, 4]
    assert found(**{"metadata.kind": "odd"}) == [1, 3]
    assert found(**{"metadata[kind]": "even", "metadata.n": "4"}) == [4]
    assert found(agent="default") == [0, 1, 2, 3, 4]
    assert found(agent="other") == []


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"limit": 10**30}, "limit"),
        ({"after": "job_nonsense"}, "after"),
        ({"status": "sleeping"}, "status.0"),
        ({"parent_id": ""}, "parent_id"),
        ({"parent_id": "call_01k9zq7f6e4r8s3t5v7w9x1y2z"}, "parent_id"),
        ({"metadata.k": "\x00"}, "metadata.k"),
        ({"metadata": "1"}, "metadata"),
        ({"metadata[]": "1"}, "metadata[]"),
        ({"metadata.": "1"}, "metadata."),
        ({"metadatax": "1"}, "metadatax"),
        ({"bogus": "1"}, "bogus"),
        ({"Status": "queued"}, "Status"),
        ({"order": "newest"}, "order"),
        ({"reason": "No such"}, "reason.0"),
        ({"root_id": ""}, "root_id"),
        ({"forked_from": "job_ä"}, "forked_from"),
        ({"schedule_id": "x" * 65}, "schedule_id"),
        ({"created_after": "2026-11-30T08:00:00"}, "created_after"),
        ({"created_before": "yesterday"}, "created_before"),
        ({"finished_after": "2026-11-30"}, "finished_after"),
        ({"finished_before": 1700000000}, "finished_before"),
    ],
)
def test_wrong_list_parameters_are_named(client: httpx.Client, params: dict[str, Any], param: str) -> None:
    answer = client.get("/v1/jobs", params=params)
    assert (answer.status_code, error(answer)["param"]) == (400, param)


def test_every_list_refuses_parameters_it_does_not_have(client: httpx.Client) -> None:
    job_id = submit(client).json()["id"]
    lists = ["/v1/jobs", "/v1/files", "/v1/models", *(f"/v1/jobs/{job_id}/{name}" for name in ("events", "steps", "artifacts"))]
    for path in lists:
        answer = client.get(path, params={"bogus": "1", "limits": "2"})
        assert (answer.status_code, error(answer)["param"]) == (400, "bogus")
        assert "'bogus', 'limits'" in error(answer)["message"]
        assert client.get(path).status_code == 200


def test_outputs_are_shown(client: httpx.Client) -> None:
    assert submit(client, outputs=["/workspace/b", "a", "b"]).json()["outputs"] == ["b", "a"]


def test_cancel_ends_an_idle_job_at_once_and_may_be_repeated(client: httpx.Client) -> None:
    job = submit(client).json()
    for _ in range(2):
        cancelled = client.post(f"/v1/jobs/{job['id']}/cancel")
        assert cancelled.status_code == 200
        assert (cancelled.json()["status"], cancelled.json()["reason"], cancelled.json()["stopping"]) == ("cancelled", "cancelled", None)
    types = [event["type"] for event in client.get(f"/v1/jobs/{job['id']}/events").json()["data"]]
    assert types == ["job.queued", "job.stopping", "job.cancelled"]


def test_cancel_while_an_executor_is_at_work_rings_and_says_accepted(api: Api, client: httpx.Client) -> None:
    presence = Presence(api.database, check_s=1)
    presence.start()
    try:
        job_id = submit(client).json()["id"]
        api.doorbell.planned.clear()
        with api.database.transaction() as tx:
            row = {"id": new_id("call"), "job_id": job_id, "tenant_id": "t", "step": 1, "position": 0, "tool": "shell", "effect": "pure"}
            jobs.change(tx, job_id, {"step": 1})
            steps.add_calls(tx, [row | {"arguments": {}, "status": "pending", "due_at": func.now()}])
            assert claims.claim(tx, "calls", str(row["id"]), presence.key, PlatformLimits()) is not None
        for _ in range(2):
            answer = client.post(f"/v1/jobs/{job_id}/cancel")
            assert (answer.status_code, answer.json()["status"], answer.json()["stopping"]) == (202, "queued", "cancelled")
        assert job_id in api.doorbell.planned
    finally:
        presence.close()


def test_a_job_that_ended_otherwise_can_not_be_cancelled(api: Api, client: httpx.Client) -> None:
    job_id = submit(client).json()["id"]
    with api.database.transaction() as tx:
        jobs.end(tx, job_id, JobStatus.FAILED, reason="x", message="y", answer=None)
        from dualtrack.domain.events import NewEvent

        events.append(tx, job_id, NewEvent(EventType.JOB_FAILED, {}))
    answer = client.post(f"/v1/jobs/{job_id}/cancel")
    assert (answer.status_code, error(answer)["code"]) == (409, "job_ended")


@pytest.mark.parametrize("suffix", ["", "/events", "/steps", "/artifacts", "/events?stream=true"])
@pytest.mark.parametrize("job_id", ["job_01k9zq7f6e4r8s3t5v7w9x1y2z", "nonsense", "job_%00", "job_01k9zq7f6e4r8s3t5v7w9x1y2z%0A"])
def test_no_such_job(client: httpx.Client, job_id: str, suffix: str) -> None:
    answer = client.get(f"/v1/jobs/{job_id}{suffix}")
    assert (answer.status_code, error(answer)["code"]) == (404, "not_found")


@pytest.mark.parametrize("suffix", ["", "/events", "/steps", "/artifacts", "/events?stream=true"])
def test_somebody_elses_job_looks_like_none(api: Api, client: httpx.Client, suffix: str) -> None:
    job_id = submit(client).json()["id"]
    assert client.get(f"/v1/jobs/{job_id}").status_code == 200
    with api.client(api.new_key()[1]) as stranger:
        theirs = stranger.get(f"/v1/jobs/{job_id}{suffix}")
        missing = stranger.get(f"/v1/jobs/job_01k9zq7f6e4r8s3t5v7w9x1y2z{suffix}")
        assert theirs.status_code == missing.status_code == 404
        assert theirs.text.replace(job_id, "ID") == missing.text.replace("job_01k9zq7f6e4r8s3t5v7w9x1y2z", "ID")
        assert stranger.post(f"/v1/jobs/{job_id}/cancel").status_code == 404
        assert stranger.get("/v1/jobs").json()["data"] == []
    assert client.get(f"/v1/jobs/{job_id}").json()["status"] == "queued"
