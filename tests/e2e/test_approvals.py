"""An approval outlives everything: every process is killed while it is pending, and the call runs once."""

from __future__ import annotations

from typing import Any

from dualtrack.testing.stack import SERVICES, Stack


def _command(command: str) -> dict[str, Any]:
    return {"tool": "shell", "arguments": {"command": command}}


def _restart_everything(stack: Stack) -> None:
    for service in SERVICES:
        stack.kill(service)
    for service in SERVICES:
        stack.start(service)
    stack.wait_ready()


def test_a_call_runs_once_although_everything_was_killed_while_it_waited(stack: Stack) -> None:
    script = [_command("echo once >> witness"), _command("echo after >> witness"), {"tool": "finish", "arguments": {"answer": "done"}}]
    rule = {"tool": "shell", "arguments": {"command": "^echo once"}, "action": "ask", "message": "Look first."}
    job_id = stack.submit(script, agent={"policies": [rule]}, checks=['test "$(cat witness)" = "$(printf \'once\\nafter\')"'])
    assert stack.wait(job_id, until=("waiting",))["reason"] == "approval"
    with stack.client() as client:
        (asked,) = client.get(f"/v1/jobs/{job_id}/approvals").raise_for_status().json()["data"]
    _restart_everything(stack)
    with stack.client() as client:
        assert client.get(f"/v1/jobs/{job_id}").json()["status"] == "waiting"
        path = f"/v1/approvals/{asked['id']}"
        assert client.get(path).json() == asked
        body = {"arguments_sha256": asked["arguments_sha256"]}
        for _ in range(2):  # a client whose answer was lost asks again
            assert client.post(f"{path}/approve", json=body).raise_for_status().json()["status"] == "approved"
        assert client.post(f"{path}/deny", json={"reason": "too late"}).status_code == 409
        job = stack.wait(job_id)
    assert (job["status"], job["answer"]) == ("succeeded", "done")
    events = stack.events(job_id)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    kinds = [event["type"] for event in events]
    assert (kinds.count("approval.requested"), kinds.count("approval.decided")) == (1, 1)
    ran = [event for event in events if event["type"] == "call.started" and event["data"]["call_id"] == asked["call_id"]]
    ended = [event for event in events if event["type"] == "call.finished" and event["data"]["call_id"] == asked["call_id"]]
    assert (len(ran), len(ended)) == (1, 1)


def test_a_question_is_answered_after_everything_was_killed(stack: Stack) -> None:
    script = [
        {"tool": "ask_human", "arguments": {"question": "Which colour?", "options": ["red", "blue"]}},
        {"tool": "finish", "arguments": {"answer": "done"}},
    ]
    job_id = stack.submit(script, agent={"tools": ["ask_human", "finish"]})
    assert stack.wait(job_id, until=("waiting",))["reason"] == "input"
    _restart_everything(stack)
    with stack.client() as client:
        (asked,) = client.get("/v1/approvals", params={"job_id": job_id, "status": "pending"}).raise_for_status().json()["data"]
        client.post(f"/v1/approvals/{asked['id']}/answer", json={"text": "blue"}).raise_for_status()
        assert stack.wait(job_id)["status"] == "succeeded"
        (first, *_) = client.get(f"/v1/jobs/{job_id}/steps").raise_for_status().json()["data"]
    assert (first["calls"][0]["ok"], first["calls"][0]["observation"]) == (True, "blue")
