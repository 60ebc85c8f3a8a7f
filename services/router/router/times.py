"""Times in query parameters: RFC 3339, always with an offset, since a time without one is another time in another place."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import PlainValidator, WithJsonSchema

_RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)
_FAULT: Final = "must be a time by RFC 3339 with an offset, such as 2026-11-30T08:00:00Z (in an address, a + is written %2B)"


def _time(text: object) -> datetime:
    if not isinstance(text, str) or _RFC_3339.fullmatch(text) is None:
        raise ValueError(_FAULT)
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:  # no such day or hour; before the year 1 or after 9999 in UTC
        raise ValueError(_FAULT) from error


Time = Annotated[datetime, PlainValidator(_time), WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time, in UTC."""
