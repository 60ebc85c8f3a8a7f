"""Threads that do what is put before them."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from dualtrack.testing.waiting import wait_until
from dualtrack.threads import Threads

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(4, "test")
    yield made
    made.stop()


def test_all_of_it_is_done_in_order_as_far_as_one_thread_can(threads: Threads) -> None:
    done: list[int] = []
    gate = threading.Event()

    def wait() -> None:
        gate.wait(30)

    threads.put(wait)
    for n in range(100):
        threads.put(partial(done.append, n), awake=True)
    gate.set()
    wait_until(lambda: len(done) == 100, "all of it done")
    assert done == list(range(100))


def test_behind_work_that_waits_the_next_thread_is_there_at_once(threads: Threads) -> None:
    met = threading.Barrier(5)  # four threads and this one: each piece waits for all others

    def meet() -> None:
        met.wait(30)

    def put_all() -> None:
        for _ in range(4):
            threads.put(meet, awake=True)

    threads.put(put_all)
    met.wait(30)


def test_there_are_no_more_threads_than_said(threads: Threads) -> None:
    names: set[str] = set()
    at_work, most = [0], [0]
    lock = threading.Lock()

    def work() -> None:
        with lock:
            names.add(threading.current_thread().name)
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
        time.sleep(0.01)
        with lock:
            at_work[0] -= 1

    for _ in range(20):
        threads.put(work)
    threads.stop()
    assert most[0] <= 4
    assert names <= {f"test-{n}" for n in range(4)}
    assert at_work[0] == 0


def test_stop_waits_for_what_work_puts_there_and_then_nothing_is_taken() -> None:
    threads, done = Threads(2, "test"), list[str]()

    def first() -> None:
        time.sleep(0.05)
        threads.put(lambda: done.append("second"), awake=True)
        done.append("first")

    threads.put(first)
    threads.stop()
    assert done == ["first", "second"]
    with pytest.raises(RuntimeError, match="stopped"):
        threads.put(lambda: None)


def test_stop_of_threads_that_never_had_work() -> None:
    Threads(2, "test").stop()


def test_work_that_fails_is_logged_and_its_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    threads, done = Threads(1, "test"), list[int]()

    def fails() -> None:
        raise ValueError("broken")

    threads.put(fails)
    threads.put(partial(done.append, 1))
    threads.stop()
    assert done == [1]
    assert "broken" in caplog.text


class Panic(BaseException):
    """As those of libraries in Rust."""


def test_a_panic_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    threads, done = Threads(1, "test"), list[int]()

    def panics() -> None:
        raise Panic

    threads.put(panics)
    threads.put(partial(done.append, 1))
    threads.stop()
    assert done == [1]
    assert "Panic" in caplog.text


def test_what_is_to_come_last_waits_for_all_that_comes_later() -> None:
    threads, done, gate = Threads(1, "test"), list[str](), threading.Event()

    def first() -> None:
        gate.wait(30)
        threads.put(partial(done.append, "third"), awake=True)

    threads.put(first)
    threads.put(partial(done.append, "last"), last=True)
    threads.put(partial(done.append, "second"))
    gate.set()
    threads.stop()
    assert done == ["second", "third", "last"]


def no_more_than(allowed: int, monkeypatch: pytest.MonkeyPatch, error: type[Exception] = RuntimeError) -> None:
    start: Callable[[threading.Thread], None] = threading.Thread.start
    started: list[threading.Thread] = []

    def counted(thread: threading.Thread) -> None:
        if len(started) >= allowed:
            raise error("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", counted)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_work_for_which_no_further_thread_can_be_had_is_done_once_by_those_there_are(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    no_more_than(1, monkeypatch, error)
    threads, done = Threads(4, "test"), list[int]()
    for n in range(10):
        threads.put(partial(done.append, n))
    threads.stop()
    assert done == list(range(10))


def test_without_any_thread_work_is_refused_and_never_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, done = Threads(4, "test"), list[int]()
    with monkeypatch.context() as patch:
        no_more_than(0, patch)
        with pytest.raises(RuntimeError, match="can be started"):
            threads.put(lambda: done.append(1))
    threads.put(lambda: done.append(2))
    threads.stop()
    assert done == [2]


def test_many_threads_put_and_take_and_nothing_is_lost() -> None:
    """Whatever the order in which threads go idle and are woken."""
    threads, lock, done = Threads(3, "test"), threading.Lock(), [0]

    def work(more: int) -> None:
        with lock:
            done[0] += 1
        if more:
            threads.put(lambda: work(more - 1), awake=more % 2 == 0)

    def client() -> None:
        for n in range(300):
            threads.put(lambda: work(3))
            if n % 50 == 0:
                time.sleep(0.001)  # so that threads go idle

    clients = [threading.Thread(target=client) for _ in range(4)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    threads.stop()
    assert done == [4 * 300 * 4]
