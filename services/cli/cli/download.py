"""Downloads: a safe name, a file that is there completely or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from cli.outcome import ApiError, UsageProblem

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


def save(chunks: Iterable[bytes], target: Path, *, force: bool) -> int:
    """Write `chunks` to `target` in one step; the number of bytes.

    Args:
        chunks: the content as it arrives.
        target: where it goes; its directory must exist.
        force: replace what is there.

    Raises:
        UsageProblem: something is there already and `force` is off, or the directory can't be written.

    Whatever `chunks` raises goes on to the caller; then as well nothing is left behind.
    """
    if target.is_dir():
        raise UsageProblem(f"{target} is a directory.")
    if not force and os.path.lexists(target):
        raise _exists(target)
    try:
        descriptor, name = tempfile.mkstemp(prefix=".dualtrack-", suffix=".part", dir=target.parent)
    except OSError as error:
        raise UsageProblem(f"Can't write to {target.parent}: {error.strerror}.") from error
    part = Path(name)
    try:
        count = 0
        with os.fdopen(descriptor, "wb") as file:
            for chunk in chunks:
                count += len(chunk)
                file.write(chunk)
        umask = os.umask(0)
        os.umask(umask)
        part.chmod(0o666 & ~umask)
        _place(part, target, force=force)
    except FileExistsError as error:
        raise _exists(target) from error
    except OSError as error:
        raise UsageProblem(f"{target} can't be written: {error.strerror}.") from error
    finally:
        part.unlink(missing_ok=True)
    return count


def _place(part: Path, target: Path, *, force: bool) -> None:
    if force:
        part.replace(target)
        return
    try:
        os.link(part, target)  # unlike a rename, fails where somebody was faster
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(target):
            raise FileExistsError from None
        part.replace(target)


def _exists(target: Path) -> UsageProblem:
    return UsageProblem(f"{target} is there already: choose another place with -o, or replace it with --force.")
