"""When a cron expression is due in a time zone.

Expressions and clock changes are as in Debian's cron (cronsim): a time that a change of clocks skips comes right after it, one that it
repeats comes once, and what is due every hour or every some minutes goes on by real time. The times of an expression are the same wherever
one begins to ask: after each comes the next, and none that has been before.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

CRON_CHARS: Final = 100
TIMEZONE_CHARS: Final = 64
MISSED_MOST: Final = 1000
"""Missed times are counted up to this."""
_FIELDS: Final = 5
_SECOND: Final = timedelta(seconds=1)
_STRIDE: Final = timedelta(days=1)
"""No zone changes its clocks twice in so short a time."""
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+/-]*")
_OF_THIS_MACHINE: Final = re.compile(r"localtime|posixrules|Factory|(posix|right)/.*")
"""Found among the system's zones, and no names of IANA's: they mean something else on another machine."""
_VALUES: Final = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, or L for the last; and it must be one that the months have",
    "month": "1 to 12, or JAN to DEC",
    "day-of-week": "0 to 7 (0 and 7 are Sunday), or SUN to SAT; MON#1 is the first Monday, 5L the last Friday",
}
"""What each field may hold, in their order."""


def zone(name: str) -> ZoneInfo:
    """The time zone of an IANA name.

    Raises:
        ValueError: there is none.
    """
    try:
        if _ZONE.fullmatch(name) is None or _OF_THIS_MACHINE.fullmatch(name) is not None:
            raise ValueError(name)  # noqa: TRY301 - one answer to all that is no zone
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"there is no time zone {name!r}: take an IANA name such as Europe/Berlin") from error


def check(expression: str) -> None:
    """Refuse what is no expression of five fields, or never due.

    Raises:
        ValueError: saying why.
    """
    if len(expression.split()) != _FIELDS:
        raise ValueError("must have five fields: minute, hour, day of the month, month, day of the week")
    if next_after(expression, "UTC", datetime.now(UTC)) is None:
        raise ValueError("is never due in the next 50 years")


def next_after(expression: str, timezone: str, after: datetime) -> datetime | None:
    """The first time strictly after `after`, in UTC; None: none in the next 50 years.

    Raises:
        ValueError: no expression, or no time zone.
    """
    try:
        if any(field.startswith("*") for field in expression.split()[:2]):
            return _by_real_time(expression, zone(timezone), after)
        times = CronSim(expression, after.astimezone(zone(timezone)))
    except CronSimError as error:
        raise ValueError(_fault(expression, str(error))) from error
    # Asked in the second pass of a repeated hour, it begins with what came in the first.
    return next((found for found in (time.astimezone(UTC) for time in times) if found > after), None)


def _by_real_time(expression: str, place: ZoneInfo, after: datetime) -> datetime | None:
    """The first minute after `after` whose time by the clock matches, whatever the clocks do meanwhile.

    It is looked for from one change of clocks to the next, since cronsim misses times where a change is not by a whole hour.
    """
    begin = start = after.astimezone(UTC)
    while True:
        offset = _offset(place, begin)
        wall = next(CronSim(expression, (start + offset).replace(tzinfo=None)), None)
        if wall is None:
            return None
        found = wall.replace(tzinfo=UTC) - offset
        change = _next_change(place, begin, found)
        if change is None:
            return found
        begin, start = change, change - _SECOND  # the moment of the change is one that may match


def _offset(place: ZoneInfo, at: datetime) -> timedelta:
    return at.astimezone(place).utcoffset() or timedelta()


def _next_change(place: ZoneInfo, begin: datetime, end: datetime) -> datetime | None:
    """The first second up to `end` at which clocks show something else than by the offset of `begin`; None: there is none."""
    offset = _offset(place, begin)
    while begin < end:
        later = min(begin + _STRIDE, end)
        if _offset(place, later) != offset:
            while later - begin > _SECOND:
                middle = begin + timedelta(seconds=(later - begin) // _SECOND // 2 or 1)
                begin, later = (middle, later) if _offset(place, middle) == offset else (begin, middle)
            return later.replace(microsecond=0)
        begin = later
    return None


def _fault(expression: str, said: str) -> str:
    """What is wrong with an expression of which cronsim said "Bad minute"."""
    for name, text in zip(_VALUES, expression.split(), strict=False):
        if said.endswith(name):
            return f"{text!r} can't be the {name}: {_VALUES[name]}"
    return f"{said[:1].lower()}{said[1:]}"


def latest(expression: str, timezone: str, first: datetime, now: datetime) -> tuple[datetime, int]:
    """The last time that is due, and how many before it were missed (counted up to `MISSED_MOST`).

    Args:
        expression: cron.
        timezone: IANA name.
        first: a time that is due, not after `now`.
        now: until when.
    """
    tick, missed = first, 0
    while missed < MISSED_MOST:
        following = next_after(expression, timezone, tick)
        if following is None or following > now:
            return tick, missed
        tick, missed = following, missed + 1
    return _last(expression, timezone, tick, now), missed


def _last(expression: str, timezone: str, known: datetime, now: datetime) -> datetime:
    """The last time up to `now`, found from near it: after a long absence there may be millions."""
    window = timedelta(hours=1)
    while True:
        start = max(now - window, known)
        tick = known if start == known else next_after(expression, timezone, start)
        if tick is not None and tick <= now:
            while (following := next_after(expression, timezone, tick)) is not None and following <= now:
                tick = following
            return tick
        window *= 8
