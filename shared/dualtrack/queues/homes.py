"""Where a job is at home: the executor that holds its sandbox session and its files, as the messages of its work tell.

A hint and no more: it travels with the rings from executor to planner and back, is in no table, and whoever can't follow it runs the
call as well, after restoring the job's workspace.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

HEADER: Final = "home"
"""Of a message to a planner: routing key of the executor that the job's last call ran on."""

_current: ContextVar[str | None] = ContextVar("home", default=None)


def new_home() -> str:
    """A name for an executor process, unlike any other's."""
    return secrets.token_hex(8)


def current() -> str | None:
    """The home of the job whose message this thread works on."""
    return _current.get()


@contextlib.contextmanager
def at(home: str | None) -> Iterator[None]:
    """Rings of this block tell of, or go to, that home."""
    token = _current.set(home)
    try:
        yield
    finally:
        _current.reset(token)
