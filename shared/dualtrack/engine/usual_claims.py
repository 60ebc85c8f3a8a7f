"""Rows of one kind claimed the usual way for all messages that have come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from dualtrack.db.swift import Runs
from dualtrack.domain.limits import PlatformLimits
from dualtrack.engine.runtime import WorkerRuntime
from dualtrack.faults import Fault, point
from dualtrack.together import make_room

C = TypeVar("C")

Claim = Callable[[Runs, Sequence[str], int, PlatformLimits], Mapping[str, C]]
"""Claims those of the rows that are usual, for the owner with that key; by id."""


class UsualClaims(Generic[C]):
    """Claims that take turns with a process's records. Thread-safe."""

    def __init__(self, worker: WorkerRuntime, claim: Claim[C], fault: Fault, turn: threading.Lock) -> None:
        """`fault` is passed for each row before it is claimed."""
        self._worker = worker
        self._claim: Final = claim
        self._fault = fault
        self._turn = turn
        self._company = False

    def take(self, rung: Callable[[], Sequence[str]]) -> list[C | None]:
        """Claim those of the rows that are usual, each once; None for the others.

        `rung` gives the rows. It is called when it is their turn, so that those whose ring has come meanwhile are among them.
        """
        runtime = self._worker.base
        with self._turn:
            make_room(self._company)
            row_ids = rung()
            self._company = len(row_ids) > 1
            for row_id in row_ids:
                point(self._fault, row_id)
            with runtime.database.statements() as tx:
                found = dict(self._claim(tx, list(dict.fromkeys(row_ids)), self._worker.presence.key, runtime.limits))
        return [found.pop(row_id, None) for row_id in row_ids]  # the second of two rings for one row finds nothing
