"""The doorbell inside one process: a pool of threads a task. For the standalone platform; the scheduler makes lost rings good as ever."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from dualtrack.domain.errors import BrokerUnavailable
from dualtrack.queues.port import Ring, Task

_LOG: Final = logging.getLogger(__name__)


class InProcessDoorbell:
    """Calls the handlers given to `start` on threads; one ring of an id at a time is kept waiting, since more would say nothing new."""

    def __init__(self) -> None:
        self._pools: dict[Task, ThreadPoolExecutor] = {}
        self._handlers: dict[Task, Callable[[str], None]] = {}
        self._waiting: set[tuple[Task, str]] = set()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._running = 0

    def start(self, *, plan: Callable[[str], None], execute: Callable[[str], None], planner_threads: int, executor_threads: int) -> None:
        """Begin to take rings."""
        self._handlers = {Task.PLAN: plan, Task.EXECUTE: execute}
        self._pools = {
            Task.PLAN: ThreadPoolExecutor(planner_threads, thread_name_prefix="planner"),
            Task.EXECUTE: ThreadPoolExecutor(executor_threads, thread_name_prefix="executor"),
        }

    def stop(self, timeout_s: float) -> bool:
        """Take no more rings (rows stay due) and wait for what is running, at most `timeout_s`; whether all of it has ended."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        with self._idle:
            return self._idle.wait_for(lambda: not self._running, timeout=timeout_s)

    def ring(self, rings: Sequence[Ring]) -> None:
        """Have a thread see to each; priority and trace are in the rows."""
        for ring in rings:
            self._ring(ring.task, ring.row_id)

    def backlog(self, task: Task) -> int:
        """Rings that no thread has taken yet."""
        with self._lock:
            return sum(waiting is task for waiting, _ in self._waiting)

    def check(self) -> None:
        """Raise `BrokerUnavailable` before `start` and after `stop`."""
        if not self._pools:
            raise BrokerUnavailable("The platform is starting or stopping.")

    def _ring(self, task: Task, row_id: str) -> None:
        with self._lock:
            if (task, row_id) in self._waiting:
                return
            self._waiting.add((task, row_id))
        try:
            self._pools[task].submit(self._run, task, row_id)
        except (KeyError, RuntimeError) as error:
            with self._lock:
                self._waiting.discard((task, row_id))
            raise BrokerUnavailable("The platform is starting or stopping.") from error

    def _run(self, task: Task, row_id: str) -> None:
        with self._lock:
            self._waiting.discard((task, row_id))
            self._running += 1
        try:
            self._handlers[task](row_id)
        except Exception:  # noqa: BLE001 - a pool thread has nobody else to tell; the row stays due
            _LOG.exception("%s %s failed", task, row_id)
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()
