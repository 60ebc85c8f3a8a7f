"""Celery's known traps, on a real broker: after each of them the worker consumes its own queue again, or ends."""

from __future__ import annotations

import os
import signal
import time

import pytest
from kombu import Connection, Producer

from dualtrack.queues.consuming import consumer_tags
from dualtrack.queues.dead_letters import DeadLetters
from dualtrack.queues.port import Task
from dualtrack.queues.topology import Topology

from .conftest import CONSUMER_TIMEOUT_S, Workers

executor_only = pytest.mark.parametrize("workers", [Task.EXECUTE], indirect=True, ids=["executor"])


def queue_of(workers: Workers, task: Task) -> str:
    return Topology(workers.settings.prefix).name(task)


def cut_connections(workers: Workers) -> None:
    """The broker closes every connection of the workers' virtual host, as a proxy or an operator may."""
    vhost = workers.settings.url.get_secret_value().rsplit("/", 1)[1]
    workers.rabbitmq.cut_connections(vhost)


def connections(workers: Workers) -> int:
    vhost = workers.settings.url.get_secret_value().rsplit("/", 1)[1]
    return len(workers.rabbitmq.api("GET", f"vhosts/{vhost}/connections"))


def consumes_only_its_own_queue(workers: Workers) -> None:
    """The broker knows the worker as a consumer of its own queue, once, and of no other (celery#9462)."""
    other = Task.PLAN if workers.task is Task.EXECUTE else Task.EXECUTE
    workers.wait(lambda: len(consumer_tags(workers.settings, queue_of(workers, workers.task))) == 1, "one consumer")
    assert consumer_tags(workers.settings, queue_of(workers, other)) == []


def test_a_cut_connection(workers: Workers) -> None:
    workers.ring("before")
    workers.start()
    workers.wait_healthy()
    workers.wait(lambda: workers.count("end before") == 1, "the first task")
    workers.ring("sleep-3-a")
    workers.wait(lambda: workers.count("begin sleep") == 1, "a task under way")
    workers.wait(lambda: connections(workers) > 0, "the broker shows the connection")
    cut_connections(workers)
    workers.wait(lambda: workers.count("end sleep") >= 1, "it ends all the same")
    workers.wait_healthy()
    consumes_only_its_own_queue(workers)
    workers.wait(lambda: workers.count("end sleep-3") == workers.count("begin sleep-3"), "the message that came again is done with")
    # All threads are served again, not just some of them (celery#9512).
    workers.ring("sleep-8-b", "sleep-8-c")
    workers.wait(lambda: workers.count("begin sleep-8") == 2, "two tasks at once")
    assert workers.count("end sleep-8") == 0
    workers.wait(lambda: workers.count("end sleep-8") >= 2, "their end")


@executor_only
def test_a_restarted_broker(workers: Workers) -> None:
    workers.ring("sleep-4-a")
    workers.start()
    workers.wait(lambda: workers.count("begin sleep") == 1, "a task under way")
    workers.rabbitmq.stop()
    time.sleep(3)  # long enough for several tries to connect
    workers.rabbitmq.start()
    back = time.monotonic()
    workers.ring("after")
    workers.wait(lambda: workers.count("end after") == 1, "a task after the restart")
    assert time.monotonic() - back < 45
    workers.wait_healthy()
    consumes_only_its_own_queue(workers)


def test_the_broker_s_consumer_timeout(workers: Workers) -> None:
    """The broker closes the channel of whoever holds a message too long: the worker lives on, and consumes again."""
    workers.ring(f"sleep-{CONSUMER_TIMEOUT_S + 6}-a")
    process = workers.start()
    workers.wait(lambda: workers.count("end sleep") >= 1, "the task ends all the same")
    workers.ring("after")
    workers.wait(lambda: workers.count("end after") == 1, "a task afterwards")
    assert process.running()
    workers.wait_said("worker", "PRECONDITION_FAILED")
    # The message came again while the first delivery was at work: the claim in the database is what keeps it from being done twice.
    workers.wait(lambda: workers.count("begin sleep") >= 2, "the message again")
    consumes_only_its_own_queue(workers)


