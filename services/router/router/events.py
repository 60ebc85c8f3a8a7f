"""A job's events: a stream that can be resumed from any number, or pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, Field

from dualtrack.db import events as log
from dualtrack.db import jobs
from dualtrack.domain.errors import DatabaseUnavailable, InvalidRequest
from dualtrack.domain.events import END_EVENTS, Event, EventType
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import TERMINAL
from router import sse
from router.auth import CallerDep
from router.dependencies import FeedDep, ServicesDep
from router.errors import documented
from router.feed import EventFeed
from router.jobs import JobId, job_id_of
from router.pagination import DEFAULT_LIMIT, KNOWN_QUERY, MAX_NUMBER, LimitQuery, cut, page_size

router: Final = APIRouter(tags=["jobs"])

RETRY_MS: Final = 1000
"""What an EventSource waits before it resumes a cut stream."""
_EVENT_STREAM: Final = "text/event-stream"


class EventView(BaseModel):
    """An event as written."""

    seq: int = Field(description="From 1 without gaps, per job.")
    type: EventType
    at: datetime
    job_id: str
    data: dict[str, Any]

    @classmethod
    def of(cls, event: Event) -> EventView:
        """The view of an event."""
        return cls(seq=event.seq, type=event.type, at=event.at, job_id=event.job_id, data=dict(event.data))


class EventPage(BaseModel):
    """A page of events."""

    object: Literal["list"] = "list"
    data: list[EventView]
    has_more: bool
    next_cursor: int | None = Field(description="Value of `after` for the next page; null on the last.")
    next_after: int = Field(description="Value of `after` for what comes next, now or later.")


@router.get(
    "/v1/jobs/{job_id}/events",
    summary="Follow a job",
    dependencies=[KNOWN_QUERY],
    response_model=EventPage,
    responses={
        **documented(404),
        200: {
            "description": "A page; or, with `Accept: text/event-stream` or `?stream=true`, all as they happen, up to the job's end.",
            "content": {_EVENT_STREAM: {}},
        },
        204: {"description": "To an EventSource that reconnects: the job has ended and there is nothing after `Last-Event-ID`."},
    },
)
async def follow(
    request: Request,
    job_id: JobId,
    caller: CallerDep,
    services: ServicesDep,
    feed: FeedDep,
    after: Annotated[int, Query(ge=0, le=MAX_NUMBER, description="Only events with a higher number.")] = 0,
    limit: LimitQuery = DEFAULT_LIMIT,
    stream: Annotated[bool | None, Query(description="Stream even without the Accept header, or page in spite of it.")] = None,
    last_event_id: Annotated[str | None, Header(description="As EventSource sends it on reconnecting; wins over `after`.")] = None,
) -> Response | EventPage:
    """Every event has its number as `id`: give the last one seen to go on from there, at any time as long as the job is kept."""
    known = job_id_of(job_id)
    after = after if last_event_id is None else _number(last_event_id)
    database = services.runtime.database

    def look() -> Job:
        with database.transaction() as tx:
            return jobs.get(tx, known, tenant_id=caller.tenant_id)

    if _EVENT_STREAM in request.headers.get("accept", "") if stream is None else stream:
        job = await feed.run(look)
        if last_event_id is not None and job.status in TERMINAL and after >= job.last_seq:
            return Response(status_code=204)  # the standard's way to tell an EventSource not to come back
        return sse.EventStream(frames(feed, job, after, services.runtime.limits.stream_keepalive_s))
    size = page_size(limit, services.runtime.limits.event_page_size)

    def read() -> list[Event]:
        with database.transaction() as tx:
            jobs.get(tx, known, tenant_id=caller.tenant_id)
            return log.page(tx, known, after=after, limit=size + 1)

    rows, more = cut(await feed.run(read), size)
    last = rows[-1].seq if rows else after
    return EventPage(data=[EventView.of(event) for event in rows], has_more=more, next_cursor=last if more else None, next_after=last)


async def frames(feed: EventFeed, job: Job, after: int, keepalive_s: float) -> AsyncGenerator[bytes, None]:
    """The events of a job after a number, as frames, until its end event, the feed's closing, or the database's failing.

    Nothing is read ahead: the next page is asked for when the client has taken the last one.
    """
    with feed.watch(job.id, log.Head.of(job)) as watched:
        yield f"retry: {RETRY_MS}\n\n".encode("ascii")
        while not feed.closing:
            if watched.head.seq > after:
                try:
                    page = await feed.page(job.id, after)
                except DatabaseUnavailable:
                    return  # the client resumes from the last number it has
                for event in page:
                    view = EventView.of(event)
                    yield sse.frame(view.model_dump(mode="json"), event=event.type, id=event.seq)
                    after = event.seq
                    if event.type in END_EVENTS:
                        return
                continue
            if watched.head.ended:
                return
            changed = watched.changed
            try:
                async with asyncio.timeout(keepalive_s):
                    await changed.wait()
            except TimeoutError:
                yield sse.KEEP_ALIVE


def _number(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_NUMBER)) and int(text) <= MAX_NUMBER:
        return int(text)
    raise InvalidRequest("Last-Event-ID: must be the number of an event.", param="Last-Event-ID")
