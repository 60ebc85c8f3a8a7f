"""Whether a Celery worker really takes messages, seen from the broker.

A worker's process can live on, connected and silent (celery#9462, #9512): so the broker is asked for the consumer with this process's own
tag where its management API can be reached, and messages that wait while this process has idle threads are a sign as well.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from amqp.exceptions import AMQPError
from celery import Celery, bootsteps
from celery.app.amqp import AMQP
from kombu import Connection
from kombu.exceptions import KombuError

from dualtrack.domain.errors import BrokerUnavailable
from dualtrack.health import Stuck
from dualtrack.queues.port import Task
from dualtrack.queues.strategy import TALLY, stopping
from dualtrack.queues.topology import Topology
from dualtrack.settings import BrokerSettings

STALLED_S: Final = 20.0
"""Messages waited and threads were idle for this long, and none of them was taken: the worker no longer consumes."""
_TIMEOUT_S: Final = 5.0
_ANSWER_BYTES: Final = 4 * 1024 * 1024
TAG: Final = f"dualtrack-{secrets.token_hex(8)}-"
"""Begins the tags of all consumers of this process, and of no other."""


class TaggedAMQP(AMQP):
    """Celery's messaging with consumers whose tags name this process."""

    def TaskConsumer(self, channel: Any, queues: Any = None, accept: Any = None, **more: Any) -> Any:  # noqa: ANN401, N802 - as Celery has it
        """The worker's consumer."""
        return super().TaskConsumer(channel, queues, accept, tag_prefix=TAG, **more)


class Consuming:
    """Watches a Celery worker that is about to start."""

    def __init__(self, app: Celery, settings: BrokerSettings, task: Task, threads: int) -> None:
        self._settings = settings
        self._queue = Topology(settings.prefix).name(task)
        self._threads = threads
        self._consuming = consuming = threading.Event()
        self._idle_since: float | None = None
        self._taken = 0

        class Mark(bootsteps.StartStopStep):
            """Runs last of the consumer's steps, at each connection anew."""

            requires = ("celery.worker.consumer.tasks:Tasks",)

            def start(self, parent: Any) -> None:  # noqa: ANN401 - as Celery calls it
                del parent
                consuming.set()

            def stop(self, parent: Any) -> None:  # noqa: ANN401 - as Celery calls it
                del parent
                consuming.clear()

        app.steps["consumer"].add(Mark)

    def probe(self) -> None:
        """Return when this process consumes its queue.

        Raises:
            BrokerUnavailable: the broker can't be asked, or the worker is stopping.
            Stuck: the broker is there, and this process does not take messages from it.
        """
        if stopping():
            raise BrokerUnavailable("the worker is stopping")
        ready, consumers = queue_state(self._settings, self._queue)
        if not self._consuming.is_set():
            raise Stuck(f"this process does not consume {self._queue}")
        if self._settings.management_url is None:
            if consumers == 0:
                raise Stuck(f"the broker knows of no consumer of {self._queue}")
        elif not any(tag.startswith(TAG) for tag in consumer_tags(self._settings, self._queue)):
            raise Stuck(f"the broker does not know this process as a consumer of {self._queue}")
        self._check_progress(ready, TALLY.active, TALLY.taken, time.monotonic())

    def _check_progress(self, ready: int, active: int, taken: int, now: float) -> None:
        """Raise `Stuck` once messages have waited for long that idle threads could have taken."""
        if ready == 0 or active >= self._threads or taken != self._taken:
            self._idle_since, self._taken = None, taken
            return
        if self._idle_since is None:
            self._idle_since = now
        if now - self._idle_since > STALLED_S:
            raise Stuck(f"{ready} messages wait in {self._queue}, and this process takes none of them")


def queue_state(settings: BrokerSettings, queue: str) -> tuple[int, int]:
    """How many messages wait in a queue, and how many consumers it has, over a fresh connection.

    Raises:
        BrokerUnavailable: the broker can't be asked, or has no such queue.
    """
    limits = {"read_timeout": _TIMEOUT_S, "write_timeout": _TIMEOUT_S}
    try:
        with Connection(settings.url.get_secret_value(), connect_timeout=_TIMEOUT_S, transport_options=limits) as connection:
            connection.connect()  # once; `default_channel` would go on trying
            channel: Any = connection.channel()  # the stub knows only the general channel
            answer = channel.queue_declare(queue, passive=True)
            return int(answer.message_count), int(answer.consumer_count)
    except (OSError, KombuError, AMQPError) as error:
        raise BrokerUnavailable(f"the broker can't be asked about {queue} ({type(error).__name__})") from error


def consumer_tags(settings: BrokerSettings, queue: str) -> list[str]:
    """The tags of all consumers of a queue, from RabbitMQ's management API at `broker.management_url`.

    Raises:
        BrokerUnavailable: it can't be asked, or refuses.
    """
    if settings.management_url is None:
        return []
    amqp = urlsplit(settings.url.get_secret_value())
    login = base64.b64encode(f"{unquote(amqp.username or 'guest')}:{unquote(amqp.password or 'guest')}".encode()).decode()
    vhost = unquote(amqp.path[1:]) or "/"
    address = f"{settings.management_url.rstrip('/')}/api/queues/{quote(vhost, safe='')}/{quote(queue, safe='')}"
    request = urllib.request.Request(address, headers={"Authorization": f"Basic {login}"})  # noqa: S310 - http or https, see the settings
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - the operator's own address
            found = json.loads(answer.read(_ANSWER_BYTES))
        return [str(item["consumer_tag"]) for item in found.get("consumer_details", [])]
    except urllib.error.HTTPError as error:
        with error:
            raise BrokerUnavailable(f"the broker's management API answers {error.code}; check DUALTRACK_BROKER__MANAGEMENT_URL") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokerUnavailable(f"the broker's management API can't be asked ({type(error).__name__})") from error
