"""How long work on a workspace is told to stop: it looks between two files, two parts of a large one and two requests to the store."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dualtrack.domain.errors import Cancelled

Check = Callable[[], None]
"""Raises `Cancelled` once the work is to stop. Thread-safe, and cheap enough to be called for every entry."""


def never() -> None:
    """The check of work that nobody stops."""


def check_of(cancel: threading.Event | None) -> Check:
    """The check of work that stops once `cancel` is set."""
    if cancel is None:
        return never

    def check() -> None:
        if cancel.is_set():
            raise Cancelled("The call was cancelled while its workspace was being saved or restored.")

    return check
