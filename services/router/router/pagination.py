"""Cursor-paged lists: at most `limit` rows after a cursor, which is the id of the last row seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypeVar

from fastapi import Depends, Query, Request

from dualtrack.domain.errors import InvalidRequest
from dualtrack.domain.ids import Kind, is_id

DEFAULT_LIMIT: Final = 20
MAX_NUMBER: Final = 2**63 - 1
"""Largest number that the database can compare with."""

_SHOWN: Final = 5
_SHOWN_CHARS: Final = 100
"""Of unknown parameters."""

Row = TypeVar("Row")

LimitQuery = Annotated[int, Query(ge=1, le=MAX_NUMBER, description="Most rows on the page; the platform's `limits` set the ceiling.")]
AfterIdQuery = Annotated[str | None, Query(max_length=64, description="Cursor: the id of the last row of the page before.")]
AfterNumberQuery = Annotated[int, Query(ge=0, le=MAX_NUMBER, description="Cursor: the number of the last row of the page before.")]


async def _known_query(request: Request) -> None:
    """Refuse query parameters that the address does not describe: a misspelt filter would otherwise give everything.

    Raises:
        InvalidRequest: naming them.
    """
    described = request.app.openapi()["paths"][request.scope["route"].path]["get"].get("parameters", ())
    deep = {item["name"]: item.get("style") == "deepObject" for item in described if item["in"] == "query"}
    unknown = [name for name in dict.fromkeys(request.query_params) if not _is_known(name, deep)]
    if unknown:
        shown = ", ".join(repr(name[:_SHOWN_CHARS]) for name in unknown[:_SHOWN])
        there = ", ".join(sorted(f"{name}[key]" if is_deep else name for name, is_deep in deep.items())) or "none"
        raise InvalidRequest(f"There is no query parameter {shown} here; there are: {there}.", param=unknown[0])


def _is_known(name: str, deep: Mapping[str, bool]) -> bool:
    """Whether a parameter is one of these; one of an object's is `object[key]` or `object.key`."""
    if name in deep:
        return not deep[name]
    for start in (start for start, is_deep in deep.items() if is_deep):
        key = name.removeprefix(start)
        if (key.startswith("[") and key.endswith("]") and len(key) > len("[]")) or (key.startswith(".") and len(key) > 1):
            return True
    return False


KNOWN_QUERY: Final = Depends(_known_query)
"""For every list."""


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


def filter_id(text: str | None, kind: Kind, name: str) -> str | None:
    """The id that a list is filtered by, checked for its form; it may name what is not there (any more).

    Raises:
        InvalidRequest: no id of that kind; naming the parameter.
    """
    if text is not None and not is_id(text, kind):
        raise InvalidRequest(f"{name}: must be an id of the form {kind}_….", param=name)
    return text


def cut(rows: Sequence[Row], limit: int) -> tuple[Sequence[Row], bool]:
    """The page out of up to `limit` + 1 rows, and whether there are more."""
    return rows[:limit], len(rows) > limit
