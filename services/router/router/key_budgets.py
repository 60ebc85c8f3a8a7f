"""What keys use by chats: looked at in memory before an answer, added to the database behind it. No write is in the way of a chat.

A key's figures are read again every few seconds, so a key may go over its day by what is answered meanwhile, by all router processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from starlette.concurrency import run_in_threadpool

from dualtrack.db import budgets
from dualtrack.db.tenants import Caller
from dualtrack.domain.budgets import KeyDay
from dualtrack.domain.errors import BudgetExceeded, DualtrackError
from dualtrack.domain.usage import Usage
from dualtrack.engine.runtime import Runtime
from dualtrack.models.port import ModelGateway

_LOG: Final = logging.getLogger(__name__)
REMEMBERED_S: Final = 5.0
"""Seconds that a key's figures hold before they are read again."""
MAX_REMEMBERED: Final = 10_000
FLUSH_S: Final = 1.0
"""Seconds between two writes of what was used."""


class KeyBudgets:
    """Refuses chats of keys that have used their day, and counts those that were answered. For one event loop."""

    def __init__(self, runtime: Runtime, gateway: ModelGateway, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._runtime = runtime
        self._gateway = gateway
        self._clock = clock
        self._known: OrderedDict[str, tuple[KeyDay, float]] = OrderedDict()
        self._answered: list[tuple[str, str, Mapping[str, Any]]] = []
        self._unwritten: dict[str, Usage] = {}
        self._shard = zlib.crc32(str(id(self)).encode()) % budgets.SHARDS
        self._writing = asyncio.Lock()
        self._flusher: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def require(self, caller: Caller) -> None:
        """Raise `BudgetExceeded` where a key has used what it may in a day; `DatabaseUnavailable` where that can't be known.

        A key without limits is let pass without a look, so its chats go on while the database is away.
        """
        limits = self._runtime.limits
        if not caller.limited and limits.key_day_tokens is None and limits.key_day_cost_usd is None:
            return
        key_id = caller.key_id
        found = self._known.get(key_id)
        if found is None or found[1] <= self._clock() or found[0].ends_at <= datetime.now(UTC):
            day = await run_in_threadpool(self._read, key_id)
            found = (day, self._clock() + REMEMBERED_S)
            self._known[key_id] = found
            while len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        short = found[0].shortage()
        if short is not None:
            error = BudgetExceeded(short.message)
            error.retry_after_s = max(0.0, (found[0].ends_at - datetime.now(UTC)).total_seconds())
            raise error

    def spend(self, key_id: str, model: str, raw: Mapping[str, Any]) -> None:
        """Count an answer by its `usage` object; priced and written later."""
        self._answered.append((key_id, model, raw))

    def start(self) -> None:
        """Begin to write every `FLUSH_S`."""
        self._flusher = asyncio.create_task(self._flush_forever())

    async def aclose(self) -> None:
        """Stop, and write what is left."""
        self._stopping.set()
        if self._flusher is not None:
            await self._flusher  # not cancelled: a write under way would go on in its thread, and be done again
        await self.flush()

    async def flush(self) -> None:
        """Write what was used since the last time; what can't be written now is kept for the next time."""
        async with self._writing:
            answered, self._answered = self._answered, []
            if not answered and not self._unwritten:
                return
            added = await run_in_threadpool(self._price, answered)
            for key_id, usage in added.items():
                self._unwritten[key_id] = self._unwritten.get(key_id, Usage()) + usage
                if key_id in self._known:
                    day, until = self._known[key_id]
                    self._known[key_id] = (replace(day, usage=day.usage + usage), until)
            try:
                await run_in_threadpool(self._write, self._unwritten)
            except DualtrackError as error:
                _LOG.warning("what chats used is written later: %s", error)
            else:
                self._unwritten = {}

    async def _flush_forever(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), FLUSH_S)
            try:
                await self.flush()
            except Exception:  # noqa: BLE001 - one answer that can't be counted must not keep the others from it
                _LOG.exception("what chats used can't be counted")

    def _read(self, key_id: str) -> KeyDay:
        with self._runtime.database.transaction() as tx:
            day = budgets.key_day(tx, key_id, self._runtime.limits)
        waiting = self._unwritten.get(key_id)
        return day if waiting is None else replace(day, usage=day.usage + waiting)

    def _price(self, answered: list[tuple[str, str, Mapping[str, Any]]]) -> dict[str, Usage]:
        found: dict[str, Usage] = {}
        for key_id, model, raw in answered:
            found[key_id] = found.get(key_id, Usage()) + self._gateway.usage(model, raw)
        return found

    def _write(self, used: Mapping[str, Usage]) -> None:
        with self._runtime.database.transaction() as tx:
            for key_id, usage in sorted(used.items()):  # in one order, so that no two processes wait for each other
                tx.connection.execute(budgets.adding(key_id, self._shard, usage))
