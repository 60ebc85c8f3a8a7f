"""Downloads: a safe name, and content that is what was saved."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Final

from cli.outcome import ApiError

_MAX_NAME_BYTES: Final = 255
_FORBIDDEN: Final = re.compile(r'[\x00-\x1f\x7f-\x9f<>:"|?*\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ud800-\udfff]')
"""Control and reordering characters, and what Windows takes in no name."""
_RESERVED: Final = re.compile(r"^(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|$)", re.IGNORECASE)


def safe_name(text: str | None, fallback: str) -> str:
    """A plain file name out of whatever a server calls a file: no directories, not hidden, no option, at most 255 bytes."""
    for candidate in (text or "", fallback):
        base = re.split(r"[/\\]", candidate)[-1]
        name = _FORBIDDEN.sub("_", base).strip().lstrip(".-~ ").rstrip(". ")
        if _RESERVED.match(name):
            name = "_" + name
        if name:
            return _shorten(name)
    return "download"


def _shorten(name: str) -> str:
    if len(name.encode()) <= _MAX_NAME_BYTES:
        return name
    stem, dot, suffix = name.rpartition(".")
    if not dot or len(suffix) > 16:  # noqa: PLR2004 - longer is no suffix that anybody opens a file by
        stem, suffix = name, ""
    room = _MAX_NAME_BYTES - len(dot.encode() if suffix else b"") - len(suffix.encode())
    return stem.encode()[:room].decode("utf-8", "ignore") + (f".{suffix}" if suffix else "")


def verified(chunks: Iterable[bytes], sha256: str) -> Iterator[bytes]:
    """`chunks` as they are; after the last one, raises `ApiError` unless all of them hash to `sha256` (hex)."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != sha256:
        raise ApiError("What arrived is not what was saved (SHA-256 differs): download it again.", status=0, code="bad_download")
