"""Whether there is room for another decision: a job's own limits, and what its key may use in a day."""

from __future__ import annotations

from dualtrack.db import budgets, children
from dualtrack.db.engine import Transaction
from dualtrack.domain.budgets import Member, Shortage, Spent, family_limit_reached, limit_reached, steps_under_way, wall_time_reached
from dualtrack.domain.job import Job
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.tool import DELEGATE_TOOL


def shortage(
    tx: Transaction,
    limits: PlatformLimits,
    job: Job,
    *,
    key_limited: bool = True,
    time_over: bool | None = None,
    beginning: bool = False,
) -> Shortage | None:
    """What leaves a job (its row locked) no room for another decision; None: nothing.

    What the caller knows already spares a look: `key_limited` (whether its key may have a limit of its own), `time_over`.

    `beginning`: the decision begins with this transaction. Then no two members of a family find the same last step free, and it may be a
    shortage that is `passing`.
    """
    members = _family(tx, job, locked=beginning)
    if time_over is None:
        time_over = budgets.time_over(tx, job.id)
    return (
        (limit_reached(job.limits, Spent(job.step, job.usage)) if members is None else family_limit_reached(members, job.id))
        or (wall_time_reached(job.limits) if time_over else None)
        or (_of_key(tx, limits, job.key_id) if job.key_id is not None and (key_limited or _any_key_limited(limits)) else None)
        or (steps_under_way(members, job.id) if beginning and members is not None else None)
    )


def plenty(limits: PlatformLimits, job: Job, *, key_limited: bool, time_over: bool) -> bool:
    """Whether nothing but the job's own limits matters, and they leave it room for another decision."""
    of_others = (job.key_id is not None and (key_limited or _any_key_limited(limits))) or DELEGATE_TOOL in job.spec.agent.tools
    return not (time_over or of_others) and limit_reached(job.limits, Spent(job.step, job.usage)) is None


def advice(short: Shortage, job: Job) -> str:
    """A job's shortage and what to do about it, for a person."""
    if short.until is not None:
        return f"{short.message} It goes on then, or when the key's limit is raised (`dualtrack keys limit`)."
    at_fault = short.job_id or job.id
    return f"{short.message} Extend it (POST /v1/jobs/{at_fault}/extend, `dualtrack jobs extend {at_fault}`), or cancel the job."


def _family(tx: Transaction, job: Job, *, locked: bool) -> list[Member] | None:
    """The job's family; None where it has none, so that there is nothing to add up."""
    if job.root_id is None and DELEGATE_TOOL not in job.spec.agent.tools:
        return None
    root_id = job.root_id or job.id
    if locked:
        children.lock_family(tx, root_id)
    return children.family(tx, root_id)


def _any_key_limited(limits: PlatformLimits) -> bool:
    return limits.key_day_tokens is not None or limits.key_day_cost_usd is not None


def _of_key(tx: Transaction, limits: PlatformLimits, key_id: str) -> Shortage | None:
    return budgets.key_day(tx, key_id, limits).shortage()
