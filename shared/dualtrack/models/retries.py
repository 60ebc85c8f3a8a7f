"""How often a model is asked again, how long to wait before, and which of several failures to tell."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from typing import Final

from dualtrack.domain.errors import ModelError, ModelUnavailable
from dualtrack.models.errors import retry_after_s

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 20.0


class Tries:
    """The tries of one model: iterate over it and ask `another` after each failure."""

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self.number = 0

    def __iter__(self) -> Iterator[Tries]:
        while True:
            yield self
            self.number += 1

    def another(self, failure: ModelError) -> bool:
        """Whether to try again after `failure`: passing ones, as often as set; a cut connection or a failing server at least once."""
        allowed = max(self._retries, 1) if isinstance(failure, ModelUnavailable) else self._retries
        return failure.retryable and self.number < allowed


class Pause:
    """Exponential pauses with jitter; what the provider asks for wins, up to the longest pause."""

    def __init__(self, jitter: random.Random, *, first_s: float = FIRST_PAUSE_S, longest_s: float = LONGEST_PAUSE_S) -> None:
        self._jitter = jitter
        self._first_s = first_s
        self._longest_s = longest_s

    def seconds(self, number: int, error: BaseException) -> float:
        """The pause after try `number` (from 0) failed with `error`."""
        asked = retry_after_s(error)
        if asked is not None:
            return min(asked, self._longest_s)
        return min(self._first_s * 2.0**number, self._longest_s) * self._jitter.uniform(0.5, 1.0)

    def wait(self, number: int, error: BaseException, *, limit_s: float) -> None:
        """Sleep, but not past `limit_s`."""
        time.sleep(max(0.0, min(self.seconds(number, error), limit_s)))

    async def wait_async(self, number: int, error: BaseException) -> None:
        """Sleep without blocking the event loop."""
        await asyncio.sleep(self.seconds(number, error))


def most_telling(failures: Sequence[ModelError]) -> ModelError:
    """Of the failures of all tries, the one to raise: a passing one if there is any (trying later may help), the latest such."""
    passing = [failure for failure in failures if failure.retryable]
    return passing[-1] if passing else failures[0]
