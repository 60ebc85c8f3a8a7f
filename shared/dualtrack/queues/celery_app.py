"""The Celery application of a worker: quorum queues, late acknowledgement, threads, no result backend, no timers (design rule 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from celery import Celery
from celery import Task as CeleryTask
from celery.worker.consumer import Consumer
from celery.worker.request import Request

from dualtrack.faults import Fault, point
from dualtrack.queues.port import Task
from dualtrack.queues.topology import Topology
from dualtrack.settings import BrokerSettings

_HEARTBEAT_S: Final = 6
"""A frozen consumer is hung up on after one to two of these, and its messages go to others: before its lease is over."""


class TimerlessConsumer(Consumer):
    """Celery's consumer without native delayed delivery, which would declare 28 queues for timers that are never used here."""

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc,valid-type] # the stubs give it as a variable
        """All other steps."""

        default_steps: ClassVar[list[str]] = [step for step in Consumer.Blueprint.default_steps if "delayed_delivery" not in step]


class PointedRequest(Request):
    """Celery's request with a fault point on each side of the acknowledgement."""

    def acknowledge(self) -> None:
        """Acknowledge the message."""
        point(Fault.ACKNOWLEDGE)
        super().acknowledge()
        point(Fault.ACKNOWLEDGED)


def create_app(settings: BrokerSettings, task: Task, handle: Callable[[str], None], again: Callable[[str], None] | None = None) -> Celery:
    """An application that consumes one task's queue and calls `handle(row id)`, and before it `again(row id)` where the broker says that
    the message was with another consumer before.

    `handle` must write down whatever happens itself: a message is acknowledged after it returned or raised, and a ring lost with a dying
    process comes back by redelivery or the scheduler.
    """
    topology = Topology(settings.prefix)
    app = Celery("dualtrack", broker=settings.url.get_secret_value(), set_as_current=False)
    app.conf.update(
        task_queues=topology.queues()[:-1],
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
        broker_transport_options={"confirm_publish": True},
        accept_content=["json"],
        task_serializer="json",
        event_serializer="json",
    )

    @app.task(name=task.value, bind=True, Request=f"{PointedRequest.__module__}:{PointedRequest.__qualname__}")
    def run(self: CeleryTask[..., None], row_id: str) -> None:
        if again is not None and (self.request.delivery_info or {}).get("redelivered"):
            again(row_id)
        handle(row_id)

    del run
    return app


def run_worker(app: Celery, settings: BrokerSettings, task: Task, threads: int) -> None:
    """Consume until SIGTERM, then finish what is running (warm shutdown). Blocks."""
    app.worker_main(
        [
            "--quiet",  # its banner is no log line
            "worker",
            "--pool=threads",
            f"--concurrency={threads}",
            f"--queues={Topology(settings.prefix).name(task)}",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
            "--loglevel=WARNING",
            f"--hostname={task.value}@%h",
        ]
    )
