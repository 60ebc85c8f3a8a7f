"""Jobs with children, under the stepper: who delegates, what the members of the family do, and what has become of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dualtrack.db import job_lists, jobs
from dualtrack.db.job_lists import JobFilter
from dualtrack.domain.job import DEFAULT_AGENT_TOOLS, Job
from dualtrack.domain.step import Call
from dualtrack.models.port import DecisionRequest
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.testing.model_script import Script
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper

TOOLS = [*DEFAULT_AGENT_TOOLS, "delegate"]
MODEL = Mapping[str, list[dict[str, Any]]]


def delegate(instructions: str, **more: Any) -> dict[str, Any]:
    """A scripted step that gives a child its instructions."""
    return {"tool": "delegate", "arguments": {"instructions": instructions, **more}}


def by_task(scripts: MODEL, on_decide: Callable[[DecisionRequest], None] | None = None) -> ScriptedModel:
    """A model whose script is that of the first word of the task."""
    return ScriptedModel(lambda request: Script.model_validate(scripts[request.task.split()[0]]), on_decide=on_decide)


def parent_of(stepper: Stepper, **spec: Any) -> Job:
    """A job that may delegate; its script is called `parent`."""
    return stepper.submit("parent", agent={"tools": TOOLS}, **spec)


def kids(stepper: Stepper, job: Job) -> list[Job]:
    """The children of a job, oldest first."""
    with stepper.runtime.database.transaction() as tx:
        return job_lists.page(tx, job.tenant_id, limit=100, wanted=JobFilter(parent_id=job.id), oldest_first=True)


def calls_of(stepper: Stepper, job: Job, step: int = 0) -> tuple[Call, ...]:
    """The calls of one of a job's steps, of the first if not told."""
    return stepper.steps(job)[step].calls


def in_workspace(stepper: Stepper, store: MemoryStore, job: Job) -> dict[str, int]:
    """The sizes of the files in a job's workspace, by path."""
    found = WorkspaceStore(store, job.tenant_id, stepper.runtime.limits).manifest(stepper.job(job).workspace)
    return {entry.path: entry.size for entry in found.entries}


def ring_until(stepper: Stepper, done: Callable[[], bool]) -> None:
    """Let rings arrive, one at a time, until it is so."""
    for _ in range(100):
        if done():
            return
        assert stepper.ring(), "nothing is left that could happen"
    raise AssertionError("it never came to that")


def under_lock(stepper: Stepper, job: Job, act: Callable[..., Any], *more: Any, **named: Any) -> Any:
    """What an act of the engine gives that needs the locked job."""
    with stepper.runtime.database.transaction() as tx:
        return act(tx, stepper.runtime, jobs.get(tx, job.id, lock=True), *more, **named)


TWO = {"calls": [delegate("left", outputs=["left.txt"]), delegate("right", outputs=["right.txt"])]}
