"""Taking a decision apart: what is refused, what changes the job itself, what goes to an executor and in which wave."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from dualtrack.domain.events import EventType
from dualtrack.domain.job import Job, JobSpec
from dualtrack.domain.lifecycle import JobStatus, Phase
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.tool import ProposedCall
from dualtrack.domain.usage import Usage
from dualtrack.engine.decisions import DecisionReader, Outline
from dualtrack.tools.registry import Registry

NOW = datetime.now(UTC)
LIMITS = PlatformLimits()


def outline(*proposals: ProposedCall, limits: PlatformLimits = LIMITS, **spec: Any) -> Outline:
    wanted = JobSpec.model_validate({"instructions": "do it", **spec})
    job = Job(
        id="job_1", tenant_id="ten_1", spec=wanted, limits=wanted.limits, status=JobStatus.RUNNING,
        phase=Phase.PLAN, reason=None, message=None, answer=None, plan=(), step=0, workspace=None, last_seq=1, attempt=1, tries=1,
        failures=0, malformed=0, compacted_through=0, verified_step=0,
        stopping=None, usage=Usage(), traceparent="", request_traceparent="", created_at=NOW,
        started_at=NOW, finished_at=None, deadline_at=NOW + timedelta(hours=1),
    )  # fmt: skip
    return DecisionReader(Registry(), limits).outline(job, 1, proposals, "00-aa-bb-01")


def read(path: str) -> ProposedCall:
    return ProposedCall("read_file", {"path": path})


def shell(command: str) -> ProposedCall:
    return ProposedCall("shell", {"command": command})


def finish(answer: str = "done", **more: Any) -> ProposedCall:
    return ProposedCall("finish", {"answer": answer, **more})


def test_neighbouring_pure_calls_run_together_and_others_alone_in_order() -> None:
    found = outline(read("a"), read("b"), shell("make"), read("c"))
    assert [wave for wave, _ in found.dispatch] == [0, 0, 1, 2]
    assert found.first_wave == [row["id"] for row in found.rows[:2]]
    assert all(row["status"] == "pending" and row["traceparent"] == "00-aa-bb-01" for row in found.rows)


def test_a_tool_that_is_not_offered_is_refused_and_the_others_run() -> None:
    found = outline(ProposedCall("rm_rf", {}), shell("ls"), agent={"tools": ["shell"]})
    refused, kept = found.rows
    assert refused["ok"] is False
    assert "There is no tool 'rm_rf'. The tools are: shell, finish" in refused["preview"]
    assert [call_id for _, call_id in found.dispatch] == [kept["id"]]


def test_a_real_tool_outside_the_profile_is_refused_too() -> None:
    (row,) = outline(shell("ls"), agent={"tools": ["read_file"]}).rows
    assert row["ok"] is False


def test_wrong_arguments_come_back_naming_the_field() -> None:
    (row,) = outline(ProposedCall("shell", {"command": 7})).rows
    assert row["ok"] is False
    assert "command" in row["preview"]


def test_arguments_that_no_database_holds_are_refused_and_kept_readable() -> None:
    (row,) = outline(shell("echo \x00")).rows
    assert row["ok"] is False
    assert row["arguments"] == {"command": "echo \ufffd"}


def test_oversized_arguments_are_refused_and_not_kept() -> None:
    (row,) = outline(shell("x" * LIMITS.arguments_bytes)).rows
    assert row["ok"] is False
    assert row["arguments"] == {}


def test_the_first_call_beyond_the_limit_is_refused_on_behalf_of_all() -> None:
    found = outline(*[read(str(n)) for n in range(50_000)], limits=PlatformLimits(calls_per_step=3))
    assert [row.get("ok") for row in found.rows] == [None, None, None, False]
    assert "nor the 49996 calls after it" in found.rows[3]["preview"]


def test_a_plan_changes_the_job_and_needs_no_executor() -> None:
    steps = [{"title": "look", "status": "done"}, {"title": "write", "status": "pending"}]
    found = outline(ProposedCall("update_plan", {"steps": steps}))
    assert found.plan == steps
    assert not found.dispatch
    assert [event.type for event in found.events] == [EventType.PLAN_UPDATED]


def test_finish_beside_other_calls_waits_for_their_results() -> None:
    found = outline(shell("make"), finish())
    assert found.finish is None
    assert found.rows[1]["ok"] is False
    assert len(found.dispatch) == 1


def test_finish_beside_a_plan_or_a_refused_call_counts() -> None:
    found = outline(ProposedCall("nothing", {}), ProposedCall("update_plan", {"steps": []}), finish("42"))
    assert found.finish is not None
    assert found.finish.answer == "42"


def test_two_finishes_are_one() -> None:
    found = outline(finish("a"), finish("b"))
    assert found.finish is not None
    assert found.finish.answer == "a"
    assert [row["ok"] for row in found.rows] == [True, False]


def test_checks_are_dispatched_one_after_the_other_behind_a_finish() -> None:
    found = outline(finish(), checks=["test -s a", "pytest"])
    assert [(row["tool"], row["position"]) for row in found.rows] == [("finish", 0), ("check", 1), ("check", 2)]
    assert [wave for wave, _ in found.dispatch] == [0, 1]
    assert [event.type for event in found.events] == [EventType.CHECKS_STARTED]


def test_giving_up_runs_no_checks() -> None:
    found = outline(finish("can't", success=False), checks=["true"])
    assert found.finish is not None
    assert not found.finish.success
    assert not found.dispatch


def test_the_model_can_not_call_the_engines_own_check_tool() -> None:
    (row,) = outline(ProposedCall("check", {"command": "true"})).rows
    assert row["ok"] is False
