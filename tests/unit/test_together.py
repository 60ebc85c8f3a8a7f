"""One thread acts for all that ask at the same time."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from dualtrack.domain.errors import DatabaseUnavailable, InternalFault
from dualtrack.together import Together


class Stage:
    """An act that stands still in its first batch until all others have asked."""

    def __init__(self, others: int, *, answer: Callable[[Sequence[int]], list[int]], most: int = 32) -> None:
        self.batches: list[list[int]] = []
        self._answer = answer
        self._others = others
        self.together = Together(self._act, shared=(DatabaseUnavailable,), most=most)

    def _act(self, requests: Sequence[int]) -> list[int]:
        first = not self.batches
        self.batches.append(list(requests))
        if first:
            deadline = threading.Event()
            while len(self.together._waiting) < self._others and not deadline.wait(0.001):
                pass
        return self._answer(requests)

    def run(self) -> list[object]:
        """What came of 0, 1, 2 …, of which 0 asks first."""
        with ThreadPoolExecutor(self._others + 1) as pool:
            first = pool.submit(self.together.do, 0)
            while not self.batches:
                pass
            asked = [first, *(pool.submit(self.together.do, n) for n in range(1, self._others + 1))]
            return [each.exception() or each.result() for each in asked]


def doubled(requests: Sequence[int]) -> list[int]:
    return [2 * n for n in requests]


@pytest.mark.timeout(120)
def test_what_was_asked_for_meanwhile_is_done_together() -> None:
    stage = Stage(9, answer=doubled)
    assert stage.run() == [2 * n for n in range(10)]
    assert [len(batch) for batch in stage.batches] == [1, 9]


@pytest.mark.timeout(120)
def test_a_batch_has_a_limit_and_nobody_is_forgotten() -> None:
    stage = Stage(9, answer=doubled, most=4)
    assert stage.run() == [2 * n for n in range(10)]
    assert [len(batch) for batch in stage.batches] == [1, 4, 4, 1]


@pytest.mark.timeout(120)
def test_one_request_that_fails_spoils_nothing_for_the_others() -> None:
    def picky(requests: Sequence[int]) -> list[int]:
        if 3 in requests:
            raise InternalFault("three")
        return doubled(requests)

    stage = Stage(4, answer=picky)
    found = stage.run()
    assert [each for each in found if isinstance(each, int)] == [0, 2, 4, 8]
    assert isinstance(found[3], InternalFault)
    assert sorted(map(len, stage.batches)) == [1, 1, 1, 1, 1, 4]


@pytest.mark.timeout(120)
def test_an_error_that_concerns_everybody_is_raised_by_everybody() -> None:
    def away(requests: Sequence[int]) -> list[int]:
        if 0 in requests:
            return doubled(requests)
        raise DatabaseUnavailable("away")

    stage = Stage(4, answer=away)
    found = stage.run()
    assert all(isinstance(each, DatabaseUnavailable) for each in found[1:])
    assert len({id(each) for each in found[1:]}) == 4  # each its own, since raising writes to it
    assert len(stage.batches) == 2
    assert stage.together.do(0) == 0  # and the next one is tried


@pytest.mark.timeout(20)
def test_what_follows_for_a_batch_is_done_before_its_threads_go_on_and_keeps_nobody_waiting() -> None:
    turn, begun, go_on, followed = threading.Lock(), threading.Event(), threading.Event(), list[tuple[list[int], list[int]]]()

    def then(requests: Sequence[int], given: Sequence[int]) -> None:
        if requests[0] == 0:
            begun.set()
            assert go_on.wait(10)
        followed.append((list(requests), list(given)))

    together = Together(doubled, shared=(), turn=turn, then=then)
    other = Together(doubled, shared=(), turn=turn)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(together.do, 0)
        assert begun.wait(10)
        assert (other.do(5), together.do(3)) == (10, 6)  # while what follows for the first is not done
        assert not first.done()
        go_on.set()
        assert first.result() == 0
    assert sorted(followed) == [([0], [0]), ([3], [6])]


class Hands:
    """Threads that work when the test lets them, and what came of questions."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.found: dict[int, object] = {}

    def put(self, work: Callable[[], None], *, awake: bool = False) -> None:
        self.work.append(work)

    def ask(self, together: Together[int, int], request: int) -> None:
        def then(answer: Callable[[], int], known: bool) -> None:
            self.found[request] = "later" if not known else answer()
            if not known:
                self.put(lambda: self._late(request, answer))

        together.ask(request, self.put, then)

    def _late(self, request: int, answer: Callable[[], int]) -> None:
        try:
            self.found[request] = answer()
        except Exception as error:
            self.found[request] = error

    def turn(self) -> None:
        while self.work:
            self.work.pop(0)()


def test_who_does_not_wait_is_told_and_all_that_asked_before_a_thread_came_is_done_together() -> None:
    batches: list[list[int]] = []

    def act(requests: Sequence[int]) -> list[int]:
        batches.append(list(requests))
        return doubled(requests)

    hands, together = Hands(), Together(act, shared=(), most=3)
    for n in range(5):
        hands.ask(together, n)
    assert len(hands.work) == 1  # one thread for all
    hands.turn()
    assert hands.found == {n: 2 * n for n in range(5)}
    assert batches == [[0, 1, 2], [3, 4]]
    assert together.do(7) == 14  # nobody acts any more, so this thread does
    hands.ask(together, 8)
    hands.turn()
    assert hands.found[8] == 16


def test_who_does_not_wait_spoils_nothing_for_others_and_none_of_them_acts_alone_for_all() -> None:
    def picky(requests: Sequence[int]) -> list[int]:
        if 3 in requests:
            raise InternalFault("three")
        return doubled(requests)

    hands, together = Hands(), Together(picky, shared=(DatabaseUnavailable,))
    for n in range(5):
        hands.ask(together, n)
    hands.work.pop(0)()
    assert hands.found == dict.fromkeys(range(5), "later")
    assert len(hands.work) == 5
    hands.turn()
    assert isinstance(hands.found.pop(3), InternalFault)
    assert hands.found == {0: 0, 1: 2, 2: 4, 4: 8}


@pytest.mark.timeout(20)
def test_threads_that_wait_and_such_that_do_not_go_together() -> None:
    hands, asked = Hands(), threading.Event()

    def act(requests: Sequence[int]) -> list[int]:
        if requests[0] == 0:
            hands.ask(together, 1)  # the next to act is one that does not wait
            asked.set()
            while len(together._waiting) < 2:
                pass
        return doubled(requests)

    together = Together(act, shared=())
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(together.do, 0)
        assert asked.wait(10)
        second = pool.submit(together.do, 2)
        assert first.result() == 0
        while not second.done():
            hands.turn()
        assert (hands.found, second.result()) == ({1: 2}, 4)


def test_whatever_happens_to_one_of_a_batch_the_others_are_told_and_the_next_batch_is_done() -> None:
    hands, together = Hands(), Together(doubled, shared=(), then=lambda *_: 1 / 0, most=2)  # type: ignore[arg-type]

    def breaks(answer: Callable[[], int], known: bool) -> None:
        raise RuntimeError("broken")

    together.ask(0, hands.put, breaks)
    for n in range(1, 5):
        hands.ask(together, n)
    while hands.work:
        with contextlib.suppress(ZeroDivisionError, RuntimeError):
            hands.work.pop(0)()
    assert hands.found == {n: 2 * n for n in range(1, 5)}
