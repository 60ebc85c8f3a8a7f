"""What many threads ask for at the same time, done together by one of them.

A commit, or a confirmed publishing, costs the same for one row or message as for twenty. Nobody waits for others to come: whoever finds
nobody at it begins at once, and takes along what was asked for meanwhile the next time. Where several kinds of requests take turns,
one of them is acted for at a time, and more is asked for meanwhile.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar, cast

Q = TypeVar("Q")
R = TypeVar("R")

MOST: Final = 64
"""Requests done together at most."""


class Put(Protocol):
    """Has threads do something, as `threads.Threads.put`."""

    def __call__(self, work: Callable[[], None], *, awake: bool = False) -> None:
        """`awake`: the caller is one of the threads, and comes back for more right after."""


def make_room(company: bool) -> None:  # noqa: FBT001 - it is all that it says
    """Where there was `company` the last time, let threads that are about to ask do so first: they can as soon as this one lets go.

    That takes some 0.1 ms, which one that is alone is spared.
    """
    if company:
        time.sleep(0)


class _Asked(Generic[Q, R]):
    """A request, and what came of it."""

    __slots__ = ("alone", "done", "error", "given", "lead", "request", "settle")

    def __init__(self, request: Q, lead: Callable[[], None], settle: Callable[[_Asked[Q, R]], None]) -> None:
        """`lead` has somebody act for this one and those after it; `settle` is called with it once it is done."""
        self.request = request
        self.lead = lead
        self.settle = settle
        self.done = False
        self.given: R | None = None
        self.error: BaseException | None = None
        self.alone = False


class Together(Generic[Q, R]):
    """Acts for all threads that ask, one batch at a time.

    Args:
        act: does what a batch of requests asks for, and gives what came of each, in order. Where it raises, nothing of it may be done.
        shared: errors that concern everybody; after any other each thread acts alone, so that a request spoils nothing for others.
        turn: held while a batch is acted for; for several of these that are to take turns.
        then: does what follows for a batch and what came of it, before its threads go on; others are acted for meanwhile. Raises nothing.
        most: requests in a batch.
    """

    def __init__(
        self,
        act: Callable[[Sequence[Q]], Sequence[R]],
        *,
        shared: tuple[type[Exception], ...],
        turn: threading.Lock | None = None,
        then: Callable[[Sequence[Q], Sequence[R]], None] | None = None,
        most: int = MOST,
    ) -> None:
        self._act = act
        self._shared = shared
        self._most = most
        self._turn = turn or threading.Lock()
        self._then = then
        self._lock = threading.Lock()
        self._waiting: deque[_Asked[Q, R]] = deque()
        self._led = False
        self._company = False

    def do(self, request: Q) -> R:
        """What came of the request. Raises what `act` raised for it."""
        turn = threading.Lock()  # held until the request is done, or its thread is the one to act
        turn.acquire()
        mine: _Asked[Q, R] = _Asked(request, turn.release, lambda _: turn.release())
        if not self._first(mine):
            turn.acquire()
        if not mine.done:
            self._lead()
        return self._came_of(mine)

    def ask(self, request: Q, put: Put, then: Callable[[Callable[[], R], bool], None], *, awake: bool = True) -> None:
        """The same without waiting.

        Args:
            request: as for `do`.
            put: has threads do something.
            awake: the calling thread is one of them, and comes back for more right after.
            then: called by one of them with a function that gives what came of the request, or raises, and whether it is there already:
                where something was wrong, the function may have to act for this one alone first. Raises nothing.
        """

        def settle(mine: _Asked[Q, R]) -> None:
            then(lambda: self._came_of(mine), mine.error is None)

        if self._first(_Asked(request, lambda: put(self._lead), settle)):
            put(self._lead, awake=awake)

    def _first(self, mine: _Asked[Q, R]) -> bool:
        """Whether somebody has to act, since nobody does."""
        with self._lock:
            self._waiting.append(mine)
            first, self._led = not self._led, True
        return first

    def _came_of(self, mine: _Asked[Q, R]) -> R:
        if mine.alone:
            return self._act_alone(mine.request)
        if mine.error is not None:
            raise copy.copy(mine.error) from mine.error  # each thread its own: raising writes to an error
        return cast("R", mine.given)

    def _lead(self) -> None:
        """Act for the oldest requests, then let another thread act for those that came meanwhile."""
        with self._turn:
            make_room(self._company)
            with self._lock:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._most))]
            self._company = len(batch) > 1
            try:
                for asked, given in zip(batch, self._act([asked.request for asked in batch]), strict=True):
                    asked.given = given
            except BaseException as error:  # noqa: BLE001 - every thread raises it, or what comes of acting alone
                for asked in batch:
                    asked.error = error
                    asked.alone = len(batch) > 1 and isinstance(error, Exception) and not isinstance(error, self._shared)
        for asked in batch:
            asked.done = True
        with self._lock:
            self._led = bool(self._waiting)
            heir = self._waiting[0] if self._waiting else None
        with contextlib.ExitStack() as to_do:  # whatever happens to one of these, the others are done
            for asked in reversed(batch):
                to_do.callback(asked.settle, asked)
            if self._then is not None and batch[0].error is None:
                to_do.callback(self._then, [asked.request for asked in batch], [cast("R", asked.given) for asked in batch])
            if heir is not None:
                to_do.callback(heir.lead)

    def _act_alone(self, request: Q) -> R:
        with self._turn:
            given = self._act([request])
        if self._then is not None:
            self._then([request], given)
        return given[0]
