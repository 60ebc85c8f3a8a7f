"""The judge of the fault matrix objects to every kind of broken history, and to no whole one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dualtrack.testing.chaos.jobs import ASKED, EXTERNAL_TOOL, PlannedJob
from dualtrack.testing.chaos.judge import Record, Verdict, judge, recovery
from dualtrack.testing.chaos.report import Result, as_json, into_page, markdown, terminal_row
from dualtrack.testing.witness import Effect

NOW = datetime(2026, 11, 30, tzinfo=UTC)
PLAN = PlannedJob("job-1-0", ({}, {}, {}, {}), ("0", "1"), ("job-1-0-2",), "http://127.0.0.1:1/hooks/job-1-0")
TOLD = Effect("hook:job-1-0", "msg_1")
HEARD = [Effect("job-1-0-2", "call_2"), TOLD]


def whole() -> Record:
    """A job that went well: two lines in its log, one effect, the log shown, the end."""

    def decided(step: int, tool: str, **arguments: Any) -> dict[str, Any]:
        call = {"id": f"call_{step}", "tool": tool, "arguments": arguments}
        return {"type": "step.decided", "data": {"step": step + 1, "calls": [call]}}

    def finished(step: int, tool: str, observation: str) -> dict[str, Any]:
        return {"type": "call.finished", "data": {"call_id": f"call_{step}", "tool": tool, "ok": True, "observation": observation}}

    events = [
        {"type": "job.queued", "data": {}},
        decided(0, "shell", command="echo 0 >> log"),
        finished(0, "shell", ""),
        decided(1, "shell", command="echo 1 >> log"),
        finished(1, "shell", ""),
        decided(2, EXTERNAL_TOOL, url="http://127.0.0.1:1/effects/job-1-0-2"),
        finished(2, EXTERNAL_TOOL, "HTTP 200"),
        decided(3, "shell", command="cat log"),
        finished(3, "shell", "0\n1\n"),
        {"type": "job.succeeded", "data": {}},
    ]
    for n, event in enumerate(events):
        event |= {"seq": n + 1, "at": (NOW + timedelta(seconds=n)).isoformat()}
    return Record(PLAN, "job_1", "succeeded", None, events, copy.deepcopy(events))


def columns(verdict: Verdict) -> tuple[int, int, int, int]:
    return verdict.lost, verdict.repeated, verdict.stuck, verdict.wrong_events


def test_a_whole_history_is_clean() -> None:
    verdict = judge([whole(), whole()], HEARD)
    assert (verdict.jobs, columns(verdict), verdict.problems, verdict.clean) == (2, (0, 0, 0, 0), [], True)


def _streamed(record: Record) -> list[dict[str, Any]]:
    assert record.streamed is not None
    return record.streamed


def never_answered(record: Record) -> None:
    record.job_id = None


def unknown_to_the_platform(record: Record) -> None:
    record.status = None


def failed(record: Record) -> None:
    record.status, record.message = "failed", "attempts exhausted"
    record.events[-1]["type"] = _streamed(record)[-1]["type"] = "job.failed"


def line_missing(record: Record) -> None:
    for events in (record.events, _streamed(record)):
        events[8]["data"]["observation"] = "0\n"


def effect_refused(record: Record) -> None:
    for events in (record.events, _streamed(record)):
        events[6]["data"] |= {"ok": False, "observation": "HTTP 500"}


def line_twice(record: Record) -> None:
    for events in (record.events, _streamed(record)):
        events[8]["data"]["observation"] = "0\n1\n1\n"


def still_running(record: Record) -> None:
    record.status = "running"
    del record.events[-1], _streamed(record)[-1]


def gap(record: Record) -> None:
    for events in (record.events, _streamed(record)):
        for event in events[4:]:
            event["seq"] += 1


def number_twice(record: Record) -> None:
    for events in (record.events, _streamed(record)):
        events[4]["seq"] = 4


def stream_without_one(record: Record) -> None:
    del _streamed(record)[3]


def stream_with_one_twice(record: Record) -> None:
    _streamed(record).insert(3, _streamed(record)[3])


def stream_with_another(record: Record) -> None:
    _streamed(record)[6]["data"]["observation"] = "HTTP 201"


def call_ended_twice(record: Record) -> None:
    for events in (record.events, _streamed(record)):
        events[4] = copy.deepcopy(events[2]) | {"seq": 5}


def step_decided_twice(record: Record) -> None:
    for events in (record.events, _streamed(record)):
        events[3]["data"]["step"] = 1


def two_ends(record: Record) -> None:
    for events in (record.events, _streamed(record)):
        events.append(copy.deepcopy(events[-1]) | {"seq": 11})


def end_of_another_kind(record: Record) -> None:
    for events in (record.events, _streamed(record)):
        events[-1]["type"] = "job.cancelled"


@pytest.mark.parametrize(
    ("breaking", "column"),
    [
        (never_answered, 0),
        (unknown_to_the_platform, 0),
        (failed, 0),
        (line_missing, 0),
        (effect_refused, 0),
        (line_twice, 1),
        (still_running, 2),
        (gap, 3),
        (number_twice, 3),
        (stream_without_one, 3),
        (stream_with_one_twice, 3),
        (stream_with_another, 3),
        (call_ended_twice, 3),
        (step_decided_twice, 3),
        (two_ends, 3),
        (end_of_another_kind, 3),
    ],
)
def test_it_objects(breaking: Callable[[Record], None], column: int) -> None:
    record = whole()
    breaking(record)
    verdict = judge([whole(), record], HEARD)
    assert columns(verdict)[column] > 0
    assert not verdict.clean
    assert verdict.problems


def test_an_effect_that_the_witness_heard_twice_is_a_repeated_one_whatever_its_key() -> None:
    assert columns(judge([whole()], [*HEARD, Effect("job-1-0-2", "call_9")])) == (0, 1, 0, 0)


def test_an_effect_that_a_job_believes_in_and_nobody_heard_is_a_lost_one() -> None:
    assert columns(judge([whole()], [TOLD])) == (1, 0, 0, 0)


def test_a_webhook_that_never_came_is_lost_and_one_that_came_twice_is_no_fault() -> None:
    assert columns(judge([whole()], HEARD[:1])) == (1, 0, 0, 0)
    assert judge([whole()], [*HEARD, TOLD]).clean  # at least once, by the specification


def test_a_call_that_needs_consent_must_not_begin_before_it() -> None:
    record = whole()
    call = {"id": "call_9", "tool": EXTERNAL_TOOL, "arguments": {"url": f"http://w/effects/x{ASKED}"}}
    events: list[dict[str, Any]] = [
        {"type": "step.decided", "data": {"step": 5, "calls": [call]}},
        {"type": "approval.decided", "data": {"call_id": "call_9", "status": "approved"}},
        {"type": "call.started", "data": {"call_id": "call_9"}},
        {"type": "call.finished", "data": {"call_id": "call_9", "tool": EXTERNAL_TOOL, "ok": True, "observation": ""}},
    ]
    for order, wrong in (((0, 1, 2, 3), 0), ((0, 2, 1, 3), 1), ((0, 2, 3), 1)):
        tail = [{"type": "job.succeeded", "data": {}}]
        record.events = [*whole().events[:-1], *(events[n] for n in order), *tail]
        record.events = [event | {"seq": n + 1, "at": NOW.isoformat()} for n, event in enumerate(record.events)]
        record.streamed = copy.deepcopy(record.events)
        assert columns(judge([record], HEARD)) == (0, 0, 0, wrong)


@pytest.mark.parametrize("heard", [[TOLD], HEARD])
def test_an_effect_of_unknown_outcome_may_have_happened_or_not_but_not_twice(heard: list[Effect]) -> None:
    record = whole()
    for events in (record.events, _streamed(record)):
        events[6]["data"] |= {"ok": False, "details": {"outcome": "unknown"}}
    assert judge([record], heard).clean
    assert columns(judge([record], [*HEARD, *HEARD])) == (0, 1, 0, 0)


CHILD_PLAN = PlannedJob("job-1-0-child", ({}, {}), (), ("job-1-0-child",), None)
HEARD_OF_FAMILY = [*HEARD, Effect("job-1-0-child", "call_c")]


def family() -> Record:
    """A job that delegated to a child, both of which went well; the child was at work between its parent's second and third event."""
    record = whole()
    call = {"id": "call_d", "tool": "delegate", "arguments": {}}
    told = {"call_id": "call_d", "tool": "delegate", "ok": True, "observation": "", "details": {"child_job_id": "job_2"}}
    record.events[1:1] = [
        {"type": "step.decided", "data": {"step": 0, "calls": [call]}},
        {"type": "child.started", "data": {"call_id": "call_d", "job_id": "job_2"}},
        {"type": "call.finished", "data": told},
    ]
    for n, event in enumerate(record.events):
        event |= {"seq": n + 1, "at": (NOW + timedelta(seconds=n if n < 3 else n + 6)).isoformat()}
    effect = {"id": "call_e", "tool": EXTERNAL_TOOL, "arguments": {"url": "http://127.0.0.1:1/effects/job-1-0-child"}}
    events: list[dict[str, Any]] = [
        {"type": "job.queued", "data": {}},
        {"type": "step.decided", "data": {"step": 1, "calls": [effect]}},
        {"type": "call.finished", "data": {"call_id": "call_e", "tool": EXTERNAL_TOOL, "ok": True, "observation": ""}},
        {"type": "job.succeeded", "data": {}},
    ]
    for n, event in enumerate(events):
        event |= {"seq": n + 1, "at": (NOW + timedelta(seconds=3 + n)).isoformat()}
    record.streamed = copy.deepcopy(record.events)
    record.plan = replace(PLAN, child=CHILD_PLAN)
    record.children = [Record(CHILD_PLAN, "job_2", "succeeded", None, events)]
    return record


