"""What chats use is written once, whenever the router stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dualtrack.domain.usage import Usage
from router import key_budgets
from router.key_budgets import KeyBudgets


def test_a_write_under_way_as_the_router_stops_is_not_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_end = threading.Event(), threading.Event()
    written: list[Mapping[str, Usage]] = []

    def write(_: KeyBudgets, used: Mapping[str, Usage]) -> None:
        began.set()
        assert may_end.wait(60)
        written.append(dict(used))

    monkeypatch.setattr(key_budgets, "FLUSH_S", 0.01)
    monkeypatch.setattr(KeyBudgets, "_write", write)
    gateway = SimpleNamespace(usage=lambda _model, raw: Usage(input_tokens=raw["prompt_tokens"]))

    async def stop_in_between() -> None:
        budgets = KeyBudgets(cast("Any", None), cast("Any", gateway))
        budgets.start()
        budgets.spend("key", "fast", {"prompt_tokens": 7})
        assert await asyncio.to_thread(began.wait, 60)
        closing = asyncio.create_task(budgets.aclose())
        await asyncio.sleep(0)
        may_end.set()
        await closing

    asyncio.run(stop_in_between())
    assert written == [{"key": Usage(input_tokens=7)}]
