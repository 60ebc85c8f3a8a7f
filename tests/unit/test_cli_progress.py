"""A job's events as lines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli.arguments import essential
from cli.progress import JobProgress
from dualtrack.domain.events import EventType

_START = datetime(2026, 11, 30, 8, 0, tzinfo=UTC)


def _events(*parts: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"seq": n + 1, "type": kind, "at": (_START + timedelta(seconds=n)).isoformat(), "job_id": "job_1", "data": data}
        for n, (kind, data) in enumerate(parts)
    ]


_USAGE = {"input_tokens": 1000, "output_tokens": 50, "cached_tokens": 0, "total_tokens": 1050, "cost_usd": "0.0015"}
_PLAN = [{"title": "Read", "status": "done"}, {"title": "Compute", "status": "in_progress"}, {"title": "Write", "status": "pending"}]
_RUN = _events(
    ("job.queued", {"instructions": "Summarise\nthe orders", "inputs": [{"path": "orders.csv"}]}),
    ("job.started", {}),
    (
        "step.decided",
        {
            "step": 1,
            "model": "local",
            "thought": "Look first.",
            "reflection": "",
            "calls": [
                {"id": "c1", "tool": "shell", "arguments": {"command": "head orders.csv"}},
                {"id": "c2", "tool": "update_plan", "arguments": {"plan": []}},
            ],
            "usage": _USAGE,
            "latency_s": 1.25,
        },
    ),
    ("plan.updated", {"step": 1, "plan": _PLAN}),
    ("call.started", {"call_id": "c1", "step": 1, "tool": "shell", "attempt": 1}),
    (
        "call.finished",
        {"call_id": "c1", "step": 1, "tool": "shell", "ok": True, "observation": "id,total\n1,2\n\x1b[31m3,4\x1b[0m", "wall_s": 0.5},
    ),
    ("artifact.saved", {"artifact_id": "art_1", "name": "report.md", "size": 4300}),
    ("checks.started", {"step": 2, "checks": ["test -f report.md"]}),
    ("checks.finished", {"step": 2, "passed": False, "failed": ["test -f report.md"]}),
    ("job.succeeded", {"answer": "Done.", "usage": {**_USAGE, "output_tokens": 100, "cost_usd": "0.0030"}, "steps": 2}),
)


def test_plain_mode_gives_one_line_an_event() -> None:
    progress = JobProgress()
    lines = [progress.feed(event) for event in _RUN]
    assert [len(found) for found in lines] == [1] * len(_RUN)
    assert [found[0] for found in lines] == [
        "[    0:00] queued (1 input file): Summarise the orders",
        "[    0:01] started",
        "[    0:02] step 1: Look first. -> shell, update_plan (local, 1.2 s, 1,050 tokens, $0.0015)",
        "[    0:03] plan: 1 of 3 done, now: Compute",
        "[    0:04] -> shell head orders.csv",
        "[    0:05] ok     shell head orders.csv in 0.5 s: id,total 1,2 3,4",
        "[    0:06] saved report.md (4.2 KiB)",
        "[    0:07] checking: 1 command",
        "[    0:08] checks FAILED: test -f report.md",
        "[    0:09] succeeded: 2 steps, 1,100 tokens, $0.003",
    ]
    assert (progress.status, progress.answer, progress.elapsed_s) == ("succeeded", "Done.", 9.0)
    assert [item["artifact_id"] for item in progress.artifacts] == ["art_1"]


def test_details_show_the_checklist_and_the_observation_indented() -> None:
    progress = JobProgress(details=True)
    lines = {event["type"]: progress.feed(event) for event in _RUN}
    assert lines["plan.updated"][1:] == ["           [x] Read", "           [>] Compute", "           [ ] Write"]
    assert lines["call.finished"][1:] == ["           id,total", "           1,2", "           3,4"]
    assert lines["checks.finished"][1:] == ["           test -f report.md"]


def test_a_long_observation_is_shortened() -> None:
    progress = JobProgress(details=True)
    data = {"call_id": "c", "tool": "shell", "ok": False, "observation": "\n".join(["x" * 500] * 50), "truncated": True}
    head, *below = progress.feed({"type": "call.finished", "data": data})
    assert head.endswith("FAILED shell (shortened)")
    assert len(below) == 7
    assert below[-1].strip() == "… 44 more lines"
    assert max(map(len, below)) <= 111


def test_what_is_running_now() -> None:
    progress = JobProgress()
    seen = []
    for event in _RUN[:6]:
        progress.feed(event)
        seen.append(progress.running())
    assert seen == ["deciding", "deciding", "waiting for a worker", "waiting for a worker", "shell head orders.csv", "deciding"]


def test_a_retried_call_is_not_running() -> None:
    progress = JobProgress()
    progress.feed({"type": "call.started", "data": {"call_id": "c", "tool": "shell", "attempt": 2}})
    assert progress.running() == "shell"
    (line,) = progress.feed({"type": "call.retrying", "data": {"call_id": "c", "tool": "shell", "message": "lost", "retry_in_s": 2.0}})
    assert line.endswith("shell: again in 2.0 s: lost")
    assert progress.running() == "waiting for a worker"


def test_a_cancelled_call_that_may_have_happened_says_so() -> None:
    for details, doubtful in (({}, False), ({"details": {"outcome": "unknown"}}, True)):
        (line,) = JobProgress().feed(_events(("call.cancelled", {"call_id": "c1", "step": 1, "tool": "pay"} | details))[0])
        assert ("cancelled pay" in line, "nobody knows whether it happened" in line) == (True, doubtful)


def test_every_event_type_is_told_by_more_than_its_name() -> None:
    for kind in set(EventType) - {EventType.CALL_OUTPUT}:
        (line,) = JobProgress().feed({"type": kind.value, "data": {}})
        assert kind.value not in line


def test_output_of_a_running_call_is_what_is_being_done() -> None:
    progress = JobProgress(details=True)
    call = {"call_id": "c", "tool": "shell", "step": 1}
    progress.feed({"type": "call.started", "data": call})
    assert progress.feed({"type": "call.output", "data": {**call, "channel": "stdout", "text": "compiling a\ncompiling \x1b[31mb\n"}}) == []
    assert progress.running() == "shell: compiling b"


def test_unknown_and_broken_events_do_no_harm() -> None:
    progress = JobProgress()
    assert progress.feed({"type": "approval.\x1b[2Jasked", "data": {}}) == ["[    0:00] approval.asked"]
    broken: tuple[Any, ...] = (
        None,
        3,
        [],
        {"calls": 3, "plan": "x", "usage": 4, "step": "x", "checks": {}, "failed": 1, "answer": [], "steps": []},
    )
    for kind in EventType:
        for data in broken:
            lines = JobProgress(details=True).feed({"type": kind.value, "at": "soon", "data": data})
            assert lines or kind is EventType.CALL_OUTPUT


def test_nothing_from_outside_steers_the_terminal() -> None:
    evil = "\x1b]0;x\x07\x9b2J\r\n\u202e"
    for kind in EventType:
        data = dict.fromkeys(
            [
                "instructions",
                "model",
                "thought",
                "reflection",
                "tool",
                "error",
                "raw",
                "message",
                "observation",
                "name",
                "reason",
                "target",
            ],
            evil,
        )
        calls = [{"id": "c", "tool": evil, "arguments": {evil: evil}}]
        event = {
            "type": kind.value,
            "data": {**data, "call_id": "c", "calls": calls, "plan": [{"title": evil, "status": evil}], "failed": [evil]},
        }
        for line in JobProgress(details=True).feed(event):
            assert line.replace("\ufffd", "").replace("…", "").isprintable(), (kind, line)


def test_watching_from_the_middle_takes_the_time_from_the_job() -> None:
    progress = JobProgress(started_at=_START - timedelta(hours=1))
    assert progress.feed(_RUN[4]) == ["[ 1:00:04] -> shell"]


def test_essential_arguments() -> None:
    assert essential("execute_python", {"code": "import csv\nprint(1)"}) == "import csv print(1)"
    assert essential("edit_file", {"old": "a", "path": "a.py"}) == "a.py"
    assert essential("mcp:search", {"q": "x"}) == '{"q": "x"}'
    assert essential("update_plan", {"plan": []}) == ""
    assert essential("shell", None) == ""


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"checks": ["a", "b"], "outputs": []}, "checking: 2 commands"),
        ({"checks": [], "outputs": ["r.md"]}, "checking: 1 output file"),
        ({"checks": ["a"], "outputs": ["r.md", "s.md"]}, "checking: 1 command, 2 output files"),
        ({}, "checking"),
    ],
)
def test_checks_and_outputs_are_counted(data: dict[str, object], text: str) -> None:
    event = {"seq": 1, "type": "checks.started", "at": "2026-11-30T08:00:00Z", "data": data}
    assert JobProgress().feed(event) == [f"[    0:00] {text}"]