def test_children_count_as_jobs() -> None:
    verdict = judge([family()], HEARD_OF_FAMILY)
    assert (verdict.jobs, columns(verdict), verdict.problems) == (2, (0, 0, 0, 0), [])
    assert columns(judge([family()], HEARD)) == (1, 0, 0, 0)  # nobody heard of the child's effect
    assert columns(judge([family()], [*HEARD_OF_FAMILY, *HEARD_OF_FAMILY])) == (0, 2, 0, 0)


def no_child(record: Record) -> None:
    record.children = []


def second_child(record: Record) -> None:
    record.children.append(replace(record.children[0], job_id="job_3"))


def stuck_child(record: Record) -> None:
    record.children[0].status = "running"
    del record.children[0].events[-1]


def childs_number_twice(record: Record) -> None:
    record.children[0].events[2]["seq"] = 2


def childs_start_told_twice(record: Record) -> None:
    for events in (record.events, _streamed(record)):
        events[1] = copy.deepcopy(events[2]) | {"seq": 2}


def childs_end_not_told(record: Record) -> None:
    for events in (record.events, _streamed(record)):
        events[3]["data"] |= {"ok": False}


@pytest.mark.parametrize(
    ("breaking", "column"),
    [
        (no_child, 0),
        (second_child, 1),
        (stuck_child, 2),
        (childs_number_twice, 3),
        (childs_start_told_twice, 3),
        (childs_end_not_told, 3),
    ],
)
def test_it_objects_to_broken_families(breaking: Callable[[Record], None], column: int) -> None:
    record = family()
    breaking(record)
    assert columns(judge([record], HEARD_OF_FAMILY))[column] > 0


