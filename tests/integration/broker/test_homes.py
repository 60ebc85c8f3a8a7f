"""Calls go where their job is at home, and to anyone where that can't be."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import pytest

from dualtrack.queues import homes
from dualtrack.queues.port import Task

from .conftest import Workers

pytestmark = pytest.mark.parametrize("workers", [Task.EXECUTE], indirect=True, ids=["executor"])


def home_of(workers: Workers, name: str) -> str:
    (home,) = [line.split()[1] for line in workers.lines() if line.startswith("home") and line.endswith(f" {workers.processes[name].pid}")]
    return home


def begun_by(workers: Workers, row_id: str) -> list[int]:
    return [int(line.split()[2]) for line in workers.lines() if line.startswith(f"begin {row_id} ")]


def ended(workers: Workers, row_id: str) -> bool:
    return workers.count(f"end {row_id} ") == 1


def test_calls_go_home_and_to_anyone_when_nobody_is_there(workers: Workers) -> None:
    workers.start("one", home_wait_ms=60_000)
    workers.start("two", home_wait_ms=60_000)
    workers.wait_healthy("one")
    workers.wait_healthy("two")
    two = workers.processes["two"]
    with homes.at(home_of(workers, "two")):
        for number in range(10):
            workers.ring(f"home-{number}")
            workers.wait(partial(ended, workers, f"home-{number}"), "the call")
    assert {pid for number in range(10) for pid in begun_by(workers, f"home-{number}")} == {two.pid}
    with homes.at("0123456789abcdef"):
        workers.ring("nobody")
    workers.wait(lambda: workers.count("end nobody") == 1, "a call whose home is gone")


def test_a_call_does_not_wait_for_a_busy_home(workers: Workers) -> None:
    workers.start("one", threads=1)
    workers.wait_healthy("one")
    home = home_of(workers, "one")
    workers.start("two", threads=1)
    workers.wait_healthy("two")
    with homes.at(home):
        workers.ring("sleep-20-a")
        workers.wait(lambda: workers.count("begin sleep") == 1, "its only thread is taken")
        workers.ring("b")
    workers.wait(lambda: workers.count("end b") == 1, "another has taken the call")
    assert workers.count("end sleep") == 0
    assert len(begun_by(workers, "b")) == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_home_that_dies_or_freezes_loses_no_call(workers: Workers, how: signal.Signals) -> None:
    one = workers.start("one", threads=1)
    workers.wait_healthy("one")
    home = home_of(workers, "one")
    workers.start("two", threads=1)
    workers.wait_healthy("two")
    with homes.at(home):
        workers.ring("sleep-1-a")
        workers.wait(lambda: workers.count("begin sleep") == 1, "a call under way")
        os.kill(one.pid, how)
        killed = time.monotonic()
        workers.ring("b")
    workers.wait(lambda: workers.count("end b") == 1, "the call that waited")
    if how is signal.SIGKILL:
        workers.wait(lambda: workers.count("end sleep") == 1, "the call under way came to another")
        assert time.monotonic() - killed < 60
    else:
        os.kill(one.pid, signal.SIGCONT)
