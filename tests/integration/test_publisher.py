"""The doorbell on a real RabbitMQ."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kombu import Connection
from pydantic import SecretStr

from dualtrack.domain.errors import BrokerUnavailable
from dualtrack.queues.port import Ring, Task
from dualtrack.queues.publisher import Publisher
from dualtrack.queues.topology import Topology
from dualtrack.settings import BrokerSettings
from dualtrack.testing.servers import open_rabbitmq
from dualtrack.testing.waiting import wait_until


def taken(url: str, task: Task, count: int) -> list[Any]:
    """The messages of a queue, which are that many, taken off it."""
    found: list[Any] = []
    with Connection(url) as connection:
        queue = Topology("dualtrack").queue(task)(connection.default_channel)

        def taken() -> bool:
            while (message := queue.get(no_ack=True)) is not None:
                found.append(message)
            return len(found) >= count

        wait_until(taken, f"{count} messages")
    return found


def test_a_ring_is_a_persistent_celery_message_that_carries_an_id_and_the_trace(broker_url: str) -> None:
    publisher = Publisher(BrokerSettings(url=SecretStr(broker_url)))
    publisher.ring([Ring(Task.PLAN, "job_1", priority=3, traceparent="00-aa-bb-01"), Ring(Task.EXECUTE, "call_1")])
    (message,) = taken(broker_url, Task.PLAN, 1)
    assert message.decode()[0] == ["job_1"]
    assert message.headers["task"] == "dualtrack.plan"
    assert message.headers["traceparent"] == "00-aa-bb-01"
    assert message.properties["delivery_mode"] == 2
    (message,) = taken(broker_url, Task.EXECUTE, 1)
    assert message.decode()[0] == ["call_1"]
    publisher.close()


def test_threads_that_come_and_go_share_a_few_connections(broker_url: str) -> None:
    publisher = Publisher(BrokerSettings(url=SecretStr(broker_url)))
    for round_ in range(5):
        threads = [threading.Thread(target=publisher.ring, args=([Ring(Task.PLAN, f"job_{round_}_{n}")],)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(publisher._idle) <= 4
    assert len({message.decode()[0][0] for message in taken(broker_url, Task.PLAN, 20)}) == 20
    publisher.close()
    assert publisher._idle == []


def test_a_broker_that_restarts_is_rung_again_on_new_connections_and_one_that_is_away_is_one_clear_error() -> None:
    with open_rabbitmq() as rabbitmq:
        publisher = Publisher(BrokerSettings(url=SecretStr(rabbitmq.url)))
        publisher.check()
        publisher.ring([Ring(Task.PLAN, "job_1")])
        rabbitmq.restart()
        publisher.ring([Ring(Task.PLAN, "job_2")])
        publisher.check()
        assert [message.decode()[0][0] for message in taken(rabbitmq.url, Task.PLAN, 2)] == ["job_1", "job_2"]
        rabbitmq.kill()
        with pytest.raises(BrokerUnavailable, match="DUALTRACK_BROKER__URL"):
            publisher.ring([Ring(Task.PLAN, "job_3")])
        with pytest.raises(BrokerUnavailable):
            publisher.check()
        publisher.close()
