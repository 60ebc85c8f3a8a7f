"""A job's sandbox from call to call, with two executors on one queue."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from dualtrack.testing.stack import Stack
from dualtrack.testing.waiting import wait_until

from .test_jobs import finish, shell

CALLS = 6


@pytest.fixture(scope="module")
def stack(postgres: Any, rabbitmq: Any, s3_server: Any) -> Iterator[Stack]:
    url = postgres.create_database()
    broker = rabbitmq.new_vhost()
    with Stack(database_url=url, broker_url=broker, s3=s3_server) as running:
        running.start("executor", name="executor-2")
        running.wait_healthy("executor-2")
        yield running
    postgres.drop_database(url)
    rabbitmq.delete_vhost(broker)


def cell(code: str) -> dict[str, Any]:
    return {"tool": "execute_python", "arguments": {"code": code, "session": "persistent"}}


def observations(stack: Stack, job_id: str) -> list[str]:
    return [event["data"]["observation"] for event in stack.events(job_id) if event["type"] == "call.finished"]


def test_jobs_keep_their_variables_and_servers_though_there_are_two_executors(stack: Stack) -> None:
    server = "echo served > a.txt; python3 -m http.server 8811 --bind 127.0.0.1 > /tmp/log 2>&1 &"
    ask = (
        "import time, urllib.request\nfor _ in range(600):\n"
        "  try: print(urllib.request.urlopen('http://127.0.0.1:8811/a.txt').read().decode()); break\n"
        "  except OSError: time.sleep(0.05)"
    )
    steps = [cell("n = 0"), *(cell("n += 1; print(n)") for _ in range(CALLS)), shell(server), cell(ask)]
    jobs = [stack.submit([*steps, finish()]) for _ in range(4)]
    for job_id in jobs:
        assert stack.wait(job_id)["status"] == "succeeded"
        seen = [text.strip() for text in observations(stack, job_id)]
        assert seen[1 : CALLS + 1] == [str(number) for number in range(1, CALLS + 1)]
        assert seen[CALLS + 2] == "served"


def test_a_killed_executor_costs_the_variables_and_nothing_else(stack: Stack) -> None:
    slow = "import time\nn += 1\nopen('n', 'w').write(str(n))\ntime.sleep(60)"
    job_id = stack.submit([cell("n = 40"), cell(slow), cell("print(open('n').read() if 'n' not in dir() else n)"), finish()])
    wait_until(lambda: sum(event["type"] == "call.started" for event in stack.events(job_id)) == 2, "the second call")
    time.sleep(0.5)
    for name in ("executor", "executor-2"):
        stack.kill(name)
    for name in ("executor", "executor-2"):
        stack.start("executor", name=name)
    assert stack.wait(job_id)["status"] == "succeeded"
    second, third = observations(stack, job_id)[1:3]
    assert "NameError" in second, "run again from the snapshot before it, in a new interpreter"
    assert "No such file" in third
