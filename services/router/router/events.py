"""A job's events: a stream that can be resumed from any number, or pages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection
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
from router.feed import PAGE, EventFeed
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
    types: Annotated[list[EventType] | None, Query(alias="type", description="Only events of these types; repeatable.")] = None,
    last_event_id: Annotated[str | None, Header(description="As EventSource sends it on reconnecting; wins over `after`.")] = None,
) -> Response | EventPage:
    """Every event has its number as `id`: give the last one seen to go on from there, at any time as long as the job is kept.

    With `type`, numbers stay those of the job: what is missing between two of them was of other types.
    """
    known = job_id_of(job_id)
    after = after if last_event_id is None else _number(last_event_id)
    wanted = frozenset(types or ())
    database = services.runtime.database

    def look() -> tuple[Job, bool]:
        with database.transaction() as tx:
            job = jobs.get(tx, known, tenant_id=caller.tenant_id)
            return job, job.status not in TERMINAL or bool(log.page(tx, known, after=after, limit=1, types=wanted))

    if _EVENT_STREAM in request.headers.get("accept", "") if stream is None else stream:
        job, left = await feed.run(look)
        if last_event_id is not None and not left:
            return Response(status_code=204)  # the standard's way to tell an EventSource not to come back
        return sse.EventStream(frames(feed, job, after, wanted, services.runtime.limits.stream_keepalive_s))
    size = page_size(limit, services.runtime.limits.event_page_size)

    def read() -> tuple[int, list[Event]]:
        with database.transaction() as tx:
            last_seq = jobs.get(tx, known, tenant_id=caller.tenant_id).last_seq
            return last_seq, log.page(tx, known, after=after, limit=size + 1, types=wanted)

    last_seq, found = await feed.run(read)
    rows, more = cut(found, size)
    last = rows[-1].seq if rows else after
    # All up to `last_seq`, which was read first, has been looked at: none of it needs to be again.
    return EventPage(
        data=[EventView.of(event) for event in rows],
        has_more=more,
        next_cursor=last if more else None,
        next_after=last if more else max(last, last_seq),
    )


async def frames(feed: EventFeed, job: Job, after: int, wanted: Collection[EventType], keepalive_s: float) -> AsyncGenerator[bytes, None]:
    """The events of a job after a number, of these types where any are given, as frames, until its end event (whether it is wanted or not),
    the feed's closing, or the database's failing.

    Nothing is read ahead: the next page is asked for when the client has taken the last one.
    """
    now = asyncio.get_running_loop().time
    read = {*wanted, *END_EVENTS} if wanted else ()
    with feed.watch(job.id, log.Head.of(job)) as watched:
        yield f"retry: {RETRY_MS}\n\n".encode("ascii")
        silent_until = now() + keepalive_s
        while not feed.closing:
            if now() >= silent_until:  # also where much happens that is not wanted
                yield sse.KEEP_ALIVE
                silent_until = now() + keepalive_s
            if watched.head.seq > after:
                head = watched.head.seq
                try:
                    page = await feed.page(job.id, after, read)
                except DatabaseUnavailable:
                    return  # the client resumes from the last number it has
                for event in page:
                    if not wanted or event.type in wanted:
                        view = EventView.of(event)
                        yield sse.frame(view.model_dump(mode="json"), event=event.type, id=event.seq)
                        silent_until = now() + keepalive_s
                    after = event.seq
                    if event.type in END_EVENTS:
                        return
                if len(page) < PAGE:  # nothing else up to there is wanted
                    after = max(after, head)
                continue
            if watched.head.ended:
                return
            changed = watched.changed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(silent_until):
                    await changed.wait()


def _number(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_NUMBER)) and int(text) <= MAX_NUMBER:
        return int(text)
    raise InvalidRequest("Last-Event-ID: must be the number of an event.", param="Last-Event-ID")
