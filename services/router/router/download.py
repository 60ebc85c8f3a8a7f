"""Handing out a stored object: an address of the store itself where it has one, else its bytes through us."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any, Final

from fastapi import Response
from fastapi.responses import RedirectResponse, StreamingResponse
from starlette.concurrency import iterate_in_threadpool

from dualtrack.domain.errors import ObjectMissing
from dualtrack.domain.limits import PlatformLimits
from dualtrack.objects.disposition import attachment, safe_content_type
from dualtrack.objects.port import ObjectStore

_LOG: Final = logging.getLogger(__name__)
DESCRIPTION: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The bytes, as an attachment.",
        "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
    },
    302: {
        "description": "Where the object store hands them out, for a limited time.",
        "headers": {"Location": {"schema": {"type": "string"}}},
    },
}


def download(store: ObjectStore, limits: PlatformLimits, *, key: str, filename: str, content_type: str, size: int, sha256: str) -> Response:
    """The object as an attachment that no browser runs.

    Raises:
        ObjectMissing, StorageUnavailable: before anything is sent.
    """
    kind = safe_content_type(content_type)
    address = store.presign(key, filename=filename, content_type=kind, expires_s=limits.presign_s)
    if address is not None:
        return RedirectResponse(address, status_code=302, headers={"Cache-Control": "no-store"})
    with missing_told():
        pieces = store.stream(key)
        first = next(pieces, b"")  # an object that is missing is found out here, not in the middle of an answer
    headers = {
        "Content-Type": kind,  # as it is: the framework would add a charset that nobody knows
        "Content-Disposition": attachment(filename),
        "X-Content-SHA256": sha256,
        "Content-Length": str(size),
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(_chunks(first, pieces), headers=headers)


@contextlib.contextmanager
def missing_told() -> Iterator[None]:
    """Say that an object is missing without its key, which is nobody's business; the log has it."""
    try:
        yield
    except ObjectMissing as error:
        _LOG.error("object missing from the store: %s", error)
        raise ObjectMissing("The bytes are missing from the object store: restore them from a backup.") from error


async def _chunks(first: bytes, rest: Iterator[bytes]) -> AsyncIterator[bytes]:
    try:
        yield first
        async for piece in iterate_in_threadpool(rest):
            yield piece
    finally:
        if isinstance(rest, Generator):
            rest.close()
