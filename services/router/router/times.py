"""Times and days in query parameters: RFC 3339, times always with an offset, since one without is another time in another place."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Annotated, Final

from pydantic import PlainValidator, WithJsonSchema

_RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)
_FAULT: Final = "must be a time by RFC 3339 with an offset, such as 2026-11-30T08:00:00Z (in an address, a + is written %2B)"
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DAY_FAULT: Final = "must be a day written as YYYY-MM-DD, such as 2026-11-30, and before 9999-12-31"


def _time(text: object) -> datetime:
    if not isinstance(text, str) or _RFC_3339.fullmatch(text) is None:
        raise ValueError(_FAULT)
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:  # no such day or hour; before the year 1 or after 9999 in UTC
        raise ValueError(_FAULT) from error


Time = Annotated[datetime, PlainValidator(_time), WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time, in UTC."""


def _day(text: object) -> date:
    if not isinstance(text, str) or _DAY.fullmatch(text) is None:
        raise ValueError(_DAY_FAULT)
    try:
        day = date.fromisoformat(text)
    except ValueError as error:  # no such day
        raise ValueError(_DAY_FAULT) from error
    if day == date.max:
        raise ValueError(_DAY_FAULT)
    return day


Day = Annotated[date, PlainValidator(_day), WithJsonSchema({"type": "string", "format": "date"})]
"""A day that another one comes after."""
