"""Work that stands still where somebody does something for it and others together: the thread that did it until then is free.

It is a generator, which yields a `Question` and is given the answer. `do` is for a thread that has nothing better to do than to wait for
that, `Piece` for threads that have.
"""

from __future__ import annotations

import contextvars
import functools
import logging
from collections.abc import Callable, Generator
from typing import Any, Final, Generic, NamedTuple, TypeVar

from dualtrack.threads import Threads
from dualtrack.together import Together

_LOG: Final = logging.getLogger(__name__)
Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")


class Question(NamedTuple, Generic[Q, R]):
    """What is to be done together with what others ask for."""

    together: Together[Q, R]
    request: Q


Work = Generator[Question[Any, Any], Any, T]
"""Gives a T in the end. An answer that is an error is raised where the question was."""


def do(work: Work[T]) -> T:
    """Do it here and now."""
    step: Callable[[], Question[Any, Any]] = work.__next__
    while True:
        try:
            together, request = step()
        except StopIteration as end:
            given: T = end.value
            return given
        step = _step(work, functools.partial(together.do, request))


def at_once(act: Callable[[], T]) -> Work[T]:
    """As work that has no question."""
    yield from ()
    return act()


def _step(work: Work[Any], answer: Callable[[], Any]) -> Callable[[], Question[Any, Any]]:
    try:
        given = answer()
    except BaseException as error:  # noqa: BLE001 - it is the work's to see to
        failed = error
        return lambda: work.throw(failed)
    return lambda: work.send(given)


class Piece:
    """Work that `threads` do, in a context of its own: to be put before them."""

    __slots__ = ("_context", "_threads", "_work")

    def __init__(self, work: Work[None], threads: Threads) -> None:
        self._work = work
        self._threads = threads
        self._context = contextvars.copy_context()

    def __call__(self) -> None:
        """Do it up to its first question; it goes on by itself."""
        self._go(self._work.__next__)

    def _go(self, step: Callable[[], Question[Any, Any]], *, awake: bool = True) -> None:
        try:
            together, request = self._context.run(step)
        except StopIteration:
            return
        together.ask(request, self._threads.put, self._answered, awake=awake)

    def _answered(self, answer: Callable[[], Any], known: bool) -> None:  # noqa: FBT001 - as `Together` calls it
        """Go on: at once after a plain yes, since then little is left to do; else by a thread of its own, for others wait for this one."""
        given = answer() if known else None
        if given:
            try:
                self._go(lambda: self._work.send(given), awake=False)  # this thread has others to go on with first
            except BaseException:  # noqa: BLE001 - it is of this work alone
                _LOG.exception("a thread's work failed")
        else:
            self._threads.put(lambda: self._go(_step(self._work, answer)))
