"""Budgets: no decision starts over a limit, none is overshot by more than the decision in flight."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dualtrack.domain.budgets import (
    KeyDay,
    Member,
    Spent,
    extended,
    family_limit_reached,
    limit_reached,
    steps_under_way,
    wall_time_reached,
)
from dualtrack.domain.errors import InvalidRequest
from dualtrack.domain.limits import JobLimits, LimitsChange
from dualtrack.domain.reasons import Reason
from dualtrack.domain.usage import Usage

COSTS = st.decimals(0, 5, places=4)
USAGES = st.builds(Usage, st.integers(0, 5000), st.integers(0, 500), st.integers(0, 100), COSTS)
LIMITS = st.builds(JobLimits, steps=st.integers(1, 30), tokens=st.integers(1, 20_000), cost_usd=COSTS)


@given(limits=LIMITS, usages=st.lists(USAGES, max_size=40))
def test_no_decision_starts_over_a_limit_and_none_is_overshot_by_more_than_one(limits: JobLimits, usages: list[Usage]) -> None:
    spent = Spent(0, Usage())
    for usage in usages:
        if limit_reached(limits, spent) is not None:
            break
        assert spent.steps < limits.steps
        assert spent.usage.total_tokens < limits.tokens
        assert spent.usage.cost_usd < limits.cost_usd or spent.usage.cost_usd == limits.cost_usd == 0
        before, spent = spent, Spent(spent.steps + 1, spent.usage + usage)
        assert spent.steps <= limits.steps
        assert spent.usage.total_tokens - usage.total_tokens == before.usage.total_tokens < limits.tokens
    else:
        return
    assert limit_reached(limits, spent) is not None


@given(limits=LIMITS, more=st.builds(LimitsChange, steps=st.integers(1, 40), tokens=st.integers(1, 30_000)))
def test_an_extension_only_ever_leaves_more_room(limits: JobLimits, more: LimitsChange) -> None:
    lower = [name for name, value in more.given.items() if value < getattr(limits, name)]
    if lower:
        with pytest.raises(InvalidRequest, match=f"limits.{lower[0]}"):
            extended(limits, more)
        return
    wider = extended(limits, more)
    assert extended(wider, more) == wider  # asking again changes nothing
    assert (wider.cost_usd, wider.wall_time_s, wider.on_limit) == (limits.cost_usd, limits.wall_time_s, limits.on_limit)
    for spent in (Spent(limits.steps - 1, Usage(limits.tokens - 1)), Spent(0, Usage())):
        if limit_reached(limits, spent) is None:
            assert limit_reached(wider, spent) is None


@pytest.mark.parametrize(
    ("limits", "spent", "reason", "figures"),
    [
        ({"steps": 5}, Spent(5, Usage()), Reason.LIMIT_STEPS, "5 of the job's 5 steps"),
        ({"tokens": 100}, Spent(0, Usage(60, 41)), Reason.LIMIT_TOKENS, "101 of the job's 100 tokens"),
        ({"cost_usd": "0.5"}, Spent(0, Usage(cost_usd=Decimal("0.50"))), Reason.LIMIT_COST, "0.5 of the job's 0.5 US dollars"),
    ],
)
def test_the_sentence_names_the_limit_and_the_figures(limits: dict[str, object], spent: Spent, reason: Reason, figures: str) -> None:
    short = limit_reached(JobLimits.model_validate(limits), spent)
    assert short is not None
    assert (short.reason, short.until) == (reason, None)
    assert figures in short.message
    assert "limits." in short.message
    assert "3600" in wall_time_reached(JobLimits()).message


def test_a_cost_limit_of_zero_lets_free_models_work() -> None:
    assert limit_reached(JobLimits(cost_usd=Decimal(0)), Spent(1, Usage(10, 10))) is None
    assert limit_reached(JobLimits(cost_usd=Decimal(0)), Spent(1, Usage(cost_usd=Decimal("0.0001")))) is not None


def test_a_change_of_limits_names_something_and_stays_below_the_platforms_ceilings() -> None:
    for wrong in ({}, {"steps": 10_001}, {"steps": "7"}, {"wall_time_s": 0}, {"on_limit": "fail"}):
        with pytest.raises(ValidationError):
            LimitsChange.model_validate(wrong)


def test_a_keys_day_ends_at_midnight_utc() -> None:
    day = KeyDay("key_1", date(2026, 11, 30), Usage(60, 40), tokens=100, cost_usd=None)
    short = day.shortage()
    assert short is not None
    assert short.until == datetime(2026, 12, 1, tzinfo=UTC)
    assert "100 of its 100 tokens of 2026-11-30" in short.message
    assert KeyDay("key_1", date(2026, 11, 30), Usage(60, 40), tokens=None, cost_usd=Decimal(1)).shortage() is None
    costly = KeyDay("key_1", date(2026, 11, 30), Usage(cost_usd=Decimal("1.5")), tokens=None, cost_usd=Decimal(1)).shortage()
    assert costly is not None
    assert costly.reason is Reason.LIMIT_COST


def test_steps_that_others_are_at_count_up_the_line_and_one_s_own_does_not() -> None:
    def member(job_id: str, parent_id: str | None, steps: int, *, deciding: bool = False) -> Member:
        return Member(job_id, parent_id, JobLimits(steps=steps), Spent(1, Usage()), deciding)

    def family(*, left: bool, right: bool) -> list[Member]:
        return [
            member("root", None, 6),
            member("left", "root", 5, deciding=left),
            member("below", "left", 3),
            member("right", "root", 9, deciding=right),
        ]

    both = family(left=True, right=True)
    assert family_limit_reached(both, "below") is None
    short = steps_under_way(both, "below")
    assert short is not None
    assert (short.passing, short.job_id, short.reason) == (True, "root", Reason.LIMIT_STEPS)
    assert steps_under_way(both, "right") is None
    assert steps_under_way(family(left=False, right=True), "below") is None
