"""When a Celery worker counts as one that no longer consumes."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.worker import state

from dualtrack.domain.errors import BrokerUnavailable
from dualtrack.health import Stuck
from dualtrack.queues import consuming
from dualtrack.queues.consuming import STALLED_S, TAG, Consuming
from dualtrack.queues.port import Task
from dualtrack.settings import BrokerSettings


class Broker:
    """What the broker says of the plan queue."""

    ready = 0
    consumers = 1
    tags: tuple[str, ...] = (f"{TAG}1", "dualtrack-other-1")


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    said = Broker()
    monkeypatch.setattr(consuming, "queue_state", lambda _settings, _queue: (said.ready, said.consumers))
    monkeypatch.setattr(consuming, "consumer_tags", lambda _settings, _queue: list(said.tags))
    return said


def worker(**settings: str) -> Consuming:
    """A worker that consumes."""
    app = Celery("test", set_as_current=False)
    watched = Consuming(app, BrokerSettings.model_validate(settings), Task.PLAN, threads=2)
    (step,) = (step for step in app.steps["consumer"] if step.__name__ == "Mark")
    watched.mark = step(None)  # type: ignore[attr-defined]
    watched.mark.start(None)  # type: ignore[attr-defined]
    return watched


def test_any_consumer_will_do_where_the_management_api_is_not_known(broker: Broker) -> None:
    watched = worker()
    watched.probe()
    broker.consumers = 0
    with pytest.raises(Stuck, match="no consumer of dualtrack"):
        watched.probe()


def test_with_the_management_api_only_its_own_consumer_counts(broker: Broker) -> None:
    watched = worker(management_url="http://rabbitmq:15672")
    watched.probe()
    broker.tags = ("dualtrack-other-1",)
    with pytest.raises(Stuck, match="does not know this process"):
        watched.probe()


def test_a_worker_between_two_connections_does_not_consume(broker: Broker) -> None:
    watched = worker()
    watched.mark.stop(None)  # type: ignore[attr-defined]
    with pytest.raises(Stuck, match="does not consume"):
        watched.probe()


def test_a_stopping_worker_is_not_stuck(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "should_stop", 0)
    watched = worker()
    watched.mark.stop(None)  # type: ignore[attr-defined]
    with pytest.raises(BrokerUnavailable, match="stopping"):
        watched.probe()


def test_messages_that_wait_beside_idle_threads_show_a_silent_worker() -> None:
    watched = worker()
    check = watched._check_progress
    check(3, 0, 0, 100.0)
    check(3, 1, 0, 100.0 + STALLED_S)
    with pytest.raises(Stuck, match="3 messages wait"):
        check(3, 1, 0, 101.0 + STALLED_S)
    check(3, 1, 5, 102.0 + STALLED_S)  # it took some
    check(3, 1, 5, 103.0 + STALLED_S)
    check(3, 2, 5, 104.0 + 2 * STALLED_S)  # all threads are busy
    check(3, 1, 5, 105.0 + 2 * STALLED_S)
    check(0, 1, 5, 106.0 + 3 * STALLED_S)  # nothing waits
    check(3, 1, 5, 107.0 + 4 * STALLED_S)
