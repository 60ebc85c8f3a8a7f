"""When a body is read, and how much of it: after the key is known, within its limit, and never waiting for ever."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dualtrack.domain.errors import DualtrackError, InvalidRequest, TooLarge
from dualtrack.domain.limits import KIB, MIB, PlatformLimits
from router.auth import Keys
from router.errors import Refused, RequestTimeout, UnsupportedMediaType
from router.forms import FILE_FIELD, FORM

KEYED: Final = "/v1/"
"""Every address below it needs a key, no other does."""
UPLOAD_PATH: Final = "/v1/files"
MULTIPART_BYTES: Final = 64 * KIB
"""What the multipart form may add to the file."""
DISCARD_BYTES: Final = 256 * MIB
"""The connection of a refused request goes on, and the rest of its body is thrown away, where the body has no more than this."""
SILENCE_S: Final = 30.0
"""Seconds without a byte after which the rest of a body is not waited for."""
_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})
"""The others' bodies are never read."""


def require_form(headers: Headers) -> None:
    """Raises `UnsupportedMediaType` unless the body is a multipart form."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise UnsupportedMediaType(f"Send the file as the field `{FILE_FIELD}` of a form, Content-Type {FORM}.", param="Content-Type")


class BodyGate:
    """Middleware inside `Envelope`. A body is never held in memory here.

    It refuses when the body is first asked for: the route is known by then, so that the refusal is counted under it.
    """

    def __init__(self, app: ASGIApp, limits: PlatformLimits, keys: Keys) -> None:
        self._app = app
        self._limits = limits
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request whose body is, and stays, acceptable."""
        if scope["type"] == "http" and scope["method"] in _METHODS:
            headers = Headers(scope=scope)
            if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
                receive = _Body(scope["path"], headers, receive, self._limits, self._keys).receive
        await self._app(scope, receive, send)


class _Body:
    """One request's body on its way in."""

    def __init__(self, path: str, headers: Headers, receive: Receive, limits: PlatformLimits, keys: Keys) -> None:
        self._path = path
        self._headers = headers
        self._receive = receive
        self._keys = keys
        self._upload = path == UPLOAD_PATH
        self._most = limits.upload_bytes + MULTIPART_BYTES if self._upload else limits.request_bytes
        self._limits = limits
        self._admitted = False
        self._ended = False
        self._taken = 0

    async def receive(self) -> Message:
        """The next piece. Raises `Refused`: the one class that the framework lets through from wherever it reads a body."""
        if self._ended:
            return await self._receive()
        if not self._admitted:
            try:
                await self._admit()
            except DualtrackError as error:
                raise self._refused(error) from error
            self._admitted = True
        try:
            async with asyncio.timeout(SILENCE_S):
                event = await self._receive()
        except TimeoutError as error:
            late = RequestTimeout(f"Nothing more of the body came for {SILENCE_S:g} s: send the request again.")
            raise Refused(late, {"Connection": "close"}) from error
        self._ended = not event.get("more_body", False)
        self._taken += len(event.get("body", b""))
        if self._taken > self._most:
            raise self._refused(self._too_large())
        return event

    async def _admit(self) -> None:
        """Judge by the headers alone. Raises whatever is wrong, the key first."""
        if self._path.startswith(KEYED):
            await self._keys.authenticate(self._headers.get("authorization", ""))
        encoding = self._headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity":
            raise UnsupportedMediaType(
                f"The body is sent with the Content-Encoding {encoding[:40]!r}: send it without one.", param="Content-Encoding"
            )
        if self._upload:
            require_form(self._headers)
        announced = self._headers.get("content-length", "0")
        if not (announced.isascii() and announced.isdigit()):
            raise InvalidRequest("The header Content-Length must be a number.", param="Content-Length")
        if int(announced) > self._most:
            raise self._too_large()

    def _too_large(self) -> TooLarge:
        if self._upload:
            return TooLarge(f"A file may have {self._limits.upload_bytes} bytes (limits.upload_bytes).")
        return TooLarge(
            f"A request body may have {self._most} bytes (limits.request_bytes): put long material into a file, POST {UPLOAD_PATH}."
        )

    def _refused(self, error: DualtrackError) -> Refused:
        announced = self._headers.get("content-length", "0")
        endless = len(announced) > len(str(DISCARD_BYTES)) or not announced.isdigit() or int(announced) > DISCARD_BYTES
        # A client that asked first (`Expect`) may leave the body out, or not: what comes next could not be told apart.
        return Refused(error, {"Connection": "close"} if endless or "expect" in self._headers else None)
