"""Budgets: what may be used, what is used, and the sentence that says so when nothing is left.

A decision is started only while something of every limit is left, so none is overshot by more than the decision in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
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


def usd(amount: Decimal) -> str:
    """Money as the API shows it: without trailing zeros, nothing rounded."""
    return format(amount.normalize(), "f")


def no_cost_left(cost: Decimal, limit: Decimal) -> bool:
    """Whether money is used up; a limit of 0 means: only models that cost nothing."""
    return cost > limit or (limit > 0 and cost == limit)


def limit_reached(limits: JobLimits, spent: Spent, whose: str = "the job's") -> Shortage | None:
    """The first of a job's own limits that leaves no room for another decision."""
    if spent.steps >= limits.steps:
        return Shortage(Reason.LIMIT_STEPS, f"{spent.steps} of {whose} {limits.steps} steps are used (limits.steps).")
    tokens = spent.usage.total_tokens
    if tokens >= limits.tokens:
        return Shortage(Reason.LIMIT_TOKENS, f"{tokens} of {whose} {limits.tokens} tokens are used (limits.tokens).")
    cost = spent.usage.cost_usd
    if no_cost_left(cost, limits.cost_usd):
        return Shortage(Reason.LIMIT_COST, f"{usd(cost)} of {whose} {usd(limits.cost_usd)} US dollars are used (limits.cost_usd).")
    return None


def wall_time_reached(limits: JobLimits) -> Shortage:
    """The shortage of a job whose time is over."""
    return Shortage(Reason.LIMIT_WALL_TIME, f"The job's {limits.wall_time_s} seconds of wall time are over (limits.wall_time_s).")


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
