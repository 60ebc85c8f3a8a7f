"""The usual case in one statement writes what the general way writes, and is taken in the usual case only."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

from dualtrack.db import jobs, shortcuts, tenants
from dualtrack.db.tables import api_keys, key_usage
from dualtrack.db.tables import calls as calls_table
from dualtrack.db.tables import events as events_table
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.db.tables import steps as steps_table
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.domain.waiting import Hold
from dualtrack.engine import ending, flow
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper

from .conftest import Make, finish, python, shell

_TIMES = {"created_at", "started_at", "finished_at", "due_at", "lease_until", "deadline_at", "at", "latency_s", "not_before"}
_ITS_OWN = {"traceparent", "request_traceparent", "owner", "key_id"}
SCRIPT: list[Any] = [
    python("open('a.txt','w').write('1')"),
    {"calls": [shell("cat a.txt"), {"tool": "list_files", "arguments": {}}, {"tool": "read_file", "arguments": {"path": "a.txt"}}]},
    {"calls": [{"tool": "nothing_like_it", "arguments": {}}, {"tool": "list_files", "arguments": {}}]},
    {"tool": "update_plan", "arguments": {"steps": [{"title": "t", "status": "pending"}]}},
    shell("exit 3"),
    {"tool": "save_artifact", "arguments": {"path": "a.txt"}},
    finish("done"),
]


def general_way_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcuts, "begin_call", lambda *_: None)
    monkeypatch.setattr(shortcuts, "finish_last_call", lambda *_, **__: False)
    monkeypatch.setattr(shortcuts, "record_decision", lambda *_, **__: False)


def written(stepper: Stepper, job: Job) -> str:
    """All rows of a job but for times and what names one run; ids in the order of their appearance."""
    found = []
    with stepper.runtime.database.transaction() as tx:
        for table, of_job, order in (
            (jobs_table, jobs_table.c.id, [jobs_table.c.id]),
            (steps_table, steps_table.c.job_id, [steps_table.c.number]),
            (calls_table, calls_table.c.job_id, [calls_table.c.step, calls_table.c.position]),
            (events_table, events_table.c.job_id, [events_table.c.seq]),
        ):
            for row in tx.connection.execute(select(table).where(of_job == job.id).order_by(*order)).mappings():
                times = {name: row[name] is None for name in row if name in _TIMES}
                found.append(f"{table.name} {times} { {name: row[name] for name in row if name not in _TIMES | _ITS_OWN} }")
    text = re.sub(r"'wall_s': [0-9.e-]+|'latency_s': [0-9.e-]+", "", "\n".join(found))
    ids: dict[str, str] = {}
    return re.sub(r"\b(?:job|call|art|evt)_[0-9A-Za-z]+", lambda match: ids.setdefault(match[0], f"id{len(ids)}"), text)


def count(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each shortcut was taken."""
    taken = dict.fromkeys(("begin_call", "finish_last_call", "record_decision"), 0)

    def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **more: Any) -> Any:
            result = original(*arguments, **more)
            taken[name] += bool(result)
            return result

        return run

    for name in taken:
        monkeypatch.setattr(shortcuts, name, counted(name, getattr(shortcuts, name)))
    return taken


@pytest.mark.parametrize("keyed", [False, True])
def test_both_ways_write_the_same(make: Make, monkeypatch: pytest.MonkeyPatch, keyed: bool) -> None:
    seen = []
    for general in (False, True):
        with monkeypatch.context() as patch:
            stepper = make(ScriptedModel(list(SCRIPT)))
            if general:
                general_way_only(patch)
            taken = count(patch)
            job = stepper.submit("the same")
            if keyed:
                with stepper.runtime.database.transaction() as tx:
                    tenants.create_key(tx, stepper.tenant_id, f"key-{general}")
                    key_id = tx.connection.execute(select(api_keys.c.id).where(api_keys.c.name == f"key-{general}")).scalar_one()
                    jobs.change(tx, job.id, {"key_id": key_id})
            job = stepper.run(job)
            assert job.status is JobStatus.SUCCEEDED
            assert all(taken.values()) is not general
            seen.append(written(stepper, job))
            if keyed:
                with stepper.runtime.database.transaction() as tx:
                    used = tx.connection.execute(select(key_usage.c.input_tokens).where(key_usage.c.key_id == key_id)).scalars()
                    assert sum(used) == job.usage.input_tokens > 0
    assert seen[0] == seen[1]


def at_a_pending_call(make: Make) -> tuple[Stepper, Job, str]:
    stepper = make(ScriptedModel([shell("true"), finish()]))
    job = stepper.submit()
    stepper.ring()
    (call,) = stepper.steps(job)[0].calls
    assert call.status is CallStatus.PENDING
    return stepper, job, call.id


@pytest.mark.parametrize(
    "values",
    [
        {"stopping": "cancelled"},
        {"hold": "paused"},
    ],
)
def test_a_call_of_a_job_that_is_asked_for_something_is_not_begun_at_once(make: Make, values: dict[str, Any]) -> None:
    stepper, job, call_id = at_a_pending_call(make)
    with stepper.runtime.database.transaction() as tx:
        jobs.change(tx, job.id, values)
        assert shortcuts.begin_call(tx, call_id, 1, stepper.runtime.limits) is None


@pytest.mark.parametrize("values", [{"guarded": True}, {"held": "approval", "due_at": None}, {"tries": 1}, {"due_at": None}])
def test_a_call_with_something_about_it_is_not_begun_at_once(make: Make, values: dict[str, Any]) -> None:
    stepper, job, call_id = at_a_pending_call(make)
    before = stepper.job(job).last_seq
    with stepper.runtime.database.transaction() as tx:
        tx.connection.execute(calls_table.update().where(calls_table.c.id == call_id).values(values))
        assert shortcuts.begin_call(tx, call_id, 1, stepper.runtime.limits) is None
    assert stepper.job(job).last_seq == before


def test_a_second_claim_finds_nothing_to_begin(make: Make) -> None:
    stepper, job, call_id = at_a_pending_call(make)
    for expected in (True, False):
        with stepper.runtime.database.transaction() as tx:
            assert (shortcuts.begin_call(tx, call_id, 1, stepper.runtime.limits) is not None) is expected
    assert [event.type.value for event in stepper.events(job)].count("call.started") == 1


@pytest.mark.parametrize("asked", ["cancel", "pause"])
def test_what_a_job_is_asked_while_its_call_runs_is_seen_at_the_end(make: Make, asked: str) -> None:
    stepper, job, _ = at_a_pending_call(make)

    def ask() -> None:
        with stepper.runtime.database.transaction() as tx:
            now = jobs.get(tx, job.id, lock=True)
            if asked == "cancel":
                ending.request_stop(tx, now, JobStatus.CANCELLED, by="test")
            else:
                flow.hold(tx, stepper.runtime, now, Hold.PAUSED, by="test")

    stepper.executor._sandbox.before = ask  # type: ignore[attr-defined]
    stepper.ring()
    assert stepper.job(job).status is (JobStatus.CANCELLED if asked == "cancel" else JobStatus.WAITING)
