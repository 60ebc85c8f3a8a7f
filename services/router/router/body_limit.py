"""How large a request may be: refused by its Content-Length, or while it comes in."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dualtrack.domain.errors import InvalidRequest, TooLarge
from dualtrack.domain.limits import KIB, MIB, PlatformLimits
from router import errors

UPLOAD_PATH: Final = "/v1/files"
MULTIPART_BYTES: Final = 64 * KIB
"""What the multipart form may add to the file."""
DRAIN_BYTES: Final = 256 * MIB
"""Of a body that is refused, so much is read and thrown away first: a client that is still sending would otherwise see a cut
connection instead of the answer."""
DRAIN_S: Final = 20.0


class BodyLimit:
    """Middleware inside `Envelope`. A body is never held in memory here."""

    def __init__(self, app: ASGIApp, limits: PlatformLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request whose body is, and stays, within its limit."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        upload = scope["path"].rstrip("/") == UPLOAD_PATH
        most = self._limits.upload_bytes + MULTIPART_BYTES if upload else self._limits.request_bytes
        message = _message(self._limits.upload_bytes if upload else most, upload=upload)
        headers = dict(scope["headers"])
        announced = headers.get(b"content-length", b"0")
        if not announced.isdigit():
            await errors.response(InvalidRequest("The header Content-Length must be a number.", param="Content-Length"))(
                scope, receive, send
            )
            return
        if int(announced) > most:
            if headers.get(b"expect", b"").lower() != b"100-continue":  # such a client waits for our word before it sends
                await _drain(receive)
            await errors.response(TooLarge(message), {"Connection": "close"})(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            event = await receive()
            taken += len(event.get("body", b""))
            if taken > most:
                await _drain(receive)
                # The framework lets this one class through from wherever it reads the body.
                raise HTTPException(413, message, headers={"Connection": "close"})
            return event

        await self._app(scope, counted, send)


def _message(most: int, *, upload: bool) -> str:
    if upload:
        return f"A file may have {most} bytes (limits.upload_bytes)."
    return f"A request body may have {most} bytes (limits.request_bytes): put long material into a file, POST {UPLOAD_PATH}."


async def _drain(receive: Receive) -> None:
    drained = 0
    try:
        async with asyncio.timeout(DRAIN_S):
            while drained <= DRAIN_BYTES:
                event = await receive()
                drained += len(event.get("body", b""))
                if not event.get("more_body", False):
                    return
    except TimeoutError:
        return
