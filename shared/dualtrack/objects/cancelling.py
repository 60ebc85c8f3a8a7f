"""How long work with workspaces is told to stop: it looks between two files, two parts of a large one and two requests to the store."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

from dualtrack.domain.errors import Cancelled

GRACE_S: Final = 1.0
"""Longest wait for work that was told to stop, which may be in the middle of a request."""
_LOOK_S: Final = 0.1
_TOLD: Final = "The call was cancelled while its files were being saved or restored."

_R = TypeVar("_R")

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
            raise Cancelled(_TOLD)

    return check


def interruptible(work: Callable[[], _R], cancel: threading.Event) -> _R:
    """What the work gives, done in a thread of its own.

    Work that does not stop within `GRACE_S` of `cancel`, because the store does not answer, is left to end by itself. It must look at
    `cancel` whenever a request has ended, before it touches anything else.

    Raises:
        Cancelled: `cancel` is set, and the work stopped for it or was left.
    """
    done: Future[_R] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits for it
            done.set_exception(error)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), name="workspace-work", daemon=True).start()
    while not wait((done,), timeout=_LOOK_S).done:
        if cancel.is_set() and not wait((done,), timeout=GRACE_S).done:
            raise Cancelled(_TOLD)
    return done.result()
