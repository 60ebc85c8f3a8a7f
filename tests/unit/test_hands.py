"""The scheduler's threads: bounded, one errand of a key at a time, none stopped by another's fault."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import pytest

from dualtrack.domain.errors import StorageUnavailable
from dualtrack.engine.aside import Aside
from dualtrack.engine.hands import Errand, Hands

_DEADLINE_S = 60.0


class Tasks:
    """Errands that a test gives out."""

    def __init__(self, *keys: str, do: Callable[[str], object]) -> None:
        self.left = list(keys)
        self.do = do
        self.lock = threading.Lock()

    def due(self, most: int, busy: Collection[str]) -> int:
        return len([key for key in self.left if key not in busy][:most])

    def take(self, busy: Collection[str]) -> Errand | None:
        with self.lock:
            free = [key for key in self.left if key not in busy]
            if not free:
                return None
            self.left.remove(free[0])
        return Errand(free[0], lambda: self.do(free[0]) is None)


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not done():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


@contextmanager
def hands(tasks: Tasks, most: int, free: threading.Event) -> Iterator[Hands]:
    found = Hands(tasks, most, "test")
    try:
        yield found
    finally:
        free.set()
        found.close()


def test_who_asks_does_not_wait_and_no_more_are_at_work_than_may() -> None:
    free, begun = threading.Event(), []

    def do(key: str) -> None:
        begun.append(key)
        assert free.wait(_DEADLINE_S)

    tasks = Tasks("a", "b", "c", "d", do=do)
    with hands(tasks, 2, free) as some:
        assert some.start_due() == 2
        until(lambda: len(begun) == 2)
        assert some.start_due() == 0
        free.set()
        until(lambda: len(begun) == 4)
    assert begun == ["a", "b", "c", "d"]


def test_of_one_key_one_is_under_way_at_a_time() -> None:
    free, begun = threading.Event(), []

    def do(key: str) -> None:
        begun.append(key)
        assert free.wait(_DEADLINE_S)

    tasks = Tasks("a", "a", "b", do=do)
    with hands(tasks, 4, free) as some:
        assert some.start_due() == 3
        until(lambda: sorted(begun) == ["a", "b"])
        assert some.start_due() == 0
        free.set()
        until(lambda: some.start_due() == 0 and len(begun) == 3)


@pytest.mark.parametrize("fault", [StorageUnavailable("away"), KeyError("nobody foresaw this")])
def test_a_failure_ends_its_thread_and_the_next_look_goes_on(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def do(key: str) -> None:
        if key == "bad":
            raise fault
        done.append(key)

    tasks = Tasks("bad", "good", do=do)
    with hands(tasks, 1, threading.Event()) as one:
        until(lambda: one.start_due() == 0 and done == ["good"])
    assert "the rest waits for the next tick" in caplog.text


def test_where_nothing_comes_of_an_errand_the_rest_waits_for_the_next_look() -> None:
    done: list[str] = []

    def do(key: str) -> bool | None:
        done.append(key)
        return False if key == "held" else None

    tasks = Tasks("held", "good", do=do)
    some = Hands(tasks, 1, "test")
    assert some.start_due() == 1
    until(lambda: done == ["held"])
    some.close()
    assert (done, tasks.left) == (["held"], ["good"])


def test_nothing_is_taken_up_after_the_close() -> None:
    tasks = Tasks("a", do=lambda _: None)
    some = Hands(tasks, 1, "test")
    some.close()
    assert some.start_due() == 0
    assert tasks.left == ["a"]


def test_rows_are_left_alone_for_a_while_and_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Aside, "MOST", 2)
    aside = Aside()
    aside.add("a")
    now[0] += 10
    aside.add("b")
    assert aside.ids() == ("a", "b")
    aside.add("c")
    assert aside.ids() == ("b", "c")
    now[0] += Aside.PAUSE_S
    assert aside.ids() == ()
