"""A result is written down although the database goes away for a while."""

from __future__ import annotations

import pytest

from dualtrack.domain.errors import DatabaseUnavailable, StaleAttempt
from dualtrack.engine import recording
from dualtrack.engine.leases import Lease
from dualtrack.engine.recording import persistently
from dualtrack.work import Work, at_once, do


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_PAUSE_S", 0)


class Writer:
    """Fails as it is told, then writes."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.tries = 0

    def __call__(self) -> Work[None]:
        return at_once(self._write)

    def _write(self) -> None:
        self.tries += 1
        if self.failures:
            raise self.failures.pop(0)


def test_it_is_tried_until_the_database_is_back() -> None:
    write = Writer(DatabaseUnavailable("away"), DatabaseUnavailable("away"))
    do(persistently(write, Lease("calls", "call_1", 1), 60))
    assert write.tries == 3


def test_a_claim_that_is_lost_is_not_fought_for() -> None:
    write = Writer(DatabaseUnavailable("away"), DatabaseUnavailable("away"))
    with pytest.raises(DatabaseUnavailable):
        do(persistently(write, Lease("calls", "call_1", 1, lost=True), 60))
    assert write.tries == 1


def test_it_ends_with_the_patience() -> None:
    with pytest.raises(DatabaseUnavailable):
        do(persistently(Writer(*[DatabaseUnavailable("away")] * 3), Lease("calls", "call_1", 1), 0))


def test_a_refusal_is_passed_on_at_once() -> None:
    write = Writer(DatabaseUnavailable("away"), StaleAttempt("taken over"))
    with pytest.raises(StaleAttempt):
        do(persistently(write, Lease("calls", "call_1", 1), 60))
    assert write.tries == 2
