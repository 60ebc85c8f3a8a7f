"""Budgets: what may be used, what is used, and the sentence that says so when nothing is left.

A decision is started only while something of every limit is left, so none is overshot by more than the decision in flight; the tokens and
cost of a family or a key, by one decision of each job that is at one. Not the steps of a family: decisions under way are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

from dualtrack.domain.errors import InvalidRequest
from dualtrack.domain.limits import JobLimits, LimitsChange
from dualtrack.domain.reasons import Reason
from dualtrack.domain.usage import Usage


@dataclass(frozen=True, slots=True)
class Spent:
    """What a job and its children used so far."""

    steps: int
    """Decisions recorded."""
    usage: Usage


@dataclass(frozen=True, slots=True)
class Shortage:
    """A limit that leaves no room for another decision."""

    reason: Reason
    message: str
    """For a person: the limit and the figures."""
    until: datetime | None = None
    """When there is room again by itself; None: when somebody raises the limit."""
    waits: bool = True
    """Whether it is waited for; False: whoever set the limit wants the job to end."""
    job_id: str | None = None
    """The job above this one whose limit it is; None: its own, or its key's."""
    passing: bool = False
    """Nothing is used up yet: others of the family are at decisions that may do so, and there may be room again once they are recorded."""


def usd(amount: Decimal) -> str:
    """Money as the API shows it: without trailing zeros, nothing rounded."""
    return format(amount.normalize(), "f")


def no_cost_left(cost: Decimal, limit: Decimal) -> bool:
    """Whether money is used up; a limit of 0 means: only models that cost nothing."""
    return cost > limit or (limit > 0 and cost == limit)


def limit_reached(limits: JobLimits, spent: Spent, *, job_id: str | None = None) -> Shortage | None:
    """The first of a job's limits that leaves no room for another decision. `job_id`: names the job, where it is one above."""
    whose = "the job's" if job_id is None else f"job {job_id}'s"
    tokens, cost = spent.usage.total_tokens, spent.usage.cost_usd
    if spent.steps >= limits.steps:
        reason, figures = Reason.LIMIT_STEPS, f"{spent.steps} of {whose} {limits.steps} steps are used (limits.steps)"
    elif tokens >= limits.tokens:
        reason, figures = Reason.LIMIT_TOKENS, f"{tokens} of {whose} {limits.tokens} tokens are used (limits.tokens)"
    elif no_cost_left(cost, limits.cost_usd):
        reason, figures = Reason.LIMIT_COST, f"{usd(cost)} of {whose} {usd(limits.cost_usd)} US dollars are used (limits.cost_usd)"
    else:
        return None
    counted = "" if job_id is None else ", its children counted"
    return Shortage(reason, f"{figures}{counted}.", waits=limits.on_limit == "wait", job_id=job_id)


def wall_time_reached(limits: JobLimits) -> Shortage:
    """The shortage of a job whose time is over."""
    message = f"The job's {limits.wall_time_s} seconds of wall time are over (limits.wall_time_s)."
    return Shortage(Reason.LIMIT_WALL_TIME, message, waits=limits.on_limit == "wait")


@dataclass(frozen=True, slots=True)
class Member:
    """A job of a family: what it may use, and used itself."""

    job_id: str
    parent_id: str | None
    limits: JobLimits
    spent: Spent
    deciding: bool = False
    """Whether a decision of it is under way, which will be a step more."""


def family_limit_reached(members: Sequence[Member], job_id: str) -> Shortage | None:
    """The first limit, from the top of the family down to the job `job_id`, that what is used at and below it has reached."""
    parents = {member.job_id: member.parent_id for member in members}
    sums = dict.fromkeys(parents, Spent(0, Usage()))
    for member in members:
        for above in _line(member.job_id, parents):
            sums[above] = Spent(sums[above].steps + member.spent.steps, sums[above].usage + member.spent.usage)
    limits = {member.job_id: member.limits for member in members}
    for above in reversed(_line(job_id, parents)):
        short = limit_reached(limits[above], sums[above], job_id=None if above == job_id else above)
        if short is not None:
            return short
    return None


def steps_under_way(members: Sequence[Member], job_id: str) -> Shortage | None:
    """The first limit that will be reached once the decisions are recorded that other members are at; nothing is short without them."""
    counted = [
        replace(member, spent=Spent(member.spent.steps + 1, member.spent.usage)) if member.deciding and member.job_id != job_id else member
        for member in members
    ]
    short = family_limit_reached(counted, job_id)
    return None if short is None else replace(short, passing=True)


def _line(job_id: str, parents: Mapping[str, str | None]) -> list[str]:
    """A job and those above it, nearest first."""
    found, above = [], job_id if job_id in parents else None
    while above is not None:
        found.append(above)
        above = parents.get(above)
    return found


def extended(limits: JobLimits, change: LimitsChange) -> JobLimits:
    """The limits with new ceilings, none lower than before.

    Raises:
        InvalidRequest: one is; `param` names it.
    """
    for name, value in change.given.items():
        now = getattr(limits, name)
        if value < now:
            raise InvalidRequest(f"limits.{name}: is {now} now, and can only be raised.", param=f"limits.{name}")
    return limits.model_copy(update=change.given)


@dataclass(frozen=True, slots=True)
class KeyDay:
    """What an API key used on a day (UTC), and what it may use."""

    key_id: str
    day: date
    usage: Usage
    tokens: int | None
    """None: no limit."""
    cost_usd: Decimal | None

    @property
    def ends_at(self) -> datetime:
        """The midnight after it."""
        return datetime.combine(self.day + timedelta(days=1), time.min, UTC)

    def shortage(self) -> Shortage | None:
        """The first of the key's limits that leaves no room."""
        used = self.usage.total_tokens
        if self.tokens is not None and used >= self.tokens:
            return Shortage(Reason.LIMIT_TOKENS, self._sentence(f"{used} of its {self.tokens} tokens"), self.ends_at)
        if self.cost_usd is not None and no_cost_left(self.usage.cost_usd, self.cost_usd):
            spent = f"{usd(self.usage.cost_usd)} of its {usd(self.cost_usd)} US dollars"
            return Shortage(Reason.LIMIT_COST, self._sentence(spent), self.ends_at)
        return None

    def _sentence(self, figures: str) -> str:
        return f"The API key {self.key_id} has used {figures} of {self.day.isoformat()} (UTC); there is more after midnight UTC."
