"""Children and their parents: a child's end becomes the outcome of its parent's call, a parent's holds and stops reach its children.

No transaction waits for a job while it holds another: what one job's end means for another is written in a transaction of its own, after
the first has committed. Should the process die between the two, the scheduler finds what is left to do (`Families`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from dualtrack.db import children, claims, events, jobs, steps
from dualtrack.db.engine import Transaction, assert_no_transaction
from dualtrack.domain.errors import DualtrackError
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.domain.step import Call
from dualtrack.domain.waiting import Held, Hold
from dualtrack.engine import extension, flow, observations
from dualtrack.engine.ending import request_stop, usage_data
from dualtrack.engine.runtime import Runtime
from dualtrack.objects.workspace import WorkspaceStore

_LOG: Final = logging.getLogger(__name__)
_MERGES: Final = 10
"""Times that files are merged anew because the parent's workspace changed meanwhile, before it is left to the scheduler."""


def tell_parent(runtime: Runtime, child_id: str) -> None:
    """Where a child has ended, let its parent know. Raises nothing: the scheduler does it as well, only later."""
    try:
        settle(runtime, child_id)
    except DualtrackError as error:
        _LOG.warning("its parent is told later: %s", error, extra={"job_id": child_id})


def settle(runtime: Runtime, child_id: str) -> bool:
    """Write a child's end down as the outcome of its parent's call, once, and take the parent on. Whether this call did.

    Raises:
        DatabaseUnavailable, StorageUnavailable: nothing was written.
    """
    for _ in range(_MERGES):
        with runtime.database.transaction() as tx:
            child = jobs.get(tx, child_id)
            if child.finished_at is None or child.parent_id is None or child.parent_call_id is None:
                return False
            parent, call = jobs.get(tx, child.parent_id), steps.call(tx, child.parent_call_id)
        if not _waits(parent, call):
            return False
        outcome = _outcome(runtime, parent, child, call)
        with runtime.database.transaction() as tx:
            now = jobs.get(tx, parent.id, lock=True)
            if not _waits(now, steps.call(tx, call.id)):
                return False
            if now.workspace == parent.workspace or not outcome.files:
                _record(tx, runtime, now, call, outcome)
                return True
    _LOG.warning("the parent's workspace keeps changing; told later", extra={"job_id": child_id})
    return False


def _waits(parent: Job, call: Call) -> bool:
    return parent.finished_at is None and parent.stopping is None and call.held is Held.CHILD


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a child came to, as its parent's agent is told."""

    ok: bool
    text: str
    preview: str
    observation_key: str | None
    details: dict[str, Any]
    files: tuple[str, ...]
    """Put into the parent's workspace."""
    workspace: str | None


def _outcome(runtime: Runtime, parent: Job, child: Job, call: Call) -> _Outcome:
    assert_no_transaction()
    ok, files, workspace = child.status is JobStatus.SUCCEEDED, child.spec.outputs, parent.workspace
    text = child.answer or ""
    if ok and files:
        try:
            workspace = WorkspaceStore(runtime.store, parent.tenant_id, runtime.limits).merged(parent.workspace, child.workspace, files)
            text = f"{text}\n\n[now in the workspace: {', '.join(files)}]"
        except DualtrackError as error:
            if error.retryable:
                raise
            ok, files, text = False, (), f"{text}\n\nIts files could not be taken over: {error.message}"
    if child.status is not JobStatus.SUCCEEDED:
        files, text = (), f"The helper's job ended: {child.status} ({child.reason}): {child.message or ''}\n\n{text}"
    text = text.strip()
    limit, key = runtime.limits.observation_chars, None
    if len(text) > limit:
        key = observations.key(parent.tenant_id, parent.id, call.id, call.attempt)
        runtime.store.put(key, text.encode(), content_type="text/plain; charset=utf-8")
    details = {"child_job_id": child.id, "status": child.status.value, "reason": child.reason, "usage": usage_data(child.usage)}
    return _Outcome(ok, text, observations.preview(text, call.id, limit), key, details, files, workspace)


def _record(tx: Transaction, runtime: Runtime, parent: Job, call: Call, outcome: _Outcome) -> None:
    """The outcome, its event and what follows from it, under the parent's row lock."""
    workspace = outcome.workspace if outcome.files else parent.workspace
    values = {
        "status": (CallStatus.SUCCEEDED if outcome.ok else CallStatus.FAILED).value,
        "ok": outcome.ok,
        "preview": outcome.preview,
        "observation_key": outcome.observation_key,
        "details": outcome.details,
        "workspace": workspace,
    }
    children.settle(tx, call.id, values)
    data = {
        "call_id": call.id,
        "step": call.step,
        "tool": call.tool,
        "ok": outcome.ok,
        "observation": outcome.preview,
        "truncated": outcome.observation_key is not None,
        "workspace": workspace,
        "details": outcome.details,
    }
    if outcome.files:
        jobs.change(tx, parent.id, {"workspace": workspace})
    events.append(tx, parent.id, NewEvent(EventType.CALL_FINISHED, data))
    flow.go_on(tx, runtime, jobs.get(tx, parent.id))


Each = Callable[[str, Callable[[Transaction, Job], bool]], bool]
"""Acts on a live job, its row locked, in a transaction of its own; not at all while somebody else holds the row."""


class Families:
    """The scheduler's part: what a crash left between a child and its parent, and what a parent's state means for its children."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def look(self, each: Each) -> int:
        """One look; on how many jobs it acted."""
        with self._runtime.database.transaction() as tx:
            astray, short = children.astray(tx, claims.BATCH), children.short_of_family(tx, claims.BATCH)
        acted = sum(each(job_id, self._go_along) for job_id in astray)
        acted += sum(each(job_id, self._look_again) for job_id in short)
        with self._runtime.database.transaction() as tx:
            untold = children.untold(tx, claims.BATCH)
        for child_id in untold:
            tell_parent(self._runtime, child_id)
        return acted + len(untold)

    def _go_along(self, tx: Transaction, child: Job) -> bool:
        """Do as the parent does. It is only read: should it change right now, the next look finds that."""
        if child.parent_id is None or child.stopping is not None:
            return False
        parent = jobs.get(tx, child.parent_id)
        if parent.finished_at is not None or parent.stopping is not None:
            return request_stop(tx, child, JobStatus.CANCELLED, by=parent.id)
        if parent.hold is not None and child.hold is None:
            return flow.hold(tx, self._runtime, child, Hold.PARENT, by=parent.id)
        if parent.hold is None and child.hold is Hold.PARENT:
            flow.release(tx, self._runtime, child, by=parent.id)
            return True
        return False

    def _look_again(self, tx: Transaction, child: Job) -> bool:
        return extension.look_again(tx, self._runtime, child, by="scheduler")
