"""Cursor-paged lists: at most `limit` rows after a cursor, which is the id of the last row seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, TypeVar

from fastapi import Query

from dualtrack.domain.errors import InvalidRequest
from dualtrack.domain.ids import Kind, is_id

DEFAULT_LIMIT: Final = 20
MAX_NUMBER: Final = 2**63 - 1
"""Largest number that the database can compare with."""

Row = TypeVar("Row")

LimitQuery = Annotated[int, Query(ge=1, le=MAX_NUMBER, description="Most rows on the page; the platform's `limits` set the ceiling.")]
AfterIdQuery = Annotated[str | None, Query(max_length=64, description="Cursor: the id of the last row of the page before.")]
AfterNumberQuery = Annotated[int, Query(ge=0, le=MAX_NUMBER, description="Cursor: the number of the last row of the page before.")]


def page_size(limit: int, most: int) -> int:
    """`limit`, within the platform's ceiling.

    Raises:
        InvalidRequest: above it.
    """
    if limit > most:
        raise InvalidRequest(f"limit: at most {most}; take the next page with `after`.", param="limit")
    return limit


def cursor(after: str | None, kind: Kind) -> str | None:
    """The cursor, checked for its form; it may name a row that is not there (any more).

    Raises:
        InvalidRequest: no id of that kind.
    """
    if after is not None and not is_id(after, kind):
        raise InvalidRequest(f"after: not a cursor of this list: give the `next_cursor` of the page before ({kind}_…).", param="after")
    return after


def cut(rows: Sequence[Row], limit: int) -> tuple[Sequence[Row], bool]:
    """The page out of up to `limit` + 1 rows, and whether there are more."""
    return rows[:limit], len(rows) > limit
