"""Children and their parents: a child's end becomes the outcome of its parent's call, a parent's holds and stops reach its children.

No transaction waits for a job while it holds another: what one job's end means for another is written in a transaction of its own, after
the first has committed. Should the process die between the two, the scheduler finds what is left to do (`Families`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from dualtrack.db import children, claims, events, jobs, steps
from dualtrack.db.engine import Transaction, assert_no_transaction
from dualtrack.domain.errors import DualtrackError, RecordUnreadable
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.domain.step import CHILD, Call
from dualtrack.domain.waiting import Held, Hold
from dualtrack.engine import extension, flow, observations
from dualtrack.engine.ending import request_stop, usage_data
from dualtrack.engine.hands import Errand, Hands, HandsFactory
from dualtrack.engine.runtime import Runtime
from dualtrack.objects.workspace import WorkspaceStore

_LOG: Final = logging.getLogger(__name__)
_MERGES: Final = 10
"""Times that files are merged anew because the parent's workspace changed meanwhile, before it is left to the scheduler."""
_LOOK_S: Final = 60.0
"""A child for which an extension left no room is looked at again after this long; at once where there is another one."""


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
        RecordUnreadable: the parent can't be read.
    """
    for _ in range(_MERGES):
        with runtime.database.transaction() as tx:
            ended = children.end_of(tx, child_id)
            if ended is None:
                return False
            parent, call = jobs.get(tx, ended[0]), steps.call(tx, ended[1])
            try:
                child: Job | RecordUnreadable = jobs.get(tx, child_id)
            except RecordUnreadable as error:
                child = error
        if not _waits(parent, call):
            return False
        outcome = _lost(child_id, child) if isinstance(child, RecordUnreadable) else _outcome(runtime, parent, child, call)
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
    details = {CHILD: child.id, "status": child.status.value, "reason": child.reason, "usage": usage_data(child.usage)}
    return _Outcome(ok, text, observations.preview(text, call.id, limit), key, details, files, workspace)


def _lost(child_id: str, error: RecordUnreadable) -> _Outcome:
    """Of a child that has ended and that this release can't read."""
    text = f"The helper's job ended, and nothing can be read of it: {error.message}"
    details = {CHILD: child_id, "status": JobStatus.FAILED.value, "reason": error.code}
    return _Outcome(ok=False, text=text, preview=text, observation_key=None, details=details, files=(), workspace=None)


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
    """The scheduler's part: what a crash left between a child and its parent, and what a parent's state means for its children.

    Ends are told by threads of its own: the files of a child are merged for that, in an object store that may be slow or away.
    """

    def __init__(self, runtime: Runtime, hands: HandsFactory = Hands) -> None:
        self._runtime = runtime
        self._hands = hands(self, runtime.limits.scheduler_threads, "family")

    def look(self, each: Each, but: Collection[str]) -> int:
        """One look, not at the jobs of `but`; on how many jobs it acted. Raises `DatabaseUnavailable`."""
        with self._runtime.database.transaction() as tx:
            astray, short = children.astray(tx, claims.BATCH, but), children.short_of_family(tx, claims.BATCH, but)
        acted = sum(each(job_id, self._go_along) for job_id in astray)
        acted += sum(each(job_id, self._look_again) for job_id in short)
        return acted + self._hands.start_due()

    def close(self) -> None:
        """Tell no more ends; returns when what is under way has ended."""
        self._hands.close()

    def due(self, most: int, busy: Collection[str]) -> int:
        """For its threads."""
        with self._runtime.database.transaction() as tx:
            return len(children.untold(tx, most, busy))

    def take(self, busy: Collection[str]) -> Errand | None:
        """For its threads: of a family one at a time, since the children's files go into the same workspace."""
        with self._runtime.database.transaction() as tx:
            found = children.untold(tx, 1, busy)
        return Errand(found[0], lambda: self._tell(found[0])) if found else None

    def _tell(self, parent_id: str) -> bool:
        """Tell the ends of a job's children; those that can't be told now are left alone for a while. Whether all were told."""
        with self._runtime.database.transaction() as tx:
            ended = children.untold_of(tx, parent_id)
        left = []
        for n, child_id in enumerate(ended):
            try:
                told = settle(self._runtime, child_id)
            except DualtrackError as error:
                _LOG.warning("its parent is told later: %s", error, extra={"job_id": child_id})
                if error.retryable:
                    left += ended[n:]  # what is away for one is away for the others
                    break
                told = False
            except Exception:  # noqa: BLE001 - one bad child must not keep the others waiting
                _LOG.exception("its parent is told later", extra={"job_id": child_id})
                told = False
            if not told:
                left.append(child_id)
        if left:
            with self._runtime.database.transaction() as tx:
                children.put_off(tx, left, self._runtime.limits)
        return not left

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
        """Again after a while, where there is no room yet: whoever extends a job of the family has them looked at sooner."""
        if extension.look_again(tx, self._runtime, child, by="scheduler"):
            return True
        children.set_look(tx, child.id, _LOOK_S)
        return False
