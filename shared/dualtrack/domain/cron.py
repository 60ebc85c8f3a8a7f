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


def zone(name: str) -> ZoneInfo:
    """The time zone of an IANA name.

    Raises:
        ValueError: there is none.
    """
    try:
        if _ZONE.fullmatch(name) is None:
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
        raise ValueError(f"{str(error)[:1].lower()}{str(error)[1:]}") from error
    return None if found is None else found.astimezone(UTC)


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
