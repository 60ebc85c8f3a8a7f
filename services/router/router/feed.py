"""News of jobs for all who follow one at this process, by a stream or by waiting for its end: one query a tick for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from dualtrack.db import events
from dualtrack.db.engine import Database
from dualtrack.db.events import Head
from dualtrack.domain.events import Event, EventType
from dualtrack.domain.limits import PlatformLimits
from router.errors import TooManyStreams
from router.metrics import Metrics

_LOG: Final = logging.getLogger(__name__)
_READERS: Final = 4
"""Threads, and with them database connections, that all streams share; requests have their own."""
PAGE: Final = 100
"""Events of one stream held in memory at once."""
_PAUSE_S: Final = 2.0
"""After a failed look: the database is down, and every stream waits."""

T = TypeVar("T")


class Watched:
    """How far a job's log has come."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.followers = 0
        self.changed = asyncio.Event()

    def update(self, head: Head) -> None:
        """Take news, and wake everybody who waits for them. Whatever happens to a job has an event of its own."""
        if head.seq > self.head.seq:
            self.head = head
            self.wake()

    def wake(self) -> None:
        """Let everybody who waits look."""
        self.changed.set()
        self.changed = asyncio.Event()


class EventFeed:
    """Watches jobs and reads their events. For one event loop."""

    def __init__(self, database: Database, limits: PlatformLimits, metrics: Metrics) -> None:
        self._database = database
        self._limits = limits
        self._metrics = metrics
        self._watched: dict[str, Watched] = {}
        self._open = 0
        self._poller: asyncio.Task[None] | None = None
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="event-reader")
        self.closing = False

    @contextlib.contextmanager
    def watch(self, job_id: str, head: Head) -> Iterator[Watched]:
        """The job's news for the time of the block, beginning with what the caller has just read.

        Raises:
            TooManyStreams: the process keeps as many as it may (`limits.streams`).
        """
        if self._open >= self._limits.streams:
            raise TooManyStreams(
                "Too many clients are following jobs (limits.streams): try again, or ask without waiting: "
                "events by pages, `?after=` and no `Accept: text/event-stream`, a job without `wait_s`."
            )
        watched = self._watched.setdefault(job_id, Watched(head))
        watched.update(head)
        watched.followers += 1
        self._open += 1
        self._metrics.streams.set(self._open)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        try:
            yield watched
        finally:
            self._open -= 1
            self._metrics.streams.set(self._open)
            watched.followers -= 1
            if watched.followers == 0:
                del self._watched[job_id]

    async def settled(self, job_id: str, head: Head, until: float) -> bool:
        """Wait until the job has ended or waits for somebody; False where the event loop's time `until` came first, or the feed closes.

        Raises:
            TooManyStreams: as `watch`.
        """
        with self.watch(job_id, head) as watched, contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while not (watched.head.settled or self.closing):
                    await watched.changed.wait()
                return watched.head.settled
        return False

    async def page(self, job_id: str, after: int, types: Collection[EventType]) -> Sequence[Event]:
        """The next events, of these types where any are given, at most `PAGE`. Raises `DatabaseUnavailable`."""
        return await self.run(lambda: self._page(job_id, after, types))

    async def run(self, action: Callable[[], T]) -> T:
        """Do blocking database work on the streams' threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, action)

    def close(self) -> None:
        """End all streams and waits; their clients go on elsewhere. Call on the event loop."""
        self.closing = True
        for watched in self._watched.values():
            watched.wake()

    async def aclose(self) -> None:
        """Stop the poller and the threads."""
        self.close()
        if self._poller is not None:
            self._poller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poller
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _page(self, job_id: str, after: int, types: Collection[EventType]) -> Sequence[Event]:
        with self._database.transaction() as tx:
            return events.page(tx, job_id, after=after, limit=PAGE, types=types)

    async def _poll(self) -> None:
        while self._watched and not self.closing:
            await asyncio.sleep(self._limits.stream_poll_s)
            live = [job_id for job_id, watched in self._watched.items() if not watched.head.ended]
            if not live:
                continue
            try:
                heads = await self.run(lambda: self._heads(live))  # noqa: B023 - awaited before the name is bound again
            except Exception as error:  # noqa: BLE001 - whatever it is, the streams must not stop being fed
                _LOG.warning("event streams wait, the database can't be asked: %s", error)
                await asyncio.sleep(_PAUSE_S)
                continue
            for job_id, head in heads.items():
                if (watched := self._watched.get(job_id)) is not None:
                    watched.update(head)

    def _heads(self, job_ids: Sequence[str]) -> dict[str, Head]:
        with self._database.transaction() as tx:
            return events.heads(tx, job_ids)
