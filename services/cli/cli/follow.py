"""Following a job's events to its end, across broken connections, without losing or repeating one."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from cli.client import Client, ConnectionBroken
from cli.outcome import ApiError, Unreachable, ended

END_TYPES: Final = frozenset({"job.succeeded", "job.failed", "job.cancelled", "job.expired"})
GIVE_UP_S: Final = 300.0
"""Seconds without reaching the server, after which following ends with an error."""
_PAUSE_S: Final = 0.5
_PAUSE_MAX_S: Final = 10.0
_PASSING: Final = frozenset({408, 429, 502, 503, 504})
"""HTTP statuses that a restart or a busy moment explains."""


class Follower:
    """Iterate over it for a job's events after `after`, in order, each once, until the event that ends the job.

    Attributes:
        last_seq: sequence number of the last event given out.

    Args:
        client: where to ask.
        job_id: the job.
        after: the last sequence number already known; 0 for all of them.
        on_break: told, with the reason and the seconds until the next try, when the connection is lost.
        sleep: waits that many seconds.
        monotonic: a clock in seconds.

    Raises (while iterating):
        ApiError: at once for errors that waiting can't mend (bad key, unknown job).
        Unreachable: no contact for `GIVE_UP_S`.
    """

    def __init__(
        self,
        client: Client,
        job_id: str,
        *,
        after: int = 0,
        on_break: Callable[[str, float], None] = lambda _reason, _pause: None,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.last_seq = after
        self._client = client
        self._path = f"/v1/jobs/{job_id}"
        self._on_break = on_break
        self._sleep = sleep
        self._monotonic = monotonic

    def __iter__(self) -> Iterator[dict[str, Any]]:
        tries = 0
        contact = self._monotonic()
        while True:
            before = self.last_seq
            reason = "the server closed the stream"
            try:
                for event in self._once():
                    yield event
                    if event.get("type") in END_TYPES:
                        return
                if self.last_seq == before and self._is_over():
                    return
                contact = self._monotonic()
            except Unreachable as error:
                reason = error.message
                if self._monotonic() - contact > GIVE_UP_S:
                    raise
            except ApiError as error:
                if error.status not in _PASSING or self._monotonic() - contact > GIVE_UP_S:
                    raise
                reason = error.message
            if self.last_seq > before:
                tries, contact = 0, self._monotonic()
            # Half of the pause is chance, so that many watchers don't come back in one moment.
            pause = min(_PAUSE_MAX_S, _PAUSE_S * 2.0**tries) * (0.5 + random.random() / 2)  # noqa: S311 - jitter, not a secret
            tries = min(tries + 1, 16)
            self._on_break(reason, pause)
            self._sleep(pause)

    def _once(self) -> Iterator[dict[str, Any]]:
        params = [("after", str(self.last_seq))]
        with self._client.stream("GET", self._path + "/events", params=params) as stream:
            for raw in stream:
                event = _event(raw.data)
                seq = None if event is None else event.get("seq")
                if event is None or not isinstance(seq, int) or seq <= self.last_seq:
                    continue
                if seq != self.last_seq + 1:
                    # Numbers have no gaps: something was lost on the way, so ask again from the last one that came.
                    raise ConnectionBroken(f"event {self.last_seq + 1} is missing from the stream")
                self.last_seq = seq
                yield event

    def _is_over(self) -> bool:
        """Whether the job has ended and holds no event that was not given out."""
        job = self._client.get(self._path)
        last = job.get("last_seq")
        return ended(str(job.get("status"))) and (not isinstance(last, int) or last <= self.last_seq)


def _event(data: str) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
