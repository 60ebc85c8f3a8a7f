"""Messages that nobody could take: looked at, put back where they came from, or dropped.

Each is taken without acknowledgement, and acknowledged only once it is dropped or the broker has confirmed it in its queue; whatever
interrupts that leaves it, or at most doubles it, which does no harm to a doorbell.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from amqp.basic_message import Message
from amqp.exceptions import AMQPError
from kombu import Connection
from kombu.exceptions import KombuError

from dualtrack.domain.errors import BrokerUnavailable
from dualtrack.queues.port import Task
from dualtrack.queues.topology import DEAD_LETTERS, Topology
from dualtrack.settings import BrokerSettings

PREVIEW_CHARS: Final = 200
_TIMEOUT_S: Final = 10.0
_DEATHS: Final = ("x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason")
_DEATHS_SINCE_4: Final = ("x-last-death-exchange", "x-last-death-queue", "x-last-death-reason", "x-delivery-count", "x-acquired-count")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that ended in the dead letters."""

    id: str
    """The message's own id, or the beginning of its digest where it has none."""
    queue: str | None
    """The queue it died in; None where the broker did not say."""
    reason: str
    """RabbitMQ's word: `rejected` (nobody could read it, or it names nothing), `delivery_limit` (whoever took it died each time)."""
    died_at: datetime | None
    size: int
    """Bytes of its body."""
    preview: str
    """The beginning of its body."""


@dataclass(frozen=True, slots=True)
class Handled:
    """What became of the dead letters that were asked for."""

    done: tuple[str, ...]
    """Ids of those that were requeued or dropped."""
    left: tuple[str, ...]
    """Ids of those that stay, because the queue they came from is none of the platform's."""
    unknown: tuple[str, ...]
    """Ids that no dead letter has."""


class DeadLetters:
    """The dead-letter queue of one stack. Not thread-safe."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._url = settings.url.get_secret_value()
        self._topology = Topology(settings.prefix)
        self._sources = {self._topology.name(task) for task in Task}

    def page(self, most: int) -> tuple[list[DeadLetter], int]:
        """The oldest dead letters, at most `most`, and how many there are; all of them stay. Raises `BrokerUnavailable`."""
        with self._channels() as (taking, _):
            total = self._count(taking)
            return [letter for letter, _ in self._walk(taking, min(most, total))], total

    def requeue(self, ids: frozenset[str] | None = None) -> Handled:
        """Put dead letters back where they died: those with these ids, or all that are there now. Raises `BrokerUnavailable`."""
        with self._channels() as (taking, publishing):

            def back(letter: DeadLetter, message: Message) -> bool:
                if letter.queue not in self._sources:
                    return False
                self._publish(publishing, letter.queue, message)
                return True

            return self._handle(taking, ids, back)

    def drop(self, ids: frozenset[str] | None = None) -> Handled:
        """Forget dead letters: those with these ids, or all that are there now. Raises `BrokerUnavailable`."""
        with self._channels() as (taking, _):
            return self._handle(taking, ids, lambda _letter, _message: True)

    def _handle(self, taking: Any, ids: frozenset[str] | None, act: Callable[[DeadLetter, Message], bool]) -> Handled:  # noqa: ANN401
        done, left, seen = [], [], set()
        for letter, message in self._walk(taking, min(self._count(taking), DEAD_LETTERS)):
            seen.add(letter.id)
            if ids is not None and letter.id not in ids:
                continue
            if act(letter, message):
                taking.basic_ack(message.delivery_tag)
                done.append(letter.id)
            else:
                left.append(letter.id)
        return Handled(tuple(done), tuple(left), tuple(sorted((ids or frozenset()) - seen)))

    def _walk(self, taking: Any, most: int) -> Iterator[tuple[DeadLetter, Message]]:  # noqa: ANN401 - kombu's stub knows only the general channel
        """Take dead letters one by one; those that are not acknowledged are back once the channel is closed."""
        for _ in range(most):
            message = taking.basic_get(self._topology.dead_letters.name, no_ack=False)
            if message is None:
                return
            yield _letter(message), message

    def _count(self, channel: Any) -> int:  # noqa: ANN401 - as above
        return int(channel.queue_declare(self._topology.dead_letters.name, passive=True).message_count)

    @staticmethod
    def _publish(channel: Any, queue: str, message: Message) -> None:  # noqa: ANN401 - as above
        """Publish a copy without the marks of its death, and wait for the broker's confirmation."""
        properties = dict(message.properties)
        headers = dict(properties.pop("application_headers", None) or {})
        for name in (*_DEATHS, *_DEATHS_SINCE_4):
            headers.pop(name, None)
        copy = Message(message.body, application_headers=headers, **properties)
        channel.basic_publish(copy, exchange="", routing_key=queue, mandatory=True, timeout=_TIMEOUT_S)

    @contextlib.contextmanager
    def _channels(self) -> Iterator[tuple[Any, Any]]:
        """A channel to take from and one to publish on, which confirms."""
        options = {"confirm_publish": True, "read_timeout": _TIMEOUT_S, "write_timeout": _TIMEOUT_S}
        try:
            with Connection(self._url, connect_timeout=_TIMEOUT_S, heartbeat=0, transport_options=options) as connection:
                connection.connect()  # once; `default_channel` would go on trying
                taking: Any = connection.channel()
                publishing: Any = connection.channel()
                taking.auto_decode = False  # a dead letter's bytes are its own, whatever they say they are
                for queue in self._topology.queues():
                    queue(publishing).declare()
                yield taking, publishing
        except (OSError, KombuError, AMQPError) as error:
            raise BrokerUnavailable(
                f"The broker can't be reached or refuses ({type(error).__name__}); check RabbitMQ and DUALTRACK_BROKER__URL."
            ) from error


def _letter(message: Message) -> DeadLetter:
    headers = message.properties.get("application_headers") or {}
    deaths = headers.get("x-death") or [{}]
    died_at = deaths[0].get("time")
    if isinstance(died_at, datetime) and died_at.tzinfo is None:
        died_at = died_at.replace(tzinfo=UTC)
    body = message.body if isinstance(message.body, bytes) else str(message.body).encode()
    named = headers.get("id") or message.properties.get("message_id") or message.properties.get("correlation_id")
    return DeadLetter(
        id=str(named) if named else hashlib.sha256(body).hexdigest()[:16],
        queue=deaths[0].get("queue"),
        reason=str(deaths[0].get("reason", "unknown")),
        died_at=died_at if isinstance(died_at, datetime) else None,
        size=len(body),
        preview=body[: 4 * PREVIEW_CHARS].decode("utf-8", errors="replace")[:PREVIEW_CHARS],
    )
