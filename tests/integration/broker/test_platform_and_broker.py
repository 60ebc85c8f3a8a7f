"""The platform on a broker that closes channels of long calls and cuts connections: nothing is done twice, and everybody consumes again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dualtrack.doctor.examination import examine
from dualtrack.testing.servers.rabbitmq import RabbitMQ
from dualtrack.testing.stack import Stack

from .conftest import CONSUMER_TIMEOUT_S

FINISH = {"tool": "finish", "arguments": {"answer": "done"}}


def shell(command: str) -> dict[str, Any]:
    return {"tool": "shell", "arguments": {"command": command}}


@pytest.fixture(scope="module")
def stack(postgres: Any, own_rabbitmq: RabbitMQ, s3_server: Any) -> Iterator[Stack]:
    url = postgres.create_database()
    broker = own_rabbitmq.new_vhost()
    environment = {"DUALTRACK_BROKER__MANAGEMENT_URL": f"http://127.0.0.1:{own_rabbitmq.http_port}"}
    with Stack(database_url=url, broker_url=broker, s3=s3_server, environment=environment) as running:
        yield running
    postgres.drop_database(url)
    own_rabbitmq.delete_vhost(broker)


def starts(stack: Stack, job_id: str) -> int:
    """How often a tool call of the job was begun."""
    return sum(event["type"] == "call.started" for event in stack.events(job_id))


def wait_for_a_call(stack: Stack, job_id: str) -> None:
    stack.process("executor").wait_until(lambda: starts(stack, job_id) > 0, timeout_s=60)


def healthy_again(stack: Stack) -> None:
    """Planner and executor have touched their health files since now: the broker has them as consumers."""
    now = time.time()
    files = [stack.folder / f"{name}.health" for name in ("planner", "executor")]
    stack.process("router").wait_until(lambda: all(file.exists() and file.stat().st_mtime > now for file in files), timeout_s=120)


def works(stack: Stack) -> None:
    """A job goes all the way, and no promise is broken."""
    assert stack.wait(stack.submit([shell("true"), FINISH]))["status"] == "succeeded"
    assert [finding.name for finding in examine(stack.database) if not finding.holds] == []


def test_a_call_longer_than_the_broker_s_patience_is_done_once(stack: Stack) -> None:
    job = stack.submit([shell(f"sleep {2 * CONSUMER_TIMEOUT_S + 2}"), FINISH])
    assert stack.wait(job)["status"] == "succeeded"
    assert starts(stack, job) == 1
    log = stack.log("executor")
    stack.process("executor").wait_until(lambda: "PRECONDITION_FAILED" in log.read_text(errors="replace"), timeout_s=60)
    healthy_again(stack)
    works(stack)


def test_cut_connections_lose_and_repeat_nothing(stack: Stack, own_rabbitmq: RabbitMQ) -> None:
    jobs = [stack.submit([shell("sleep 2"), shell("sleep 1"), FINISH]) for _ in range(3)]
    wait_for_a_call(stack, jobs[0])
    own_rabbitmq.cut_connections()
    for job in jobs:
        assert stack.wait(job)["status"] == "succeeded"
        assert starts(stack, job) == 2
    healthy_again(stack)
    works(stack)


def test_sigterm_lets_a_call_finish(stack: Stack) -> None:
    job = stack.submit([shell("sleep 2; echo finished > a"), FINISH])
    wait_for_a_call(stack, job)
    executor = stack.process("executor")
    os.kill(executor.pid, signal.SIGTERM)
    deadline = time.monotonic() + 60
    while executor.running():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert executor.status == 0
    stack.kill("executor")
    stack.start("executor")
    assert stack.wait(job)["status"] == "succeeded"
    assert starts(stack, job) == 1
    works(stack)
