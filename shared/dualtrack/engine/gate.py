"""Whether a job that a planner has claimed gets another decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dualtrack.db import events, jobs
from dualtrack.db.engine import Transaction
from dualtrack.db.prepared import Later
from dualtrack.db.rows import AnyRow
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.policies import is_stuck
from dualtrack.domain.reasons import Reason
from dualtrack.domain.step import Step
from dualtrack.domain.waiting import Hold
from dualtrack.engine import budgets, flow
from dualtrack.engine.context import verified
from dualtrack.engine.ending import end_job, finish_stop
from dualtrack.engine.runtime import Runtime

_SHOWN_CHARS: Final = 300
_TURN_S: Final = 1.0
"""After this long a job looks again whether the last steps of its family, which others are at, are used."""


class Gate:
    """Ends a claimed job, or lets it wait, where it needs no further decision or may not have one. All under the job's row lock."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def plainly_open(self, job: Job, history: Sequence[Step], claim: AnyRow) -> bool:
        """Whether the job gets another decision, which nothing has to be written or looked up for.

        For one that nobody has written to and that has no family; `claim` as in `closed`.
        """
        limits = self._runtime.limits
        judging = bool(history) and history[-1].finish is not None
        asked = job.stopping is not None or job.hold is not None
        worn = job.tries > limits.attempts or job.malformed >= limits.malformed_actions
        return not (judging or asked or worn or is_stuck(_own(job, history), limits.same_failure)) and budgets.plenty(
            limits, job, key_limited=bool(claim.key_limited), time_over=bool(claim.time_over)
        )

    def closed(self, tx: Transaction, job: Job, history: Sequence[Step], claim: AnyRow, *, unanswered: bool) -> bool:
        """Whether there is none, and what follows from that is written.

        `claim`: the row as `db.claims.claim` gives it. `unanswered`: its user wrote since the last decision.
        """
        if job.stopping is not None:
            jobs.release(tx, job.id, job.attempt, {})
            finish_stop(tx, job.id, job.stopping)
            return True
        if self._verified(tx, job, history, unanswered=unanswered):
            return True
        if job.hold is not None:
            jobs.release(tx, job.id, job.attempt, {"tries": job.tries - 1})
            flow.go_on(tx, self._runtime, jobs.get(tx, job.id))
            return True
        end: tuple[Reason, str] | None = None
        if job.tries > self._runtime.limits.attempts:
            end = (
                Reason.ATTEMPTS_EXHAUSTED,
                f"The next step was tried {job.tries - 1} times and whoever planned it died or froze each time.",
            )
        elif job.malformed >= self._runtime.limits.malformed_actions:
            end = Reason.MALFORMED_ACTIONS, f"The model gave {job.malformed} answers in a row that are no action; try a stronger model."
        elif not unanswered and is_stuck(_own(job, history), self._runtime.limits.same_failure):
            failed = next(call for call in history[-1].calls if call.ok is False)
            what = f"{verified(failed)!r}" if failed in history[-1].verifications else failed.tool
            last = f": {failed.preview.strip()[:_SHOWN_CHARS]}" if failed.preview.strip() else "."
            end = Reason.NO_PROGRESS, f"{what} failed the same way {self._runtime.limits.same_failure} times in a row{last}"
        if end is None:
            return self._out_of_budget(tx, job, claim)
        end_job(tx, job.id, JobStatus.FAILED, reason=end[0], message=end[1])
        return True

    def _out_of_budget(self, tx: Transaction, job: Job, claim: AnyRow) -> bool:
        """Let the claimed job wait (or fail, where it wants that) when a limit leaves no room for another decision."""
        short = budgets.shortage(
            tx, self._runtime.limits, job, key_limited=bool(claim.key_limited), time_over=claim.time_over, beginning=True
        )
        if short is None:
            return False
        if short.passing:  # only what is recorded is used: what others are at may come to nothing
            jobs.release(tx, job.id, job.attempt, {"tries": job.tries - 1, "due_at": Later(_TURN_S), "not_before": Later(_TURN_S)})
            return True
        if not short.waits:
            status = JobStatus.EXPIRED if short.reason is Reason.LIMIT_WALL_TIME else JobStatus.FAILED
            end_job(tx, job.id, status, reason=short.reason, message=short.message)
            return True
        jobs.release(tx, job.id, job.attempt, {"tries": job.tries - 1})
        flow.hold(tx, self._runtime, jobs.get(tx, job.id), Hold.BUDGET, by="planner")
        return True

    @staticmethod
    def _verified(tx: Transaction, job: Job, history: Sequence[Step], *, unanswered: bool) -> bool:
        """After what a `finish` set off (checks, outputs) has run: succeed when all of it passed and the user has not written meanwhile."""
        if not history or history[-1].finish is None or not history[-1].verifications:
            return False
        failed = [verified(call) for call in history[-1].verifications if not call.ok]
        if job.verified_step < job.step:
            jobs.change(tx, job.id, {"verified_step": job.step})
            events.append(tx, job.id, NewEvent(EventType.CHECKS_FINISHED, {"step": job.step, "passed": not failed, "failed": failed}))
        if failed or unanswered:
            return False
        end_job(tx, job.id, JobStatus.SUCCEEDED, answer=str(history[-1].finish.arguments.get("answer", "")))
        return True


def _own(job: Job, history: Sequence[Step]) -> list[Step]:
    """The steps that this job decided itself: a fork is not stuck where it begins."""
    return [step for step in history if step.number > (job.forked_step or 0)]
