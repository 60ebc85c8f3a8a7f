"""When a cron expression is due in a time zone.

Expressions and clock changes are as in Debian's cron (cronsim): a time that a change of clocks skips comes right after it, one that it
repeats comes once, and what is due every hour or every some minutes goes on by real time.
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
        found = next(CronSim(expression, after.astimezone(zone(timezone))), None)
    except CronSimError as error:
        raise ValueError(_fault(expression, str(error))) from error
    return None if found is None else found.astimezone(UTC)


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
