"""The threads of a worker, as Celery starts and stops them."""

from __future__ import annotations

from typing import Any, Final

from celery.concurrency.base import BasePool

from dualtrack.threads import Threads


class TaskPool(BasePool):
    """A pool that Celery itself gives nothing: `queues.strategy` hands messages to `threads`."""

    limit: int
    signal_safe = False
    body_can_be_buffer = True

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as Celery calls it
        super().__init__(*args, **options)
        self.threads: Final = Threads(self.limit, "worker")

    def on_apply(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as Celery calls it
        """Refuse: there is no strategy but ours (`TimerlessConsumer.update_strategies`)."""
        raise NotImplementedError("messages are handed to threads by dualtrack.queues.strategy")

    def on_stop(self) -> None:
        """Finish what is running."""
        self.threads.stop()

    def on_terminate(self) -> None:
        """The same where Celery gives up: what is finished is paid for, and what uses these threads is closed after them."""
        self.threads.stop()