def test_a_parent_is_not_silent_while_its_child_is_heard_and_a_childs_silence_counts() -> None:
    at = NOW.timestamp()
    assert recovery([family()], at).seconds == pytest.approx(3)  # from the child's end to what the parent was told
    quiet = family()
    for event in quiet.children[0].events[2:]:
        event["at"] = (datetime.fromisoformat(event["at"]) + timedelta(seconds=2.5)).isoformat()
    found = recovery([quiet], at)
    assert found.seconds == pytest.approx(3.5)
    assert found.what.startswith("job_2: step.decided (2), ")


def test_recovery_is_the_longest_silence_after_the_fault() -> None:
    quick, slow, later, over = whole(), whole(), whole(), whole()
    slow.job_id = "job_slow"
    for event in slow.events[5:]:
        event["at"] = (datetime.fromisoformat(event["at"]) + timedelta(seconds=7)).isoformat()
    for event in later.events:
        event["at"] = (datetime.fromisoformat(event["at"]) + timedelta(seconds=60)).isoformat()
    del over.events[4:]
    at = NOW.timestamp()
    found = recovery([quick, slow, later, over], at + 4.5)
    assert found.seconds == pytest.approx(7.5)  # from the fault on, not from the event before it
    assert found.what == "job_slow: call.finished (5), 7.50 s, step.decided; the second 7.50 s after the fault"
    assert recovery([slow], at + 2).seconds == pytest.approx(8)  # a later silence counts as well
    assert recovery([later], at).seconds == pytest.approx(1)  # what came before the first event does not
    assert recovery([over], at + 4.5).seconds == 0


def test_a_row_passes_only_when_all_is_zero_proved_and_in_time() -> None:
    def result(**more: Any) -> Result:
        values: dict[str, Any] = {
            "name": "kill",
            "what": "planner: kill -9",
            "verdict": judge([whole()], HEARD),
            "recovery": recovery([whole()], NOW.timestamp() + 0.5),
            "within_s": 2.0,
            "seconds": 3.0,
        }
        return Result(**values | more)

    good = result()
    assert (good.passed, good.problems) == (True, [])
    assert terminal_row(good).endswith("1.00 s  ok (3 s)")
    assert markdown([good]).splitlines()[-1] == "| planner: kill -9 | 1 | 0 | 0 | 0 | 0 | 1.00 s | 2 s |"
    for bad in (result(within_s=0.9), result(broken=["not proved: never reached"]), result(verdict=judge([whole()], []))):
        assert not bad.passed
        assert "FAILED" in terminal_row(bad)
        assert bad.problems[0] in terminal_row(bad)
        assert as_json([bad])[0]["passed"] is False


def test_the_table_goes_between_its_marks_and_nothing_else_of_a_page_changes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    once = into_page(page, "| a table |\n", "today:")
    assert "today:\n\n| a table |\n<!--" in once
    assert into_page(once, "| a table |\n", "today:") == once
    assert once.partition("<!-- matrix")[0] == page.partition("<!-- matrix")[0]
    assert once.partition("<!-- end")[2] == page.partition("<!-- end")[2]
    with pytest.raises(ValueError, match="lacks"):
        into_page("# No marks\n", "", "")
