"""What `GET /v1/jobs` can be asked for."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any, Final

from fastapi import Depends, Query, Request
from pydantic import StringConstraints
from starlette.datastructures import QueryParams

from dualtrack.db.job_lists import JobFilter
from dualtrack.domain.errors import InvalidRequest
from dualtrack.domain.job import Name
from dualtrack.domain.lifecycle import JobStatus
from router.dependencies import ServicesDep
from router.pagination import filter_id
from router.text import require_clean
from router.times import Time

METADATA_PARAMETER: Final = {
    "name": "metadata",
    "in": "query",
    "style": "deepObject",
    "explode": True,
    "schema": {"type": "object", "additionalProperties": {"type": "string"}},
    "description": "`metadata[key]=value` or `metadata.key=value`: only jobs that carry all of these.",
}
_Code = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]


class Order(StrEnum):
    """Which jobs come first."""

    DESC = "desc"
    ASC = "asc"


OrderQuery = Annotated[Order, Query(description="`desc`: newest first; `asc`: oldest first. The cursor goes by the order.")]


async def _times(
    created_after: Annotated[Time | None, Query(description="Only jobs accepted at this time (RFC 3339) or later.")] = None,
    created_before: Annotated[Time | None, Query(description="Only jobs accepted earlier than this.")] = None,
    finished_after: Annotated[Time | None, Query(description="Only jobs that ended at this time or later.")] = None,
    finished_before: Annotated[Time | None, Query(description="Only jobs that ended earlier than this.")] = None,
) -> JobFilter:
    """A list's filters of time."""
    return JobFilter(
        created_after=created_after, created_before=created_before, finished_after=finished_after, finished_before=finished_before
    )


async def _job_filter(
    request: Request,
    services: ServicesDep,
    times: Annotated[JobFilter, Depends(_times)],
    status: Annotated[list[JobStatus] | None, Query(description="Only these; repeatable.")] = None,
    reason: Annotated[
        list[_Code] | None, Query(description="Only jobs that ended or wait for this reason, such as `limit_steps`; repeatable.")
    ] = None,
    agent: Annotated[Name | None, Query(description="Only jobs of the agent profile of that name.")] = None,
    parent_id: Annotated[str | None, Query(description="Only the children of this job.")] = None,
    root_id: Annotated[str | None, Query(description="Only the jobs below this one, the top of its family, at any depth.")] = None,
    forked_from: Annotated[str | None, Query(description="Only forks and retries of this job.")] = None,
    schedule_id: Annotated[str | None, Query(description="Only jobs that this schedule started, also when it is removed since.")] = None,
) -> JobFilter:
    """All filters of a list."""
    return replace(
        times,
        statuses=tuple(status or ()),
        reasons=tuple(reason or ()),
        agent=agent,
        parent_id=filter_id(parent_id, "job", "parent_id"),
        root_id=filter_id(root_id, "job", "root_id"),
        forked_from=filter_id(forked_from, "job", "forked_from"),
        schedule_id=filter_id(schedule_id, "sched", "schedule_id"),
        metadata=metadata_filter(request.query_params, services.runtime.limits.metadata_entries),
    )


JobFilterDep = Annotated[JobFilter, Depends(_job_filter)]


def metadata_filter(query: QueryParams, most: int) -> dict[str, str]:
    """The metadata asked for by `metadata[key]=value` or `metadata.key=value`.

    Raises:
        InvalidRequest: too many, or text that can't be stored and so never matches.
    """
    wanted: dict[str, Any] = {}
    for name, value in query.multi_items():
        if name.startswith("metadata[") and name.endswith("]"):
            key = name[len("metadata[") : -1]
        elif name.startswith("metadata."):
            key = name.removeprefix("metadata.")
        else:
            continue
        if wanted.setdefault(key, value) != value:
            raise InvalidRequest(f"{name}: given twice with different values; no job has both.", param=name[:100])
    if len(wanted) > most:
        raise InvalidRequest(f"metadata: at most {most} entries.", param="metadata")
    require_clean(wanted, "metadata")
    return wanted
