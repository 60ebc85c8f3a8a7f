"""What somebody asks of a job on its way: to pause, to go on, to take up what they write.

Each under the job's row lock, in the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dualtrack.db import events, messages
from dualtrack.db.engine import Transaction
from dualtrack.domain.conflicts import JobWaits, LimitReached, ParentHeld
from dualtrack.domain.errors import TooLarge
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.message import Conversation, Message
from dualtrack.domain.waiting import Hold, WaitReason
from dualtrack.engine import flow
from dualtrack.engine.runtime import Runtime

_TO_DO: Final = {
    WaitReason.APPROVAL: "decide its open approvals",
    WaitReason.INPUT: "answer its open approvals",
    WaitReason.BUDGET: "extend the limit that it has reached",
}


def pause(tx: Transaction, runtime: Runtime, job: Job, *, by: str) -> None:
    """Ask a job (its row locked) to start nothing more and wait; what runs is finished first. Asking again changes nothing.

    Raises:
        JobEnded, JobStopping; JobWaits: for its budget.
    """
    if job.stopping is None and job.hold is Hold.BUDGET:
        raise JobWaits("The job has reached a limit and starts nothing more by itself: extend the limit to go on, or cancel the job.")
    flow.hold(tx, runtime, job, Hold.PAUSED, by=by)


def resume(tx: Transaction, runtime: Runtime, job: Job, *, by: str) -> None:
    """Let a paused job (its row locked) go on; one that is at work already is left alone.

    Raises:
        JobEnded, JobStopping; JobWaits, ParentHeld: it waits for something other than this.
    """
    flow.require_live(job)
    if job.hold is Hold.PAUSED:
        flow.release(tx, runtime, job, by=by)
    elif job.hold is Hold.PARENT:
        raise ParentHeld(f"The job is held because its parent is: resume or extend {job.parent_id}.")
    elif job.hold is Hold.BUDGET or job.status is JobStatus.WAITING:
        reason = WaitReason.BUDGET if job.hold is Hold.BUDGET else WaitReason(str(job.reason))
        raise JobWaits(f"The job is not paused, it waits ({reason}): {_TO_DO.get(reason, 'see its message')}, or cancel the job.")


def write(tx: Transaction, runtime: Runtime, job: Job, content: str, *, by: str, param: str = "content") -> Message:
    """Write a message to a live job (its row locked). It is shown to the model from the next decision that is begun.

    Raises:
        JobEnded, JobStopping; LimitReached: the job has had as many messages as it may.
        TooLarge: the message is too long; naming `param`.
    """
    limits = runtime.limits
    if len(content) > limits.message_chars:
        raise TooLarge(f"A message may have {limits.message_chars} characters (limits.message_chars).", param=param)
    flow.require_live(job)
    if job.messages >= limits.messages:
        raise LimitReached(f"The job has had {job.messages} messages, as many as it may (limits.messages).")
    message = messages.add(tx, job.id, content=content, by=by)
    events.append(tx, job.id, NewEvent(EventType.MESSAGE_ADDED, {"number": message.number, "content": content, "by": by}))
    return message


def take(tx: Transaction, job: Job, said: Conversation) -> Mapping[int, Sequence[str]]:
    """Take up what is new for the decision that is about to begin; all that was said, by the step that it followed.

    A place given once is never changed, so a decision that is tried again sees the same, and what came since after it.
    """
    if said.new:
        messages.take(tx, job.id, job.step)
        data = {"numbers": [message.number for message in said.new], "after_step": job.step}
        events.append(tx, job.id, NewEvent(EventType.MESSAGE_TAKEN, data))
    return said.shown(job.step)
