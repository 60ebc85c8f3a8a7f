"""Questions to a person: they wait for their answer, and do without where nobody gives one."""

from __future__ import annotations

import pytest

from dualtrack.db.engine import Database
from dualtrack.domain.conflicts import OtherApprovalKind
from dualtrack.domain.errors import Conflict
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.testing.approvals import asked, decisions, lapse, submit
from dualtrack.testing.scripted_model import ScriptedModel

from .conftest import CountingSandbox, Make, finish, shell

QUESTION = {"tool": "ask_human", "arguments": {"question": "Which colour?", "options": ["red", "blue"]}}
ASKING = {"tools": ["ask_human", "shell", "finish"]}


def test_a_question_waits_for_its_answer(make: Make) -> None:
    model = ScriptedModel([QUESTION, finish()])
    stepper = make(model)
    job = submit(stepper, ASKING)
    assert (job.status, job.reason) == (JobStatus.WAITING, "input")
    (request,) = asked(stepper, job)
    assert (request.message, request.arguments["options"]) == ("Which colour?", ["red", "blue"])
    by = decisions(stepper)
    with pytest.raises(OtherApprovalKind, match="answer"):
        by.approve(request.id)
    answered = by.answer(request.id, text="green")
    assert by.answer(request.id, text="green") == answered
    with pytest.raises(Conflict):
        by.answer(request.id, text="red")
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    past = model.requests[1].steps[0].calls[0]
    assert (past.ok, past.observation) == (True, "green")


def test_a_question_beside_other_calls_and_finish(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([{"calls": [QUESTION, shell("echo later"), finish()]}, finish()])
    job = submit(stepper, ASKING)
    calls = stepper.steps(job)[0].calls
    assert [call.status for call in calls] == [CallStatus.PENDING, CallStatus.PENDING, CallStatus.FAILED]
    decisions(stepper).deny(asked(stepper, job)[0].id, reason="find out yourself")
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert stepper.steps(job)[0].calls[0].preview == "Nobody will answer that: find out yourself"
    assert len(sandbox.ran) == 1


def test_a_question_that_nobody_answers(make: Make, database: Database) -> None:
    stepper = make([QUESTION, finish()])
    job = submit(stepper, ASKING)
    lapse(database)
    stepper.scheduler.tick()
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert "Nobody answered in time" in stepper.steps(job)[0].calls[0].preview


def test_ask_human_is_offered_by_name_only(make: Make) -> None:
    stepper = make([QUESTION, finish()])
    job = stepper.run(stepper.submit())
    assert job.status is JobStatus.SUCCEEDED
    assert "no tool 'ask_human'" in stepper.steps(job)[0].calls[0].preview
