"""Jobs steered on their way, with every service a process of its own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

from dualtrack.testing.stack import Stack
from dualtrack.testing.waiting import wait_until

from .test_jobs import finish, shell


def wait_for(condition: Callable[[], object]) -> None:
    wait_until(condition, "what the test waits for")


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
    took: list[float] = []
    while not took or (took[-1] >= 2 and len(took) < 5):  # a busy machine may be late now and then, a heartbeat always is
        took.append(seconds_to_cancel(stack))
    assert took[-1] < 2, took
    print(f"cancelled in {took[-1]:.3f} s")


def seconds_to_cancel(stack: Stack) -> float:
    """Of a job whose command has started others; all of them are gone then."""
    marker = f"1000.{uuid.uuid4().int % 10**12}"
    job_id = stack.submit([shell(f"sleep {marker} & (setsid sleep {marker} &) ; sleep {marker}"), finish()])
    wait_for(lambda: sum(line.startswith("sleep") for line in processes(marker)) >= 3)
    with stack.client() as client:
        asked = time.monotonic()
        assert client.post(f"/v1/jobs/{job_id}/cancel").status_code == 202
        wait_for(lambda: stack.events(job_id)[-1]["type"] == "job.cancelled")
        took = time.monotonic() - asked
        wait_for(lambda: not processes(marker))
    return took


def events_of(stack: Stack, job_id: str, kind: str) -> int:
    return sum(event["type"] == kind for event in stack.events(job_id))


def test_a_paused_job_finishes_its_call_waits_and_goes_on(stack: Stack) -> None:
    job_id = stack.submit([shell("sleep 4; echo 1 >> log"), shell("echo 2 >> log; cat log"), finish()])
    wait_for(lambda: events_of(stack, job_id, "call.started"))
    with stack.client() as client:
        assert client.post(f"/v1/jobs/{job_id}/pause").status_code == 202
        wait_for(lambda: client.get(f"/v1/jobs/{job_id}").json()["status"] == "waiting")
        assert events_of(stack, job_id, "call.finished") == 1
        before = len(stack.events(job_id))
        time.sleep(1.5)  # more than a tick of the scheduler: nothing may happen
        assert len(stack.events(job_id)) == before
        assert client.post(f"/v1/jobs/{job_id}/resume").status_code == 200
    assert stack.wait(job_id)["status"] == "succeeded"
    finished = [event["data"]["observation"].split() for event in stack.events(job_id) if event["type"] == "call.finished"]
    assert finished[1] == ["1", "2"]


def test_a_message_to_a_running_job_is_seen_before_it_ends(stack: Stack) -> None:
    job_id = stack.submit([shell("sleep 4"), finish("too early"), finish("now")])
    wait_for(lambda: events_of(stack, job_id, "call.started"))
    with stack.client() as client:
        sent = client.post(f"/v1/jobs/{job_id}/messages", json={"content": "one thing more"})
        assert sent.status_code == 201
        assert stack.wait(job_id)["status"] == "succeeded"
        (message,) = client.get(f"/v1/jobs/{job_id}/messages").json()["data"]
    assert message["after_step"] == 1
    kinds = [event["type"] for event in stack.events(job_id)]
    assert kinds.index("message.taken") < kinds.index("job.succeeded")


def test_a_fork_goes_on_from_the_workspace_of_its_step(stack: Stack) -> None:
    job_id = stack.submit([shell(f"echo {n} >> log; cat log") for n in (1, 2, 3)] + [finish()])
    assert stack.wait(job_id)["status"] == "succeeded"
    with stack.client() as client:
        forked = client.post(f"/v1/jobs/{job_id}/fork", json={"step": 2}).raise_for_status().json()
        assert stack.wait(forked["id"])["status"] == "succeeded"
        steps = client.get(f"/v1/jobs/{forked['id']}/steps").json()["data"]
    assert [call["observation"].split() for step in steps[:3] for call in step["calls"]] == [["1"], ["1", "2"], ["1", "2", "3"]]
    assert events_of(stack, forked["id"], "call.started") == 1
