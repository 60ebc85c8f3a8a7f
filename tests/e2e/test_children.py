"""Families on the real stack: two children side by side while every kind of worker is killed, and a cancel that reaches them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from dualtrack.doctor.examination import examine
from dualtrack.domain.job import DEFAULT_AGENT_TOOLS
from dualtrack.faults import VARIABLE, Action, Fault, Rule
from dualtrack.testing.stack import Stack

from .test_jobs import finish, finished_once, gapless, shell

AGENT = {"tools": [*DEFAULT_AGENT_TOOLS, "delegate"]}


def delegate(script: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"tool": "delegate", "arguments": {"instructions": f"Follow.\n```script\n{json.dumps(script)}\n```", **more}}


def children(stack: Stack, job_id: str) -> list[dict[str, Any]]:
    with stack.client() as client:
        found: list[dict[str, Any]] = client.get("/v1/jobs", params={"parent_id": job_id}).raise_for_status().json()["data"]
    return sorted(found, key=lambda job: str(job["id"]))


def until(stack: Stack, done: Callable[[], bool], *, timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, stack.logs()
        time.sleep(0.05)


def running(stack: Stack, job_id: str) -> int:
    """Commands of its children that were begun."""
    return sum(event["type"] == "call.started" for child in children(stack, job_id) for event in stack.events(child["id"]))


def test_two_children_side_by_side_outlive_every_worker(stack: Stack) -> None:
    left = delegate([shell("sleep 2; echo l > left.txt"), shell("sleep 1; echo l >> left.txt"), finish("left")], outputs=["left.txt"])
    right = delegate([shell("sleep 2; echo r > right.txt"), shell("sleep 1; echo r >> right.txt"), finish("right")], outputs=["right.txt"])
    script = [{"calls": [left, right]}, shell("cat left.txt right.txt"), finish("both")]
    job_id = stack.submit(script, agent=AGENT)
    until(stack, lambda: running(stack, job_id) >= 1)
    for victim in ("executor", "planner", "scheduler"):
        stack.kill(victim)
        stack.start(victim)
    job = stack.wait(job_id, timeout_s=120)
    assert (job["status"], job["answer"]) == ("succeeded", "both"), stack.logs()
    events = stack.events(job_id)
    assert gapless(events)
    assert finished_once(events)
    assert sum(event["type"] == "child.started" for event in events) == 2
    told = [event["data"] for event in events if event["type"] == "call.finished"]
    assert [data["observation"].split()[-4:] for data in told if data["tool"] == "shell"] == [["l", "l", "r", "r"]]
    for child in children(stack, job_id):
        assert (child["status"], child["root_id"], child["trace_id"]) == ("succeeded", job_id, job["trace_id"])
        assert gapless(stack.events(child["id"]))
        assert finished_once(stack.events(child["id"]))
    assert {finding.name: finding.first for finding in examine(stack.database) if not finding.holds} == {}


def test_a_cancel_of_the_parent_ends_its_childrens_commands_within_seconds(stack: Stack) -> None:
    job_id = stack.submit([{"calls": [delegate([shell("sleep 300")]), delegate([shell("sleep 300")])]}], agent=AGENT)
    until(stack, lambda: running(stack, job_id) >= 1)
    with stack.client() as client:
        job = client.get(f"/v1/jobs/{job_id}").json()
        rows = client.get("/v1/jobs", params={"status": "running", "limit": 100}).json()["data"]
    calls = {event["data"]["job_id"]: event["data"]["call_id"] for event in stack.events(job_id) if event["type"] == "child.started"}
    assert {child["id"]: child["call_id"] for child in job["waiting_for"]["children"]} == calls
    assert (job["status"], job["family"]["jobs"], job["family"]["live"], job["family"]["waiting"]) == ("running", 2, 2, 0)
    assert job["family"]["usage"]["total_tokens"] > job["usage"]["total_tokens"] > 0
    (row,) = [row for row in rows if row["id"] == job_id]
    assert [child["id"] for child in row["waiting_for"]["children"]] == list(calls)
    assert row["family"] is None
    began = time.monotonic()
    with stack.client() as client:
        assert client.post(f"/v1/jobs/{job_id}/cancel").status_code in {200, 202}
    until(stack, lambda: all(child["status"] == "cancelled" for child in children(stack, job_id)))
    assert time.monotonic() - began < 100  # a sleep of 300 s would show
    job = stack.wait(job_id)
    assert (job["status"], job["waiting_for"], job["family"]["live"]) == ("cancelled", None, 0)


def test_a_planner_that_dies_between_a_childs_end_and_its_parents_call_costs_nothing(stack: Stack) -> None:
    rules = stack.folder / "family.faults"
    rules.write_text(f"{Rule(Fault.PLANNER_RECORDED, Action.KILL, skip=1)}\n")  # the second record is the child's end
    stack.kill("planner")
    stack.start("planner", environment={VARIABLE: str(rules)})
    stack.wait_ready()
    job_id = stack.submit([delegate([finish("told")]), finish("end")], agent=AGENT)
    until(stack, lambda: not stack.process("planner").running())
    assert [child["status"] for child in children(stack, job_id)] == ["succeeded"]
    stack.kill("planner")
    stack.start("planner")
    job = stack.wait(job_id)
    assert (job["status"], job["answer"]) == ("succeeded", "end")
    events = stack.events(job_id)
    assert gapless(events)
    assert finished_once(events)
    assert any(event["type"] == "call.finished" and event["data"]["observation"] == "told" for event in events)
