"""Calls that change the world, under the stepper: a tool that pays, and what may become of whoever runs it (for `Pay.then`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from dualtrack.domain.job import Job
from dualtrack.domain.step import Call
from dualtrack.domain.tool import Effect, Observation, ToolSpec
from dualtrack.testing.stepper import Stepper
from dualtrack.tools.port import ToolContext, ToolResult
from dualtrack.tools.schema import schema

PAY = {"tool": "pay", "arguments": {}}


class Pay:
    """Changes the world; the witness of how often is `keys`."""

    spec = ToolSpec("pay", "Pay.", schema({}), Effect.EXTERNAL)

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.then: Callable[[], None] = lambda: None
        self.before: Callable[[], None] = lambda: None
        self.cancel = threading.Event()
        """Of the call under way: set when it is to stop."""
        self.refuses = False

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        self.before()
        self.keys.append(context.idempotency_key)
        self.cancel = context.cancel
        self.then()
        return ToolResult(Observation(ok=not self.refuses, text="refused" if self.refuses else "paid"))


def only_call(stepper: Stepper, job: Job) -> Call:
    """The first call of the first step."""
    return stepper.steps(job)[0].calls[0]


def once(act: Callable[[], None]) -> Callable[[], None]:
    """`act`, the first time."""
    left = [act]
    return lambda: left.pop()() if left else None


def take_over(stepper: Stepper, job: Job) -> Callable[[], None]:
    """The executor is frozen for longer than its lease, and a second one comes."""

    def act() -> None:
        first = only_call(stepper, job)
        while only_call(stepper, job).attempt == first.attempt:  # a heartbeat may come in between
            stepper.leases_run_out()
            stepper.executor.run(first.id)

    return once(act)


def take_over_without_tools(stepper: Stepper, job: Job, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """As `take_over`, by an executor whose operator has taken all tools away."""
    taken_over = take_over(stepper, job)

    def act() -> None:
        monkeypatch.setattr(stepper.runtime.registry, "_tools", {})
        taken_over()

    return act


def breaks(error: Exception) -> Callable[[], None]:
    """It fails, the first time."""

    def act() -> None:
        raise error

    return once(act)
