"""What bounds a session's proxy: bytes, requests, processor time."""

from __future__ import annotations

import threading
import time

import pytest

from dualtrack.domain.egress import EgressReason, EgressUsage
from dualtrack.egress.meter import Meter
from dualtrack.egress.pace import Pace
from dualtrack.egress.refusal import Cut


def test_bytes_are_refused_before_they_go_out_and_before_they_are_handed_on() -> None:
    meter = Meter(max_bytes_up=10, max_bytes_down=5, max_requests=2)
    meter.up(10)
    meter.down(5)
    assert meter.spent
    for too_much in (meter.up, meter.down):
        with pytest.raises(Cut) as cut:
            too_much(1)
        assert cut.value.reason is EgressReason.BYTES_LIMIT
    assert [meter.begin() for _ in range(3)] == [True, True, False]
    meter.refused()
    assert meter.usage == EgressUsage(3, 1, 10, 5)


def test_threads_together_take_their_share_and_no_more() -> None:
    pace = Pace(share=0.2, burst_s=0.05)
    took: list[float] = []

    def flood(until: float) -> None:
        while time.monotonic() < until:
            sum(range(2000))
            pace.keep()
        took.append(time.thread_time())

    started = time.monotonic()
    threads = [threading.Thread(target=flood, args=(started + 0.8,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(took) < 0.05 + 0.2 * (time.monotonic() - started) + 0.1


def test_who_takes_little_never_waits() -> None:
    pace = Pace()
    took: list[float] = []

    def little() -> None:
        started = time.monotonic()
        for _ in range(1000):
            pace.keep()
        took.append(time.monotonic() - started - time.thread_time())

    thread = threading.Thread(target=little)  # of its own: what it has taken since its start counts
    thread.start()
    thread.join()
    assert took[0] < 30  # one pause a time would be minutes
