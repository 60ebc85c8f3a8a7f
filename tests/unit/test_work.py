"""Work that stands still while others do something for it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar

import pytest

from dualtrack.domain.errors import DatabaseUnavailable, InternalFault
from dualtrack.testing.waiting import wait_until
from dualtrack.threads import Threads
from dualtrack.together import Together
from dualtrack.work import Piece, Question, Work, at_once, do

pytestmark = pytest.mark.timeout(60)


def act(requests: Sequence[int]) -> list[int | None]:
    if 13 in requests:
        raise DatabaseUnavailable("away")
    if 7 in requests:
        raise InternalFault("seven")
    return [None if n == 0 else 2 * n for n in requests]


@pytest.fixture
def together() -> Together[int, int | None]:
    return Together(act, shared=(DatabaseUnavailable,))


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(4, "test")
    yield made
    made.stop()


Did = Callable[[Work[None]], None]


@pytest.fixture(params=["here", "threads"])
def did(request: pytest.FixtureRequest, threads: Threads) -> Did:
    """Does work, either way."""
    if request.param == "here":
        return do

    def by_threads(work: Work[None]) -> None:
        ended = threading.Event()

        def watched() -> Work[None]:
            try:
                yield from work
            finally:
                ended.set()

        threads.put(Piece(watched(), threads))
        assert ended.wait(30)

    return by_threads


def test_it_goes_on_with_the_answer_or_the_error(together: Together[int, int | None], did: Did) -> None:
    seen: list[object] = []

    def work() -> Work[None]:
        for n in (1, 0, 7, 13, 2):
            try:
                seen.append((yield Question(together, n)))
            except (InternalFault, DatabaseUnavailable) as error:
                seen.append(type(error))

    did(work())
    assert seen == [2, None, InternalFault, DatabaseUnavailable, 4]


def test_parts_of_it_give_what_they_return(together: Together[int, int | None], did: Did) -> None:
    seen: list[object] = []

    def part(n: int) -> Work[str]:
        answer = yield Question(together, n)
        return f"got {answer}"

    def work() -> Work[None]:
        seen.append((yield from part(3)))
        seen.append((yield from at_once(lambda: "at once")))

    did(work())
    assert seen == ["got 6", "at once"]


def test_what_it_raises_here_is_raised(together: Together[int, int | None]) -> None:
    def work() -> Work[None]:
        yield Question(together, 1)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        do(work())


class Panic(BaseException):
    """As those of libraries in Rust."""


_NAME: ContextVar[str] = ContextVar("name", default="nobody")


def test_its_context_is_its_own_whichever_thread_goes_on_with_it(together: Together[int, int | None], threads: Threads) -> None:
    seen: list[tuple[str, str, int | None]] = []

    def work(name: str, n: int) -> Work[None]:
        token = _NAME.set(name)
        try:
            answer = yield Question(together, n)
            seen.append((name, _NAME.get(), answer))
        finally:
            _NAME.reset(token)  # raises where it is not the context in which it was set

    for n in range(50):
        threads.put(Piece(work(f"w{n}", n + 100), threads))
    wait_until(lambda: len(seen) == 50, "the end of all")
    assert sorted(seen) == sorted((f"w{n}", f"w{n}", 2 * n + 200) for n in range(50))
    assert _NAME.get() == "nobody"


@pytest.mark.parametrize("error", [ValueError, Panic])
def test_one_that_breaks_spoils_nothing_for_those_that_were_answered_with_it(
    together: Together[int, int | None], threads: Threads, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    seen: list[int] = []
    gate = threading.Event()

    def work(n: int) -> Work[None]:
        yield Question(together, n)
        if n == 1:
            raise error("broken")
        seen.append(n)

    def put_all() -> None:
        for n in range(1, 6):
            threads.put(Piece(work(n), threads), awake=True)
        gate.wait(30)

    threads.put(put_all)
    gate.set()
    wait_until(lambda: len(seen) == 4, "the end of the others")
    assert sorted(seen) == [2, 3, 4, 5]
    assert "broken" in caplog.text


def test_threads_that_would_wait_do_others_work_meanwhile() -> None:
    """One thread, and work whose first part must have been done for all before anything is answered."""
    begun: list[int] = []

    def together_only(requests: Sequence[int]) -> list[int]:
        assert len(begun) == 5
        return list(requests)

    together = Together(together_only, shared=())
    threads, ended = Threads(1, "test"), list[int]()

    def work(n: int) -> Work[None]:
        begun.append(n)
        ended.append((yield Question(together, n)))

    def put_all() -> None:
        for n in range(1, 6):
            threads.put(Piece(work(n), threads), awake=True)

    threads.put(put_all)
    threads.stop()
    assert ended == [1, 2, 3, 4, 5]
