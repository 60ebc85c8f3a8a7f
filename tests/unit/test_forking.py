"""From where a retry goes on, and what becomes of calls that the job's end cut short."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from dualtrack.domain.doubt import DOUBTED, TOLD
from dualtrack.domain.forking import as_copied, reached_out, retry_step
from dualtrack.domain.lifecycle import CallStatus
from dualtrack.domain.step import Call, Step
from dualtrack.domain.tool import Effect
from dualtrack.domain.usage import Usage

AT = datetime(2026, 11, 30, tzinfo=UTC)
OK, FAILED, CANCELLED = CallStatus.SUCCEEDED, CallStatus.FAILED, CallStatus.CANCELLED


def call(tool: str, status: CallStatus, effect: Effect = Effect.WORKSPACE, **more: Any) -> Call:
    ok = None if status is CANCELLED else status is OK
    made = Call("call_1", "job_1", "ten_1", 1, 0, 0, tool, effect, {}, status, ok, "", None, {}, 1, 1, 0, "", AT, None, AT)
    return replace(made, **more)


def step(number: int, *calls: Call) -> Step:
    return Step("job_1", number, "", "", "", "m", Usage(), 0.0, AT, calls)


SHELL, FALSE, SHORT = call("shell", OK), call("shell", FAILED), call("shell", CANCELLED)
PAID = call("pay", OK, Effect.EXTERNAL, intent_at=AT)
UNSENT = call("pay", CANCELLED, Effect.EXTERNAL)
DOUBTFUL = call("pay", CANCELLED, Effect.EXTERNAL, details=DOUBTED)
PARENT = call("delegate", CANCELLED, details={"child_job_id": "job_2"})
REFUSED = call("delegate", FAILED)
GAVE_UP = call("finish", OK, Effect.CONTROL)


@pytest.mark.parametrize(
    ("steps", "reason", "after"),
    [
        ([[SHELL], [SHELL, SHORT]], "cancelled", 6),
        ([[SHELL], [PAID, SHORT]], "cancelled", 7),
        ([[SHELL], [UNSENT, SHORT]], "cancelled", 6),
        ([[SHELL], [DOUBTFUL, SHORT]], "outcome_unknown", 7),
        ([[SHELL], [PARENT, SHORT]], "cancelled", 7),
        ([[SHELL], [REFUSED, SHORT]], "cancelled", 6),
        ([[PAID], [GAVE_UP]], "agent_gave_up", 6),
        ([[SHELL], [PAID], [], []], "malformed_actions", 7),
        ([[SHELL], [FALSE], [FALSE], [FALSE]], "no_progress", 6),
        ([[SHELL], [FALSE], [FALSE, PAID], [FALSE]], "no_progress", 8),
        ([[SHORT]], "cancelled", 5),
        ([], "cancelled", 0),
    ],
)
def test_a_retry_goes_on_from_where_that_makes_sense_and_never_from_before_what_reached_out(
    steps: list[list[Call]], reason: str, after: int
) -> None:
    assert retry_step([step(number, *calls) for number, calls in enumerate(steps, 6)], reason) == after


@pytest.mark.parametrize(
    ("made", "outside"), [(PAID, True), (DOUBTFUL, True), (PARENT, True), (UNSENT, False), (REFUSED, False), (SHORT, False)]
)
def test_what_reaches_out(made: Call, outside: bool) -> None:
    assert reached_out(step(1, SHELL, made)) is outside


@pytest.mark.parametrize(
    ("made", "begins", "details"),
    [
        (SHORT, "Not run:", {"outcome": "not_run"}),
        (replace(SHORT, started_at=AT), "Cut off:", {"outcome": "cut_off"}),
        (UNSENT, "Not run:", {"outcome": "not_run"}),
        (replace(UNSENT, intent_at=AT), TOLD, DOUBTED),
        (DOUBTFUL, TOLD, DOUBTED),
        (PARENT, "Cut off: the job ended before the result of its helper (job_2)", {"child_job_id": "job_2", "outcome": "unknown"}),
    ],
)
def test_a_copy_says_what_became_of_a_call(made: Call, begins: str, details: dict[str, str]) -> None:
    end = as_copied(made)
    assert (end.preview.startswith(begins), end.details) == (True, details)


def test_what_a_command_had_said_until_it_was_cut_off_is_kept() -> None:
    assert as_copied(replace(SHORT, started_at=AT, preview="half way")).preview.endswith("said:\nhalf way")
