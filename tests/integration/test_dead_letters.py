"""Dead letters on a real RabbitMQ: how messages get there, and the commands for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from kombu import Connection, Message, Producer
from pydantic import SecretStr
from typer.testing import CliRunner, Result

from cli.main import app
from cli.outcome import Exit
from dualtrack.queues.dead_letters import DeadLetters
from dualtrack.queues.port import Ring, Task
from dualtrack.queues.publisher import Publisher
from dualtrack.queues.topology import DELIVERY_LIMIT, Topology
from dualtrack.settings import BrokerSettings
from dualtrack.testing.waiting import wait_until

TOPOLOGY = Topology("dualtrack")
Run = Callable[..., Result]


@pytest.fixture
def settings(broker_url: str) -> BrokerSettings:
    return BrokerSettings(url=SecretStr(broker_url))


@pytest.fixture
def run(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("DUALTRACK_BROKER__URL", broker_url)

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["dead-letters", *arguments])

    return invoke


def reject(url: str, *row_ids: str) -> None:
    """Ring, and refuse the messages as a worker does that finds no such row."""
    publisher = Publisher(BrokerSettings(url=SecretStr(url)))
    for row_id in row_ids:
        publisher.ring([Ring(Task.PLAN, row_id)])
    publisher.close()
    with Connection(url) as connection:
        queue = TOPOLOGY.queue(Task.PLAN)(connection.default_channel)
        for _ in row_ids:
            message = queue.get()
            assert message is not None
            message.reject(requeue=False)
    wait_for_dead(url, len(row_ids))


def await_message(queue: Any) -> Message:
    """The next message of a queue, which may come back to it only now."""
    found: list[Message] = []

    def taken() -> bool:
        if (message := queue.get()) is not None:
            found.append(message)
        return bool(found)

    wait_until(taken, "a message")
    return found[0]


def wait_for_dead(url: str, count: int) -> None:
    """A queue hands a refused message on after its consumer has gone; and it takes a moment until it is counted."""
    letters = DeadLetters(BrokerSettings(url=SecretStr(url)))
    wait_until(lambda: letters.page(0)[1] == count, f"{count} dead letters")


def rows_of(url: str, count: int) -> list[str]:
    """What the messages of the planners' queue ring for, which are that many; they stay."""
    with Connection(url) as connection:
        bound = TOPOLOGY.queue(Task.PLAN)(connection.default_channel)
        found: list[str] = []

        def taken() -> bool:
            while (message := bound.get()) is not None:
                found.append(message.decode()[0][0])
            return len(found) >= count

        wait_until(taken, f"{count} messages")  # the last look's are back once the broker has noticed its end
        return found


def test_listed_again_and_again_and_still_there(broker_url: str, settings: BrokerSettings, run: Run) -> None:
    reject(broker_url, "job_1", "job_2")
    for _ in range(DELIVERY_LIMIT + 5):  # each look is a delivery
        wait_for_dead(broker_url, 2)  # what was looked at is back
        found, total = DeadLetters(settings).page(10)
        assert total == 2
    assert [letter.queue for letter in found] == ["dualtrack.plan", "dualtrack.plan"]
    assert {letter.reason for letter in found} == {"rejected"}
    assert '"job_1"' in found[0].preview
    assert found[0].died_at is not None
    wait_for_dead(broker_url, 2)
    document = json.loads(run("list", "--limit", "1", "--json").stdout)
    assert (document["total"], document["has_more"], len(document["data"])) == (2, True, 1)
    wait_for_dead(broker_url, 2)
    text = run("list").stdout
    assert "rejected\tdualtrack.plan\t" in text
    assert found[1].id in text


