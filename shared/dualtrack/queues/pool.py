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

    def on_stop(self) -> None:
        """Finish what is running."""
        self.threads.stop()
