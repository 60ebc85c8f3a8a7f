"""`dualtrack jobs watch`: progress on standard error, the answer on standard output, the job's end in the exit status."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from cli.follow import Follower
from cli.outcome import Exit
from cli.session import Session
from cli.watch import watch

from .conftest import ARTIFACT, JOB, Router, Run, job_event, sse


@pytest.mark.parametrize(
    ("kind", "data", "status"),
    [
        ("job.succeeded", {"answer": "42"}, Exit.OK),
        ("job.failed", {"reason": "limit_steps", "message": "Stopped after 5 steps."}, Exit.JOB_FAILED),
        ("job.cancelled", {}, Exit.CANCELLED),
        ("job.expired", {}, Exit.EXPIRED),
    ],
)
def test_the_exit_status_tells_how_a_job_ended(router: Router, run: Run, kind: str, data: dict[str, Any], status: int) -> None:
    router.on("GET /v1/jobs/job_1/events", lambda _: sse(job_event(1, "job.started"), job_event(2, kind, **data)))
    router.on("GET /v1/jobs/job_1/artifacts", {"data": [ARTIFACT], "has_more": False})
    result = run("jobs", "watch", "job_1")
    assert result.exit_code == status
    assert result.stdout == (f"{data['answer']}\n" if "answer" in data else "")
    lines = result.stderr.splitlines()
    assert lines[0] == "[    0:01] started"
    assert kind.removeprefix("job.") in lines[1]
    assert "dualtrack artifacts get art_1" in lines[-1]


def test_at_a_terminal_the_last_line_moves(router: Router, tmp_path: Path) -> None:
    call = {"id": "c", "tool": "shell", "arguments": {"command": "ls"}}
    plan = [{"title": "Look", "status": "in_progress"}]
    events = [
        job_event(
            1, "step.decided", step=1, thought="Look", calls=[call], usage={"input_tokens": 7, "output_tokens": 1, "cost_usd": "0.02"}
        ),
        job_event(2, "plan.updated", step=1, plan=plan),
        job_event(3, "call.started", call_id="c", step=1, tool="shell"),
        job_event(4, "call.finished", call_id="c", step=1, tool="shell", ok=True, observation="\x1b]0;evil\x07a.txt"),
        job_event(5, "job.cancelled"),
    ]
    router.on("GET /v1/jobs/job_1/events", lambda _: sse(*events))
    session = Session(environ={"HOME": str(tmp_path), "DUALTRACK_API_KEY": "k"}, transport=httpx.MockTransport(router))
    screen = io.StringIO()
    session.out.__dict__["errors"] = Console(file=screen, force_terminal=True, width=100, highlight=False, markup=False, soft_wrap=True)
    assert watch(session, "job_1") == Exit.CANCELLED
    shown = screen.getvalue()
    assert "step 1  shell ls  8 tokens, $0.02" in shown
    assert "           [>] Look" in shown
    assert "           a.txt" in shown
    assert "\x1b]" not in shown


def test_watching_as_json_gives_the_events_only(router: Router, run: Run) -> None:
    events = [job_event(2, "job.started"), job_event(3, "job.failed", reason="no_progress")]
    router.on("GET /v1/jobs/job_1/events", lambda _: sse(*events))
    result = run("jobs", "watch", "job_1", "--after", "1", "--json")
    assert [json.loads(line) for line in result.stdout.splitlines()] == events
    assert (result.exit_code, result.stderr) == (Exit.JOB_FAILED, "")
    assert router.asked[-1].url.params["after"] == "1"


def test_submit_and_watch_as_json(router: Router, run: Run) -> None:
    router.on("POST /v1/jobs", JOB, 201)
    router.on("GET /v1/jobs/job_1/events", lambda _: sse(job_event(1, "job.succeeded", answer="x")))
    result = run("jobs", "submit", "Do", "--watch", "--json")
    assert [json.loads(line).get("object", "event") for line in result.stdout.splitlines()] == ["job", "event"]
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_job_that_had_ended_before(router: Router, run: Run) -> None:
    router.on("GET /v1/jobs/job_1", {**JOB, "status": "expired"})
    router.on("GET /v1/jobs/job_1/events", lambda _: sse())
    assert run("jobs", "watch", "job_1", "--after", "3").exit_code == Exit.EXPIRED


def test_interrupted_says_that_the_job_goes_on(router: Router, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Follower):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            for event in super().__iter__():
                yield event
                raise KeyboardInterrupt

    monkeypatch.setattr("cli.watch.Follower", Interrupted)
    router.on("GET /v1/jobs/job_1/events", lambda _: sse(job_event(1, "job.started"), job_event(2, "job.succeeded")))
    result = run("jobs", "watch", "job_1")
    assert result.exit_code == Exit.INTERRUPTED
    assert "the job goes on" in result.stderr
    assert "dualtrack jobs watch job_1 --after 1\n" in result.stderr
    assert "dualtrack jobs cancel job_1\n" in result.stderr


def test_the_exit_status_tells_of_the_job_even_if_its_artifacts_cannot_be_listed(router: Router, run: Run) -> None:
    router.on("GET /v1/jobs/job_1/events", lambda _: sse(job_event(1, "job.succeeded", answer="x")))
    result = run("jobs", "watch", "job_1")
    assert (result.exit_code, result.stdout) == (0, "x\n")
    assert "dualtrack artifacts list job_1" in result.stderr
