"""Waiting for what another thread, process or server does: until it is so, never for a fixed time.

A machine may be slow and its neighbours noisy. Nobody waits longer than it takes, so deadlines are generous: one that runs out means
that the thing does not happen, not that it is late.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 60.0
"""How long anything may take on a busy machine."""
_LOOK_S: Final = 0.02


def comes_true(condition: Callable[[], object], *, within_s: float = PATIENCE_S) -> bool:
    """Whether `condition()` is true now or becomes so in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def wait_until(condition: Callable[[], object], what: str, *, within_s: float = PATIENCE_S) -> None:
    """Return once `condition()` is true; raises `AssertionError`, which names `what` was waited for, when the time is up."""
    if not comes_true(condition, within_s=within_s):
        raise AssertionError(f"not within {within_s:.0f} s: {what}")
