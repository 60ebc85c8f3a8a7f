"""How many sandboxes are kept warm."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualtrack.sandbox.demand import BUCKET_S, MEMORY_S, Demand, wanted


def test_without_claims_the_minimum_is_kept() -> None:
    assert wanted([0, 0, 0], 2, 8) == 2
    assert Demand().wanted(1000.0, 3, 8) == 3


def test_the_biggest_burst_counts_also_across_a_boundary() -> None:
    assert wanted([0, 3, 4, 0, 5], 1, 100) == 7
    assert wanted([9, 0, 0], 1, 100) == 9


def test_the_maximum_wins() -> None:
    assert wanted([50], 1, 8) == 8
    assert wanted([0], 5, 2) == 2
    assert wanted([7], 1, 0) == 0


def test_demand_grows_with_claims_and_is_forgotten() -> None:
    demand = Demand()
    for _ in range(6):
        demand.claimed(100.0)
    assert demand.wanted(100.0, 1, 16) == 6
    assert demand.wanted(100.0 + MEMORY_S - BUCKET_S, 1, 16) == 6
    assert demand.wanted(100.0 + MEMORY_S + 2 * BUCKET_S, 1, 16) == 1


def test_a_long_silence_forgets_everything() -> None:
    demand = Demand()
    demand.claimed(5.0)
    assert demand.wanted(1e9, 0, 16) == 0


@given(st.lists(st.floats(0, 500), max_size=60), st.integers(0, 20), st.integers(0, 20))
def test_never_outside_the_bounds(times: list[float], minimum: int, maximum: int) -> None:
    demand = Demand()
    for time in sorted(times):
        demand.claimed(time)
        kept = demand.wanted(time, minimum, maximum)
        assert min(minimum, maximum) <= kept <= maximum
        assert kept <= max(minimum, len(times))
