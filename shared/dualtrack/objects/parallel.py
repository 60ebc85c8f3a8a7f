"""Several requests to the object store at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

PARALLEL: Final = 8
"""Requests under way at once, for one workspace."""

_T = TypeVar("_T")
_R = TypeVar("_R")


def in_parallel(work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """The results in order; the first failure is raised once what is under way has ended, and what has not begun is dropped."""
    if len(items) <= 1:
        return [work(item) for item in items]
    return list(flowing(work, items))


def flowing(work: Callable[[_T], _R], items: Iterable[_T]) -> Iterator[_R]:
    """The results in order, `items` being taken no faster than the work goes: at most `PARALLEL` + 1 are held at once.

    A failure is raised once what is under way has ended.
    """
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="workspace") as pool:
        under_way: deque[Future[_R]] = deque()
        try:
            for item in items:
                if len(under_way) >= PARALLEL:
                    yield under_way.popleft().result()
                under_way.append(pool.submit(work, item))
            while under_way:
                yield under_way.popleft().result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
