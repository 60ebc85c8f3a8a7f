"""When a context is compacted, and what is kept whatever a model writes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualtrack.domain.limits import PlatformLimits
from dualtrack.engine.compaction import KEEP_STEPS, LEAST_CHARS, WINDOW_SHARE, WORTH_STEPS, Cut, Room, Way, due, refused, room
from dualtrack.engine.digests import composed, cut
from dualtrack.models.port import DecisionRequest, PastCall, PastStep

from .test_context import job, step

LIMITS = PlatformLimits()
ROOM = Room(context_tokens=1000, summary_chars=1000)


def test_the_room_is_the_operators_or_a_share_of_the_models_window() -> None:
    assert room(LIMITS, None).context_tokens == room(LIMITS, 1_000_000).context_tokens == LIMITS.context_tokens
    small = room(LIMITS, 10_000)
    assert small == (int(10_000 * WINDOW_SHARE), int(10_000 * WINDOW_SHARE))
    assert room(LIMITS, 1_000_000).summary_chars == LIMITS.summary_chars


def test_a_context_is_compacted_when_its_tokens_pass_the_room() -> None:
    assert due(job(step=9, context_tokens=1000), [step(9, "")], ROOM, LIMITS) is None
    assert due(job(step=9, context_tokens=1001), [step(9, "")], ROOM, LIMITS) == Cut(9 - KEEP_STEPS, Way.FULL)
    assert due(job(step=9, context_tokens=0), [step(9, "")], ROOM, LIMITS) is None  # not known


def test_what_was_observed_since_the_provider_counted_is_estimated() -> None:
    assert due(job(step=9, context_tokens=900), [step(9, "x" * 400)], ROOM, LIMITS) is None
    assert due(job(step=9, context_tokens=900), [step(9, "x" * 404)], ROOM, LIMITS) == Cut(9 - KEEP_STEPS, Way.FULL)


def test_a_context_is_compacted_when_it_holds_too_many_steps_however_short() -> None:
    limits = PlatformLimits(context_steps=10)
    assert due(job(step=10), [step(10)], ROOM, limits) is None
    assert due(job(step=11), [step(11)], ROOM, limits) == Cut(11 - KEEP_STEPS, Way.FULL)
    assert due(job(step=18, compacted_through=8, summary="s"), [step(18)], ROOM, limits) is None
    assert due(job(step=19, compacted_through=8, summary="s"), [step(19)], ROOM, limits) == Cut(19 - KEEP_STEPS, Way.FULL)


def test_a_few_steps_are_not_worth_a_summary_so_that_a_long_task_is_not_summarised_at_every_step() -> None:
    last = WORTH_STEPS + KEEP_STEPS
    assert due(job(step=last - 1, context_tokens=9000), [step(last - 1)], ROOM, LIMITS) is None
    assert due(job(step=last, context_tokens=9000), [step(last)], ROOM, LIMITS) is not None


@given(step=st.integers(0, 30), compacted=st.integers(0, 30), chars=st.integers(0, 50_000))
def test_whatever_is_refused_is_compacted_only_so_often(step: int, compacted: int, chars: int) -> None:
    now = job(step=step, compacted_through=min(step, compacted), summary="x" * chars)
    for _ in range(12):
        what = refused(now)
        if what is None:
            break
        assert now.summarised_through <= what.through <= step
        shrunk = max(LEAST_CHARS, len(now.summary) // 2) if what.through == now.summarised_through else 50_000
        now = replace(now, compacted_through=what.through, summary="x" * shrunk)
    assert refused(now) is None


@given(text=st.text(max_size=600), most=st.integers(60, 500))
def test_a_cut_text_is_never_longer_than_asked_for_and_keeps_both_ends(text: str, most: int) -> None:
    found = cut(text, most)
    assert len(found) <= most
    if len(text) <= most:
        assert found == text
    else:
        assert found.startswith(text[:10])
        assert found.endswith(text[-5:])


def past(n: int) -> PastStep:
    return PastStep(f"thought {n}", (PastCall("shell", {"command": f"echo {n}"}, ok=n % 2 == 0, observation=f"said {n}"),))


def context(steps: int, *, summarised: int = 0, summary: str = "") -> DecisionRequest:
    shown = [past(n) for n in range(summarised + 1, summarised + steps + 1)]
    return DecisionRequest("deep", "s", "t", (), shown, summary=summary, summarised=summarised)


@given(
    steps=st.integers(0, 40), most=st.integers(LEAST_CHARS, 4000), summary=st.sampled_from(["Half is done.", "x" * 9000]),
    written=st.sampled_from(["", "All is done.", "y" * 9000]), plan=st.lists(st.builds(dict, title=st.text(max_size=300)), max_size=20),
)  # fmt: skip
def test_what_stands_for_older_steps_is_bounded_and_holds_words_records_and_plan(
    steps: int, most: int, summary: str, written: str, plan: list[dict[str, str]]
) -> None:
    found = composed(written, context(steps, summarised=7, summary=summary), plan, most)
    assert len(found) <= most
    assert found.startswith((written or summary)[:12])
    assert ("From the platform's records:" in found) is bool(steps)
    assert ("The plan as it stood then:" in found) is bool(plan)


def test_the_last_steps_are_kept_on_record_whatever_the_model_wrote() -> None:
    found = composed("All is well.", context(40, summarised=10, summary="Half is done."), [], 1000)
    lines = found.splitlines()
    assert lines[:3] == ["All is well.", "", "From the platform's records:"]
    assert lines[3].startswith("[steps 11 to ")
    assert lines[-2:] == ["Step 50: thought 50", '  shell {"command": "echo 50"} gave: said 50']
    assert "FAILED: said 49" in found


def test_without_a_model_the_summary_before_goes_on() -> None:
    first = composed("", context(2), [], 1000)
    assert first.splitlines()[:2] == ["From the platform's records:", "Step 1: thought 1"]
    second = composed("", context(1, summarised=2, summary=first), [], 1000)
    assert second.startswith(first)
    assert second.endswith('shell {"command": "echo 3"} FAILED: said 3')


@pytest.mark.parametrize("plan", [[], [{"title": "new", "status": "pending"}]])
def test_the_plan_of_an_older_summary_gives_way_to_the_present_one(plan: list[dict[str, str]]) -> None:
    old = composed("Half is done.", context(1), [{"title": "old", "status": "done"}], 1000)
    assert "- [done] old" in old
    found = composed("", context(1, summarised=1, summary=old), plan, 1000)
    assert "old" not in found
    assert ("- [pending] new" in found) is bool(plan)
