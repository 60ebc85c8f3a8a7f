"""Jobs steered on their way, with every service a process of its own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

from dualtrack.testing.stack import Stack

from .test_jobs import finish, shell


def wait_for(condition: Callable[[], object], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def processes(marker: str) -> list[str]:
    """Command lines on this machine that have `marker` in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in line:
            found.append(line)
    return found


def test_cancel_ends_a_running_command_and_all_it_started_within_two_seconds(stack: Stack) -> None:
    """The heartbeat of these workers is too slow for that: what reaches them is the call."""
    marker = f"1000.{uuid.uuid4().int % 10**12}"
    job_id = stack.submit([shell(f"sleep {marker} & (setsid sleep {marker} &) ; sleep {marker}"), finish()])
    wait_for(lambda: sum(line.startswith("sleep") for line in processes(marker)) >= 3)
    with stack.client() as client:
        asked = time.monotonic()
        assert client.post(f"/v1/jobs/{job_id}/cancel").status_code == 202
        wait_for(lambda: stack.events(job_id)[-1]["type"] == "job.cancelled", 10)
        took = time.monotonic() - asked
        assert not processes(marker)
    assert took < 2, took
    print(f"cancelled in {took:.3f} s")