def test_requeued_by_id_and_all(broker_url: str, settings: BrokerSettings, run: Run) -> None:
    reject(broker_url, "job_1", "job_2", "job_3")
    letters = {json.loads(letter.preview)[0][0]: letter.id for letter in DeadLetters(settings).page(10)[0]}
    wait_for_dead(broker_url, 3)
    result = run("requeue", letters["job_2"])
    assert (result.exit_code, result.stdout) == (0, "1 requeued.\n")
    assert rows_of(broker_url, 1) == ["job_2"]
    wait_for_dead(broker_url, 2)
    assert run("requeue", "--all").stdout == "2 requeued.\n"
    assert sorted(rows_of(broker_url, 3)) == ["job_1", "job_2", "job_3"]
    wait_for_dead(broker_url, 0)
    with Connection(broker_url) as connection:  # it is as it was before it died
        message = await_message(TOPOLOGY.queue(Task.PLAN)(connection.default_channel))
        assert "x-death" not in message.headers
        assert message.headers["task"] == "dualtrack.plan"
        assert str(message.properties["delivery_mode"]) == "2"


def test_dropped(broker_url: str, settings: BrokerSettings, run: Run) -> None:
    reject(broker_url, "job_1", "job_2")
    first = DeadLetters(settings).page(10)[0][0].id
    wait_for_dead(broker_url, 2)
    unknown = run("drop", first, "nobody")
    assert unknown.exit_code == Exit.API_ERROR
    assert "no dead letter nobody" in unknown.stderr
    wait_for_dead(broker_url, 1)
    assert run("drop", "--all", "--json").stdout.count(first) == 0
    wait_for_dead(broker_url, 0)
    assert rows_of(broker_url, 0) == []


def test_either_ids_or_all(run: Run) -> None:
    assert run("drop").exit_code == Exit.USAGE
    assert run("requeue", "x", "--all").exit_code == Exit.USAGE


def test_interrupted_between_publishing_and_acknowledging(
    broker_url: str, settings: BrokerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    reject(broker_url, "job_1")
    publish = DeadLetters._publish

    class Killed(BaseException):
        pass

    def publish_and_die(*arguments: object) -> None:
        publish(*arguments)  # type: ignore[arg-type]
        raise Killed

    monkeypatch.setattr(DeadLetters, "_publish", staticmethod(publish_and_die))
    with pytest.raises(Killed):
        DeadLetters(settings).requeue()
    assert rows_of(broker_url, 1) == ["job_1"]
    wait_for_dead(broker_url, 1)


def test_what_came_from_elsewhere_is_left(broker_url: str, settings: BrokerSettings) -> None:
    DeadLetters(settings).page(1)  # the queues are there
    with Connection(broker_url) as connection:
        Producer(connection.default_channel).publish(
            b"\xff\x00 no message of ours", exchange=TOPOLOGY.dead_exchange.name, routing_key="", content_type="application/octet-stream"
        )
    wait_for_dead(broker_url, 1)
    handled = DeadLetters(settings).requeue()
    assert (len(handled.done), len(handled.left)) == (0, 1)
    wait_for_dead(broker_url, 1)
    (letter,) = DeadLetters(settings).page(1)[0]
    assert (letter.queue, letter.reason, letter.size) == (None, "unknown", 21)


def test_whatever_kills_its_consumer_each_time_ends_as_a_dead_letter(broker_url: str, settings: BrokerSettings) -> None:
    publisher = Publisher(settings)
    publisher.ring([Ring(Task.EXECUTE, "call_poison")])
    publisher.close()
    for _ in range(DELIVERY_LIMIT + 1):
        with Connection(broker_url) as connection:  # closed with the message in hand, as by a death
            await_message(TOPOLOGY.queue(Task.EXECUTE)(connection.default_channel))
    wait_for_dead(broker_url, 1)
    (letter,), total = DeadLetters(settings).page(5)
    assert (total, letter.queue, letter.reason) == (1, "dualtrack.execute", "delivery_limit")


def test_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALTRACK_BROKER__URL", "amqp://guest:guest@127.0.0.1:1//")
    result = CliRunner().invoke(app, ["dead-letters", "list"])
    assert result.exit_code == Exit.UNREACHABLE
    assert "DUALTRACK_BROKER__URL" in result.stderr
