"""What waits for a person, over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, text, update

from dualtrack.db import jobs, steps
from dualtrack.db.tables import approvals as approvals_table
from dualtrack.db.tables import calls
from dualtrack.domain.approval import arguments_sha256
from dualtrack.domain.ids import new_id
from dualtrack.domain.lifecycle import CallStatus, JobStatus, Phase
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.reasons import Reason
from dualtrack.domain.usage import Usage
from dualtrack.domain.waiting import ApprovalKind
from dualtrack.engine import approvals, flow
from dualtrack.engine.ending import end_job
from dualtrack.engine.runtime import Runtime
from dualtrack.tools.registry import Registry

from .conftest import Api

COMMAND = {"command": "echo x"}
Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(api: Api, client: httpx.Client) -> Ask:
    """Make a job that waits for a person, as the planner does; the approval as the API shows it."""
    runtime = Runtime(api.database, api.doorbell, api.store, Registry(), PlatformLimits())

    def make(
        kind: ApprovalKind = ApprovalKind.CALL, tool: str = "shell", arguments: dict[str, Any] = COMMAND, **job: Any
    ) -> dict[str, Any]:
        job_id = client.post("/v1/jobs", json={"instructions": "x"} | job).json()["id"]
        call_id = new_id("call")
        with api.database.transaction() as tx:
            found = jobs.get(tx, job_id, lock=True)
            jobs.start(tx, job_id)
            jobs.change(tx, job_id, {"step": 1, "phase": Phase.EXECUTE.value, "due_at": None, "started_at": func.now()})
            steps.add(tx, job_id=job_id, number=1, thought="", reflection="", note="", model="m", usage=Usage(), latency_s=0)
            row = {"id": call_id, "job_id": job_id, "tenant_id": found.tenant_id, "step": 1, "position": 0, "tool": tool}
            row |= {"effect": "workspace", "arguments": arguments, "status": CallStatus.PENDING.value, "guarded": kind is ApprovalKind.CALL}
            steps.add_calls(tx, [row])
            approvals.request(tx, runtime, found, steps.call(tx, call_id), kind, message="why")
            flow.go_on(tx, runtime, jobs.get(tx, job_id))
        (shown,) = client.get(f"/v1/jobs/{job_id}/approvals").json()["data"]
        assert client.get(f"/v1/jobs/{job_id}").json()["status"] == JobStatus.WAITING
        return dict(shown)

    return make


def decide(client: httpx.Client, approval: dict[str, Any], what: str, body: Any = None) -> httpx.Response:
    return client.post(f"/v1/approvals/{approval['id']}/{what}", json=body)


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    return dict(response.json()["error"])


def call_row(api: Api, approval: dict[str, Any]) -> Any:
    with api.database.transaction() as tx:
        return tx.connection.execute(select(calls).where(calls.c.id == approval["call_id"])).one()


def test_what_waits_is_listed_shown_and_approved(api: Api, client: httpx.Client, ask: Ask) -> None:
    first, second = ask(), ask()
    assert (first["kind"], first["status"], first["tool"], first["arguments"]) == ("call", "pending", "shell", COMMAND)
    assert first["arguments_sha256"] == arguments_sha256(COMMAND)
    assert client.get(f"/v1/approvals/{first['id']}").json() == first
    approved = decide(client, first, "approve", {"arguments_sha256": first["arguments_sha256"].upper(), "note": "ok"}).json()
    assert (approved["status"], approved["note"], approved["decided_by"]["name"]) == ("approved", "ok", "test")
    assert decide(client, first, "approve").json() == approved
    assert error(decide(client, first, "deny", {"reason": "no"}), 409)["code"] == "approval_decided"
    assert client.get(f"/v1/jobs/{first['job_id']}").json()["status"] == "running"
    assert call_row(api, first).due_at is not None

    listed = client.get("/v1/approvals", params={"limit": 1}).json()
    assert [item["id"] for item in listed["data"]] == [second["id"]]
    rest = client.get("/v1/approvals", params={"after": listed["next_cursor"]}).json()
    assert [item["id"] for item in rest["data"]] == [first["id"]]
    waiting = client.get("/v1/approvals", params={"status": "pending"}).json()["data"]
    assert [item["id"] for item in waiting] == [second["id"]]
    of_job = client.get("/v1/approvals", params={"job_id": first["job_id"]}).json()["data"]
    assert [item["id"] for item in of_job] == [first["id"]]
    assert [event["type"] for event in client.get(f"/v1/jobs/{first['job_id']}/events").json()["data"]][-2:] == [
        "approval.decided",
        "job.resumed",
    ]


def test_arguments_are_edited_within_the_schema(api: Api, client: httpx.Client, ask: Ask) -> None:
    asked = ask()
    wrong = error(decide(client, asked, "approve", {"arguments": {"command": "x", "timeout_s": "long"}}), 400)
    assert wrong["param"] == "arguments.timeout_s"
    assert error(decide(client, asked, "approve", {"arguments": {}}), 400)["param"] == "arguments"
    assert error(decide(client, asked, "approve", {"arguments": {"command": "a\x00b"}}), 400)["param"] == "arguments.command"
    assert error(decide(client, asked, "approve", {"arguments": {"command": "x" * 300_000}}), 413)["param"] == "arguments"
    assert error(decide(client, asked, "approve", {"arguments_sha256": "0" * 64}), 409)["param"] == "arguments_sha256"
    assert error(decide(client, asked, "approve", {"arguments_sha256": "zz"}), 400)["param"] == "arguments_sha256"
    edited = {"command": "echo better"}
    approved = decide(client, asked, "approve", {"arguments": edited}).json()
    assert (approved["arguments"], approved["edited_arguments"], approved["edited_sha256"]) == (COMMAND, edited, arguments_sha256(edited))
    assert call_row(api, asked).arguments == edited
    error(decide(client, asked, "approve"), 409)


def test_an_edit_that_the_profile_denies_is_refused(client: httpx.Client, ask: Ask) -> None:
    rules = [{"tool": "shell", "arguments": {"command": "rm"}, "action": "deny", "message": "Nothing is removed."}]
    asked = ask(agent={"policies": rules})
    refused = error(decide(client, asked, "approve", {"arguments": {"command": "rm x"}}), 400)
    assert "Nothing is removed" in refused["message"]
    assert client.get(f"/v1/approvals/{asked['id']}").json() == asked


@pytest.mark.parametrize(
    "arguments", ['{"command":' + "[" * 5000 + "]" * 5000 + "}", '{"command":"x","timeout_s":1e999}', "7", '{"a":"\\ud800"}']
)
def test_hostile_arguments_are_refused(client: httpx.Client, ask: Ask, arguments: str) -> None:
    asked = ask()
    body = f'{{"arguments":{arguments}}}'
    answer = client.post(f"/v1/approvals/{asked['id']}/approve", content=body, headers={"content-type": "application/json"})
    error(answer, 400)
    assert client.get(f"/v1/approvals/{asked['id']}").json() == asked


def test_a_denial_gives_the_agent_the_reason(api: Api, client: httpx.Client, ask: Ask) -> None:
    asked = ask()
    assert error(decide(client, asked, "deny", {}), 400)["param"] == "reason"
    assert error(decide(client, asked, "deny", {"reason": "x" * 5000}), 413)["param"] == "reason"
    denied = decide(client, asked, "deny", {"reason": "not today"}).json()
    assert (denied["status"], denied["note"]) == ("denied", "not today")
    row = call_row(api, asked)
    assert (row.status, row.ok, row.preview) == ("failed", False, "Denied by a person, not run: not today")
    assert asked["job_id"] in api.doorbell.planned


def test_a_question_is_answered(api: Api, client: httpx.Client, ask: Ask) -> None:
    asked = ask(ApprovalKind.QUESTION, "ask_human", {"question": "Which?"})
    assert client.get(f"/v1/jobs/{asked['job_id']}").json()["reason"] == "input"
    error(decide(client, asked, "approve"), 409)
    error(decide(client, asked, "resolve", {"outcome": "happened"}), 409)
    answered = decide(client, asked, "answer", {"text": "the red one"}).json()
    assert (answered["status"], answered["note"]) == ("answered", "the red one")
    assert call_row(api, asked).preview == "the red one"
    error(decide(client, asked, "answer", {"text": "the blue one"}), 409)


def test_a_doubt_is_resolved(api: Api, client: httpx.Client, ask: Ask) -> None:
    asked = ask(ApprovalKind.UNKNOWN, "pay", {})
    assert error(decide(client, asked, "resolve", {"outcome": "maybe"}), 400)["param"] == "outcome"
    resolved = decide(client, asked, "resolve", {"outcome": "happened", "observation": "receipt 7"}).json()
    assert (resolved["status"], resolved["outcome"]) == ("answered", "happened")
    assert (call_row(api, asked).ok, call_row(api, asked).preview) == (True, "receipt 7")


def test_too_late_is_409(api: Api, client: httpx.Client, ask: Ask) -> None:
    asked = ask()
    with api.database.transaction() as tx:
        late = {"expires_at": func.now() - text("interval '1 second'")}
        tx.connection.execute(update(approvals_table).where(approvals_table.c.id == asked["id"]).values(late))
    assert "expired" in error(decide(client, asked, "approve"), 409)["message"]
    other = ask()
    client.post(f"/v1/jobs/{other['job_id']}/cancel")
    assert client.get(f"/v1/approvals/{other['id']}").json()["status"] == "withdrawn"
    refused = error(decide(client, other, "approve"), 409)
    assert (refused["message"], refused["param"]) == ("Too late, it is withdrawn: the job has ended: cancelled.", "approval_id")
    question = ask(ApprovalKind.QUESTION, "ask_human", {"question": "Which?"})
    with api.database.transaction() as tx:
        end_job(tx, question["job_id"], JobStatus.FAILED, reason=Reason.NO_PROGRESS, message="It went round in circles.")
    answered = decide(client, question, "answer", {"text": "blue"})
    assert error(answered, 409)["message"] == "Too late, it is withdrawn: the job has ended: failed (no_progress)."


def test_another_tenants_approvals_are_not_there(api: Api, client: httpx.Client, ask: Ask) -> None:
    asked = ask()
    with api.client(api.new_key()[1]) as stranger:
        assert stranger.get("/v1/approvals").json()["data"] == []
        assert stranger.get("/v1/approvals", params={"job_id": asked["job_id"]}).json()["data"] == []
        error(stranger.get(f"/v1/jobs/{asked['job_id']}/approvals"), 404)
        error(stranger.get(f"/v1/approvals/{asked['id']}"), 404)
        for what, body in (("approve", None), ("deny", {"reason": "x"}), ("answer", {"text": "x"}), ("resolve", {"outcome": "fail"})):
            assert error(decide(stranger, asked, what, body), 404)["code"] == "not_found"
    assert client.get(f"/v1/approvals/{asked['id']}").json() == asked


@pytest.mark.parametrize("approval_id", ["appr_01k9zq7f6e4r8s3t5v7w9x1y2z", "job_01k9zq7f6e4r8s3t5v7w9x1y2z", "x", "%00", "a" * 3000])
def test_unknown_ids_are_404(client: httpx.Client, approval_id: str) -> None:
    error(client.get(f"/v1/approvals/{approval_id}"), 404)
    error(client.post(f"/v1/approvals/{approval_id}/approve"), 404)


@pytest.mark.parametrize(
    ("query", "param"),
    [({"status": "open"}, "status.0"), ({"after": "x"}, "after"), ({"job_id": "x"}, "job_id"), ({"state": "x"}, "state")],
)
def test_wrong_filters_are_named(client: httpx.Client, query: dict[str, str], param: str) -> None:
    assert error(client.get("/v1/approvals", params=query), 400)["param"] == param


@pytest.mark.parametrize(
    ("rule", "param"),
    [
        ({"action": "ask", "arguments": {"command": "("}}, "agent.policies.0.arguments.command"),
        ({"action": "ask", "arguments": {"command": "(x{0,90}){0,90}"}}, "agent.policies.0.arguments.command"),
        ({"action": "ask", "arguments": {"command": r"(a)\1"}}, "agent.policies.0.arguments.command"),
        ({"action": "ask", "arguments": {"command": "x" * 501}}, "agent.policies.0.arguments.command"),
        ({"action": "ask", "tool": "[a-z]"}, "agent.policies.0.tool"),
        ({"action": "maybe"}, "agent.policies.0.action"),
        ({"action": "ask", "expires_s": 0}, "agent.policies.0.expires_s"),
    ],
)
def test_rules_that_are_none_are_refused_by_name(client: httpx.Client, rule: dict[str, Any], param: str) -> None:
    refused = client.post("/v1/jobs", json={"instructions": "x", "agent": {"policies": [rule]}})
    assert error(refused, 400)["param"] == param


def test_a_job_whose_own_check_is_denied_is_refused(client: httpx.Client) -> None:
    rules = [{"tool": "check", "arguments": {"command": "curl"}, "action": "deny"}]
    refused = client.post("/v1/jobs", json={"instructions": "x", "checks": ["true", "curl y"], "agent": {"policies": rules}})
    assert error(refused, 400)["param"] == "checks.1"
