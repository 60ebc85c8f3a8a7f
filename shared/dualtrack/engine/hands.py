"""Threads for the work of the scheduler that waits for others than the database and the broker, so that the clock never does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from dualtrack.domain.errors import DualtrackError

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Errand:
    """Something taken up, that nobody else takes up meanwhile."""

    key: str
    """Of errands with the same key, one is under way at a time in this process."""
    do: Callable[[], bool]
    """Whether something came of it: where not, its thread leaves the rest to the next tick."""


class Errands(Protocol):
    """Where work of one kind comes from. The database says what is due; what is lost with its process is due as before."""

    def due(self, most: int, busy: Collection[str]) -> int:
        """How many could be taken up now, counted up to `most`. Raises `DatabaseUnavailable`."""

    def take(self, busy: Collection[str]) -> Errand | None:
        """Take up the next one whose key is not among those; None: there is none. Raises `DatabaseUnavailable`."""


class Hands:
    """A few threads that do errands until none is left. Started by need: there are none while there is nothing to do."""

    def __init__(self, errands: Errands, most: int, name: str) -> None:
        self._errands = errands
        self._most = most
        self._name = name
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._taking = threading.Lock()
        self._busy: set[str] = set()
        self._working = 0
        self._stopping = False

    def start_due(self) -> int:
        """Have threads do what is due, as many as there is room for; how many were started. Raises `DatabaseUnavailable`."""
        with self._lock:
            room, busy = self._most - self._working, tuple(self._busy)
        if room <= 0 or self._stopping:
            return 0
        wanted = self._errands.due(room, busy)
        for _ in range(wanted):
            with self._lock:
                self._working += 1
            self._start()
        return wanted

    def do_next(self) -> bool:
        """Do the next errand in this thread; False when there is none. Raises `DatabaseUnavailable`, and what the errand does."""
        return self._next() is not None

    def _next(self) -> bool | None:
        """What came of the next errand; None: there is none."""
        with self._taking:  # or two could take up the same key
            with self._lock:
                busy = tuple(self._busy)
            errand = self._errands.take(busy)
            if errand is None:
                return None
            with self._lock:
                self._busy.add(errand.key)
        try:
            return errand.do()
        finally:
            with self._lock:
                self._busy.discard(errand.key)

    def close(self) -> None:
        """Take up nothing more; returns when what is under way has ended."""
        self._stopping = True
        self._pool.shutdown(cancel_futures=True)

    def _start(self) -> None:
        self._pool.submit(self._work)

    def _work(self) -> None:
        """Do errands until none is due, or nothing comes of one. Raises nothing."""
        try:
            while not self._stopping and self._next():
                pass
        except DualtrackError as error:
            _LOG.warning("%s: the rest waits for the next tick: %s", self._name, error)
        except Exception:  # noqa: BLE001 - the next tick starts another one
            _LOG.exception("%s: the rest waits for the next tick", self._name)
        finally:
            with self._lock:
                self._working -= 1


HandsFactory = Callable[[Errands, int, str], Hands]