def test_sigterm_during_a_task(workers: Workers) -> None:
    workers.ring("sleep-2-a")
    process = workers.start()
    workers.wait(lambda: workers.count("begin sleep") == 1, "a task under way")
    os.kill(process.pid, signal.SIGTERM)
    workers.ring("next")  # not for a worker that is stopping
    workers.wait(lambda: process.status is not None, "its end")
    assert process.status == 0
    assert workers.count("end sleep") == 1
    workers.start("second")
    workers.wait(lambda: workers.count("end next") == 1, "the other task, by the next worker")
    assert workers.count("begin") == 2  # what was finished was acknowledged


@executor_only
def test_kill_during_a_task(workers: Workers) -> None:
    workers.ring("sleep-2-a")
    workers.start().wait_until(lambda: workers.count("begin sleep") == 1, timeout_s=60)
    workers.processes["worker"].kill()
    workers.start("second")
    workers.wait(lambda: workers.count("end sleep") == 1, "the message came again")


@executor_only
def test_messages_that_no_worker_can_take_are_dead_letters(workers: Workers) -> None:
    workers.start()
    workers.wait_healthy()
    workers.ring("unknown-1")
    exchange = Topology(workers.settings.prefix).exchange
    key = queue_of(workers, workers.task)
    with Connection(workers.settings.url.get_secret_value()) as connection:
        producer = Producer(connection.default_channel, exchange=exchange, routing_key=key)
        celery = {"lang": "py", "task": workers.task.value, "id": "garbled"}
        producer.publish(b"{no json", content_type="application/json", content_encoding="utf-8", headers=celery)
        producer.publish(b"no celery message", content_type="application/json", content_encoding="utf-8")
        producer.publish([["x"], {}, {}], serializer="json", headers=celery | {"task": "other.task", "id": "other"})
        producer.publish([[], {}, {}], serializer="json", headers=celery | {"task": "celery.backend_cleanup", "id": "built in"})
    letters = DeadLetters(workers.settings)
    workers.wait(lambda: letters.page(10)[1] == 5, "five dead letters")
    assert {letter.reason for letter in letters.page(10)[0]} == {"rejected"}
    workers.ring("after")
    workers.wait(lambda: workers.count("end after") == 1, "the worker goes on")
    assert workers.count("begin unknown") == 1


@executor_only
def test_a_silent_worker_ends_itself(workers: Workers) -> None:
    """Connected, but no consumer any more: another worker's consumer on the same queue must not make it look healthy."""
    process = workers.start(end_after_s=3)
    workers.wait_healthy()
    workers.start("other", threads=1)
    workers.wait_healthy("other")
    queue = queue_of(workers, workers.task)
    workers.wait(lambda: len(consumer_tags(workers.settings, queue)) == 2, "two consumers")

    def silent() -> bool:
        workers.ring(f"deaf-{process.pid}")  # until it comes to the one that is meant
        return f"end deaf-{process.pid} {process.pid}" in workers.lines()

    workers.wait(silent, "the worker has gone silent")
    workers.wait(lambda: process.status is not None, "its end")
    assert process.status == 1
    workers.wait_said("worker", "does not know this process")
    assert workers.processes["other"].running()
    workers.wait_healthy("other")


@executor_only
def test_what_was_begun_together_is_passed_on_and_what_could_not_be_is_done_all_the_same(workers: Workers) -> None:
    workers.ring("together-a", "together-b", "c")
    workers.start()
    workers.wait(lambda: workers.count("end") == 3, "all of them, each told of what was begun for it")
    workers.ring("spoiled-a", "d")
    workers.wait(lambda: workers.count("end") == 5, "two of which at least one spoiled it")
    assert workers.count("together") >= 2  # asked for all that had come, at least once for each burst
