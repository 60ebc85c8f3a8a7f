"""Server-sent events (WHATWG HTML, "Server-sent events") as a response that neither buffers nor outlives its client."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

from fastapi import Response
from starlette.types import Receive, Scope, Send

from router.errors import ClientGone

KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"
STALL_S: Final = 120.0
"""A client that takes nothing for so long is given up."""


def frame(data: object, *, event: str | None = None, id: int | None = None) -> bytes:  # noqa: A002 - the standard's own name
    """One event. The data is JSON, so it holds no line break of its own."""
    head = (f"id: {id}\n" if id is not None else "") + (f"event: {event}\n" if event else "")
    # ASCII: a broken string from a model's provider can be sent all the same.
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode("ascii")


@contextlib.asynccontextmanager
async def until_gone(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client closes the connection. The request's body must have been read.

    Raises:
        ClientGone: it did.
    """
    owner = asyncio.current_task()
    assert owner is not None  # noqa: S101 - a coroutine always runs in a task
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        owner.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        # As in asyncio.timeout: only our own cancel is turned into an error, one from outside goes on.
        if gone and owner.uncancel() == 0:
            raise ClientGone from None
        raise
    finally:
        watcher.cancel()


class EventStream(Response):
    """Sends frames as they come: an error before the first one is an ordinary error response, a slow client slows the generator."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all frames. Raises `ClientGone`, and before the first frame whatever the generator raises."""
        del scope
        async with contextlib.aclosing(self._frames) as frames, until_gone(receive):
            started = False
            async for piece in frames:
                if not started:
                    started = True
                    await send(self._start())
                await _send(send, {"type": "http.response.body", "body": piece, "more_body": True})
            if not started:
                await send(self._start())
            await _send(send, {"type": "http.response.body", "body": b"", "more_body": False})

    def _start(self) -> dict[str, Any]:
        return {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}


async def _send(send: Send, message: dict[str, Any]) -> None:
    try:
        async with asyncio.timeout(STALL_S):
            await send(message)
    except TimeoutError:
        raise ClientGone from None
