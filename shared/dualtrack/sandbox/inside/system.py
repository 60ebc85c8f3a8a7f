"""Calls to the C library that Python has no function for; each is left out where there is no ctypes."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

try:
    import ctypes

    _libc = ctypes.CDLL(None, use_errno=True)
except (ImportError, OSError):  # a Python built without it
    _libc = None  # type: ignore[assignment]

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def set_dumpable(dumpable: bool) -> bool:  # noqa: FBT001 - as prctl
    """Whether others of the same user may look into this process's memory and descriptors; returns whether it was done."""
    return _libc is not None and bool(_libc.prctl(_PR_SET_DUMPABLE, int(dumpable), 0, 0, 0) == 0)


def become_subreaper() -> bool:
    """Make every orphan among our descendants our child; returns whether it was done."""
    return _libc is not None and bool(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def flush_c_streams() -> None:
    """Write out what C code has printed by stdio."""
    if _libc is not None:
        _libc.fflush(None)


def leave(code: int) -> NoReturn:
    """End the process by the C library, which flushes its streams and runs what C code has registered for the end."""
    if _libc is not None:
        _libc.exit(code)
    os._exit(code)
