"""Cron in time zones: what changes of clocks skip or repeat comes exactly once, restarts make no difference."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualtrack.domain import cron

BERLIN = "Europe/Berlin"  # clocks go forward on 29 March 2026 at 02:00 (01:00 UTC) and back on 25 October at 03:00 (01:00 UTC)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def times(expression: str, zone: str, start: str, end: str) -> list[str]:
    """All times between, each found anew from the one before, as the scheduler does."""
    found, at = [], utc(start)
    while (following := cron.next_after(expression, zone, at)) is not None and following < utc(end):
        at = following
        found.append(at.strftime("%d %H:%M"))
    return found


def test_a_time_that_spring_skips_comes_once_right_after() -> None:
    assert times("30 2 * * *", BERLIN, "2026-03-28T00:00", "2026-03-31T00:00") == ["28 01:30", "29 01:00", "30 00:30"]
    assert times("0,30 2 * * *", BERLIN, "2026-03-29T00:00", "2026-03-30T00:00") == ["29 01:00"]


def test_a_time_that_autumn_repeats_comes_once() -> None:
    assert times("30 2 * * *", BERLIN, "2026-10-24T00:00", "2026-10-27T00:00") == ["24 00:30", "25 00:30", "26 01:30"]


def test_what_is_due_all_the_time_goes_on_by_real_time() -> None:
    hours = [f"25 {hour:02}:00" for hour in range(24)]
    assert times("0 * * * *", BERLIN, "2026-10-24T23:59", "2026-10-26T00:00") == hours
    assert times("0 * * * *", BERLIN, "2026-03-28T23:59", "2026-03-30T00:00") == [hour.replace("25", "29") for hour in hours]
    assert len(times("*/20 * * * *", BERLIN, "2026-10-24T23:59", "2026-10-26T00:00")) == 72


def test_other_zones() -> None:
    assert times("0 9 * * MON", "America/New_York", "2026-11-01T00:00", "2026-11-10T00:00") == ["02 14:00", "09 14:00"]
    assert times("30 0 * * *", "Asia/Kolkata", "2026-01-01T00:00", "2026-01-02T00:00") == ["01 19:00"]
    assert times("0 0 29 2 *", "UTC", "2026-01-01T00:00", "2033-01-01T00:00") == ["29 00:00", "29 00:00"]


EXPRESSIONS = [
    "* * * * *",
    "*/7 * * * *",
    "30 2 * * *",
    "0 3 * * *",
    "15 1,2,3 * * *",
    "59 23 * * *",
    "0 12 1 * *",
    "0 0 * * MON#1",
    "0 */4 * * *",
]
ZONES = [BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC", "America/Santiago"]


CHANGES = [
    (BERLIN, "2026-10-25T01:00"),
    (BERLIN, "2026-03-29T01:00"),
    ("Australia/Lord_Howe", "2026-04-04T15:00"),  # half an hour
    ("Australia/Lord_Howe", "2026-10-03T15:30"),
    ("America/Havana", "2026-11-01T05:00"),  # at midnight
    ("America/Havana", "2026-03-08T05:00"),
    ("Africa/Cairo", "2026-10-29T21:00"),
    ("Africa/Casablanca", "2026-02-15T02:00"),  # back for Ramadan
    ("Antarctica/Troll", "2026-10-25T01:00"),  # two hours
    ("Antarctica/Troll", "2026-03-29T01:00"),
    ("Pacific/Apia", "2011-12-30T10:00"),  # a whole day
    ("Asia/Pyongyang", "2018-05-04T15:00"),
]
"""Zones with odd rules, and when (UTC) they change their clocks."""
FIXED = ["0,30 2 * * *", "45 1 * * *", "30 0,1,23 * * *"]
RUNNING = ["*/30 3 * * *", "*/20 2 * * *", "10 */3 * * *", "*/15 23,0 * * SUN", "0 * * * *"]


@given(
    st.sampled_from([*EXPRESSIONS, *FIXED, *RUNNING]),
    st.sampled_from(CHANGES),
    st.lists(st.integers(-6 * 3600, 6 * 3600), min_size=2, max_size=6),
)
def test_where_one_begins_to_ask_makes_no_difference(expression: str, change: tuple[str, str], seconds: list[int]) -> None:
    name, at = change
    asked = [utc(at) + timedelta(seconds=more) for more in sorted(seconds)]
    answers = [cron.next_after(expression, name, moment) for moment in asked]
    begin = asked[0] - timedelta(days=2)
    known = [begin]
    while known[-1] <= asked[-1]:
        found = cron.next_after(expression, name, known[-1])
        assert found is not None
        assert found > known[-1]
        known.append(found)
    assert answers == [next(time for time in known[1:] if time > moment) for moment in asked]


@pytest.mark.parametrize("expression", RUNNING)
def test_what_is_due_all_the_time_comes_at_every_minute_that_the_clock_shows(expression: str) -> None:
    minutes, hours = expression.split()[:2]
    hour_set = {"3": {3}, "2": {2}, "*/3": set(range(0, 24, 3)), "23,0": {0, 23}, "*": set(range(24))}[hours]
    minute_set = {"*/30": {0, 30}, "*/20": {0, 20, 40}, "10": {10}, "*/15": {0, 15, 30, 45}, "0": {0}}[minutes]
    for name, at in CHANGES:
        begin = utc(at) - timedelta(hours=12)
        shown = [(moment, moment.astimezone(cron.zone(name))) for moment in (begin + timedelta(minutes=n) for n in range(1, 24 * 60))]
        expected = [
            moment.strftime("%d %H:%M")
            for moment, local in shown
            if local.minute in minute_set and local.hour in hour_set and (not expression.endswith("SUN") or local.isoweekday() == 7)
        ]
        end = begin + timedelta(days=1)
        assert times(expression, name, begin.strftime("%Y-%m-%dT%H:%M"), end.strftime("%Y-%m-%dT%H:%M")) == expected, name


def test_asked_in_the_second_pass_of_a_repeated_hour_the_first_is_over() -> None:
    assert cron.next_after("30 2 * * *", BERLIN, utc("2026-10-25T01:00")) == utc("2026-10-26T01:30")
    assert cron.next_after("0,30 2 * * *", BERLIN, utc("2026-10-25T01:10")) == utc("2026-10-26T01:00")
    assert cron.next_after("45 1 * * *", "Australia/Lord_Howe", utc("2026-04-04T15:00")) == utc("2026-04-05T15:15")


@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(ZONES),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)),  # noqa: DTZ001 - UTC is given below
    st.integers(0, 5000),
)
def test_the_latest_time_is_the_one_that_counting_finds(expression: str, zone: str, start: datetime, minutes: int) -> None:
    first = cron.next_after(expression, zone, start.replace(tzinfo=UTC))
    assert first is not None
    assert first > start.replace(tzinfo=UTC)
    now = first + timedelta(minutes=minutes)
    tick, count, at = first, 0, first
    while (following := cron.next_after(expression, zone, at)) is not None and following <= now:
        assert following > at
        tick, at, count = following, following, count + 1
        if count > cron.MISSED_MOST + 5000:
            break
    assert cron.latest(expression, zone, first, now) == (tick, min(count, cron.MISSED_MOST))


def test_years_of_absence_are_made_up_for_soon() -> None:
    started = time.monotonic()
    first, now = utc("2020-01-01T00:00"), utc("2026-11-30T08:00")
    assert cron.latest("* * * * *", BERLIN, first, now) == (now, cron.MISSED_MOST)
    assert cron.latest("*/5 * 1 * *", "UTC", first, now) == (utc("2026-11-01T23:55"), cron.MISSED_MOST)
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    "wrong", ["", "* * * *", "* * * * * *", "@daily", "61 * * * *", "* 24 * * *", "0 0 30 2 *", "a * * * *", "0 0 * * MON#6"]
)
def test_what_is_no_expression_or_never_due_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        cron.check(wrong)


@pytest.mark.parametrize(
    "wrong", ["", "Europe", "Berlin", "Mars/Phobos", "../etc/passwd", "/etc/localtime", "Europe/Berlin\x00", "a" * 300, "+1"]
)
def test_what_is_no_time_zone_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="no time zone"):
        cron.zone(wrong)


@pytest.mark.parametrize("name", ["localtime", "posixrules", "Factory", "posix/Europe/Berlin", "right/UTC", "Mars/Olympus", "../UTC", ""])
def test_a_zone_has_a_name_that_means_the_same_on_every_machine(name: str) -> None:
    with pytest.raises(ValueError, match="IANA name"):
        cron.zone(name)
    assert cron.zone("Etc/GMT+3").key == "Etc/GMT+3"


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("60 * * * *", "'60' can't be the minute: 0 to 59"),
        ("0 24 * * *", "'24' can't be the hour: 0 to 23"),
        ("0 0 31 2 *", "'31' can't be the day-of-month: .* that the months have"),
        ("0 0 1 FOO *", "'FOO' can't be the month: 1 to 12"),
        ("0 0 * * L", "'L' can't be the day-of-week: 0 to 7"),
    ],
)
def test_a_wrong_expression_is_told_with_the_field_and_what_it_may_hold(expression: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        cron.check(expression)
