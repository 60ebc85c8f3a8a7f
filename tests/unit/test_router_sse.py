"""Server-sent events: their form, and streams that end when nobody listens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualtrack.domain.errors import UnknownModel
from router import sse
from router.errors import ClientGone

Message = dict[str, Any]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_a_frame_is_one_event_whatever_is_in_it(value: Any) -> None:
    text = sse.frame(value, event="e", id=7).decode("ascii")
    head, end = text[: -len("\n\n")], text[-len("\n\n") :]
    assert end == "\n\n"
    lines = head.splitlines()
    assert lines[:2] == ["id: 7", "event: e"]
    assert json.loads(lines[2].removeprefix("data: ")) == value
    assert len(lines) == 3


def test_a_bare_frame_and_a_broken_string() -> None:
    assert sse.frame({"a": 1}) == b'data: {"a":1}\n\n'
    assert sse.frame("\ud800") == b'data: "\\ud800"\n\n'


def serve(frames: AsyncGenerator[bytes, None], receive: Callable[[], Awaitable[Message]]) -> list[Message]:
    """All that is sent."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def run() -> None:
        await sse.EventStream(frames)({"type": "http"}, receive, send)  # type: ignore[arg-type] # plain dicts are ASGI messages

    asyncio.run(run())
    return sent


async def stay() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def leave() -> Message:
    await asyncio.sleep(0)
    return {"type": "http.disconnect"}


async def letters() -> AsyncGenerator[bytes, None]:
    yield b"a"
    yield b"b"


def test_frames_are_sent_as_they_come() -> None:
    sent = serve(letters(), stay)
    assert sent[0]["status"] == 200
    assert dict(sent[0]["headers"])[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert b"content-length" not in dict(sent[0]["headers"])
    assert [(message["body"], message["more_body"]) for message in sent[1:]] == [(b"a", True), (b"b", True), (b"", False)]


def test_an_error_before_the_first_frame_is_raised_with_nothing_sent() -> None:
    async def failing() -> AsyncGenerator[bytes, None]:
        if closed_to_all:
            raise UnknownModel("no")
        yield b""

    closed_to_all = True
    with pytest.raises(UnknownModel):
        serve(failing(), stay)


def test_a_client_that_leaves_ends_the_generator() -> None:
    closed = []

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            yield b"a"
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    with pytest.raises(ClientGone):
        serve(endless(), leave)
    assert closed == [True]


def test_a_cancel_from_outside_is_not_mistaken_for_the_client() -> None:
    async def run() -> str:
        async def work() -> None:
            async with sse.until_gone(stay):
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        except ClientGone:
            return "gone"
        return "done"

    assert asyncio.run(run()) == "cancelled"


def test_a_client_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "STALL_S", 0.01)

    async def stuck(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def run() -> None:
        await sse.EventStream(letters())({"type": "http"}, stay, stuck)  # type: ignore[arg-type] # plain dicts are ASGI messages

    with pytest.raises(ClientGone):
        asyncio.run(run())
