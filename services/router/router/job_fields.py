"""`fields`: only some of what the API shows of a job, for whoever asks often and needs little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import Depends, Query
from pydantic import ConfigDict
from starlette.responses import JSONResponse

from dualtrack.domain.errors import InvalidRequest
from router.job_views import JobView
from router.views import listed

_SHOWN_CHARS: Final = 100
"""Of a name that there is not."""


def _nothing_required(schema: dict[str, Any]) -> None:
    del schema["required"]


class JobPart(JobView):
    """The fields of a job that were asked for with `fields`, as a job shows them; for the API's description."""

    model_config = ConfigDict(json_schema_extra=_nothing_required)


async def _fields(
    fields: Annotated[
        list[str] | None,
        Query(description="Only these fields of the job, by their names at the top, separated by commas.", examples=["id,status,reason"]),
    ] = None,
) -> frozenset[str] | None:
    """The names, or None for all.

    Raises:
        InvalidRequest: a job has no such field.
    """
    if fields is None:
        return None
    names = [name.strip() for text in fields for name in text.split(",")]
    for name in names:
        if name not in JobView.model_fields:
            there = ", ".join(JobView.model_fields)
            raise InvalidRequest(f"fields: a job has no field {name[:_SHOWN_CHARS]!r}; there are: {there}.", param="fields")
    return frozenset(names)


FieldsDep = Annotated[frozenset[str] | None, Depends(_fields)]


def part(view: JobView, fields: frozenset[str]) -> JSONResponse:
    """Some fields of a job."""
    return JSONResponse(_cut(view, fields))


def parts(views: Sequence[JobView], fields: frozenset[str], *, has_more: bool) -> JSONResponse:
    """Some fields of each job of a list; the list's own are all there."""
    rows = [_cut(view, fields) for view in views]
    return JSONResponse(listed(rows, [view.id for view in views], has_more=has_more).model_dump(mode="json"))


def _cut(view: JobView, fields: frozenset[str]) -> dict[str, Any]:
    return view.model_dump(mode="json", include=set(fields))
