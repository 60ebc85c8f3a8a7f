"""The Celery application of a worker: quorum queues, late acknowledgement, threads, no result backend, no timers (design rule 6)."""

from __future__ import annotations

import gc
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, ClassVar, Final

from celery import Celery
from celery.exceptions import InvalidTaskError, Reject
from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown
from kombu import Connection

from dualtrack.domain.errors import NotFound
from dualtrack.queues import homes
from dualtrack.queues.consuming import TaggedAMQP
from dualtrack.queues.pool import TaskPool
from dualtrack.queues.port import Begins, Handles, Task
from dualtrack.queues.strategy import BEGIN_KEY, HOME_KEY, STRATEGY
from dualtrack.queues.topology import Topology
from dualtrack.queues.wire import Deliveries, receive
from dualtrack.settings import BrokerSettings
from dualtrack.work import Work

_LOG: Final = logging.getLogger(__name__)
_HEARTBEAT_S: Final = 4
"""RabbitMQ hangs up on a frozen consumer after two to three of these, and its messages go to others: before its lease is over."""
_RETRY_S: Final = 0.5
_RETRY_MAX_S: Final = 2.0


class TimerlessConsumer(Consumer):
    """Celery's consumer without native delayed delivery, which would declare 28 queues for timers that are never used here."""

    connection_errors: tuple[type[BaseException], ...]
    hub: Any
    deliveries: Deliveries | None = None
    strategies: dict[str, Callable[[Any], None]]
    initial_prefetch_count: int

    def __init__(self, *args: Any, **more: Any) -> None:  # noqa: ANN401 - as Celery calls it
        """Each queue may have as many messages here as it has threads: none waits for a thread here while another worker has one."""
        super().__init__(*args, **more)
        self.initial_prefetch_count //= len(self.app.conf.task_queues)

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc,valid-type] # the stubs give it as a variable
        """All other steps."""

        default_steps: ClassVar[list[str]] = [step for step in Consumer.Blueprint.default_steps if "delayed_delivery" not in step]

    def on_decode_error(self, message: Any, exc: Exception) -> None:  # noqa: ANN401 - as Celery calls it
        """Dead-letter what can't be read; Celery's own way is to acknowledge it, which loses it."""
        _LOG.error("a message that can't be read goes to the dead letters: %s", exc)
        message.reject_log_error(_LOG, self.connection_errors)

    def connect(self) -> Connection:
        """Connect, with a reader of ours in the event loop; under TLS, which has a buffer of its own, with py-amqp's."""
        conn = super().connect()
        amqp: Any = conn.connection
        if self.hub and not isinstance(amqp.sock, ssl.SSLSocket):
            self.hub.add_reader(amqp.sock, lambda: receive(amqp, wait=False, deliveries=self.deliveries))
        return conn

    def update_strategies(self) -> None:
        """Only our own task's: Celery's own take messages otherwise than they are handed on here. A message for one is of no known task."""
        mine = [task for task in self.app.tasks.values() if task.Strategy == STRATEGY]
        self.strategies.update((task.name, task.start_strategy(self.app, self)) for task in mine)

    def create_task_handler(self, *arguments: Any) -> Callable[[Any], None]:  # noqa: ANN401 - as Celery calls it
        """Celery's, without the promises by which its own requests have their messages acknowledged."""
        general = super().create_task_handler(*arguments)

        def received(message: Any) -> None:  # noqa: ANN401 - kombu's message
            name = message.headers.get("task")
            strategy = self.strategies.get(name) if isinstance(name, str) else None
            if strategy is None:
                general(message)
                return
            try:
                strategy(message)
            except InvalidTaskError as error:
                self.on_invalid_task(None, message, error)

        return received

    def ensure_connected(self, conn: Connection) -> Connection:
        """Connect, trying for ever; Celery itself would be up to half a minute late when the broker is back."""

        def away(error: Exception, interval: float) -> None:
            _LOG.warning("the broker can't be reached, trying again in %.1f s: %s", interval, error)

        lasting: Any = conn  # the stub takes whole seconds only
        lasting.ensure_connection(
            away, None, callback=maybe_shutdown, interval_start=_RETRY_S, interval_step=_RETRY_S, interval_max=_RETRY_MAX_S
        )
        self.first_connection_attempt = False
        return conn


def create_app(
    settings: BrokerSettings, task: Task, handle: Handles, again: Callable[[str], None] | None = None, *, begin: Begins | None = None
) -> Celery:
    """An application that consumes one task's queue (an executor's also its own, for jobs that are at home there) and calls
    `handle(row id)`, and before it `again(row id)` where the broker says that the message was with another consumer before.
    `begin` is asked first for all other messages that have come by then.

    `handle` must write down whatever happens itself: a message is acknowledged after it returned or raised, and a ring lost with a dying
    process comes back by redelivery or the scheduler. Only a message that names no row (`NotFound`) is dead-lettered.
    """
    topology = Topology(settings.prefix)
    home = homes.new_home() if task is Task.EXECUTE else None
    queues = [topology.queue(task)] + ([topology.home(home)] if home is not None else [])
    app = Celery("dualtrack", broker=settings.url.get_secret_value(), amqp=TaggedAMQP, set_as_current=False)
    app.conf.update(
        task_queues=queues,  # what isn't here can't be consumed by mistake after a reconnect (celery#9462)
        task_default_queue=topology.name(task),
        task_default_exchange=topology.exchange.name,
        task_default_routing_key=topology.name(task),
        task_create_missing_queues=False,
        task_default_queue_type="quorum",
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        result_backend=None,
        worker_prefetch_multiplier=1,
        worker_consumer=f"{TimerlessConsumer.__module__}:{TimerlessConsumer.__qualname__}",
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,  # the claim in the database decides, not the connection
        broker_heartbeat=_HEARTBEAT_S,
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_channel_error_retry=True,  # such as the broker's consumer timeout, which would end the worker
        broker_transport_options={"confirm_publish": True},
        accept_content=["json"],
        task_serializer="json",
        event_serializer="json",
        **{HOME_KEY: home, BEGIN_KEY: begin},
    )

    @app.task(name=task.value, Strategy=STRATEGY)
    def run(row_id: str, begun: Any | None = None, *, redelivered: bool = False) -> Work[None]:  # noqa: ANN401 - what `begin` gave
        if again is not None and redelivered:
            again(row_id)
        try:
            yield from handle(row_id, begun)
        except NotFound as error:
            raise Reject(error.message, requeue=False) from error

    del run
    return app


def run_worker(app: Celery, task: Task, threads: int) -> int:
    """Consume on `threads` threads a queue until SIGTERM, then finish what is running (warm shutdown).

    Blocks; the exit status, not 0 where Celery gave up.
    """
    gc.collect()
    gc.freeze()  # what is there by now stays: no collection has to look at it again
    # The command line (`worker_main`) would keep the status to itself.
    worker: Any = app.Worker(
        hostname=f"{task.value}@{socket.gethostname()}",
        pool_cls=TaskPool,
        concurrency=threads * len(app.conf.task_queues),
        queues=[queue.name for queue in app.conf.task_queues],
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        loglevel=logging.WARNING,
        quiet=True,  # its banner is no log line
    )
    worker.start()
    return int(worker.exitcode or 0)
