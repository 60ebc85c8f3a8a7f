"""Threads that do what is put before them, in the order in which it was put there."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

_LOG: Final = logging.getLogger(__name__)

Act = Callable[[], None]


class Threads:
    """Up to `most` threads, started as they are needed.

    One that takes work and leaves some wakes one other, and no second one before that has come: short work is done by the thread that is
    awake already, one piece after the other, and behind work that waits for something the next thread is there at once.

    Whatever work raises is logged, and its thread goes on.
    """

    def __init__(self, most: int, name: str) -> None:
        """`name` begins those of the threads."""
        self.most: Final = most
        self._name = name
        self._lock = threading.Lock()
        self._ready: deque[Act] = deque()
        self._spare: deque[Act] = deque()
        """What is to wait until nothing else does."""
        self._threads: list[threading.Thread] = []
        self._idle: list[threading.Lock] = []
        """One for each thread that has nothing to do, which waits for it to be released."""
        self._at_rest = threading.Condition(self._lock)
        self._looking = False
        """A thread was woken, or started, and has not looked for work since."""
        self._closed = False

    def put(self, work: Act, *, awake: bool = False, last: bool = False) -> None:
        """Have it done.

        Args:
            work: what is to be done.
            awake: the caller is one of these threads and comes back for more right after, so nobody has to be woken.
            last: only when nothing else is waiting, whenever that came.

        Raises:
            RuntimeError: after `stop`, or there is no thread, and none can be started.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("these threads have stopped")
            line = self._spare if last else self._ready
            line.append(work)
            if awake or self._looking:
                return
            self._wake()
            if not self._threads:
                line.pop()
                raise RuntimeError("no thread can be started")

    def stop(self) -> None:
        """Wait until all is done that was put here, and that it put here; then end the threads."""
        with self._at_rest:
            self._at_rest.wait_for(lambda: self._closed or (not self._waiting and len(self._idle) == len(self._threads)))
            self._closed = True
            while self._idle:
                self._idle.pop().release()
        for thread in self._threads:
            thread.join()

    @property
    def _waiting(self) -> bool:
        return bool(self._ready or self._spare)

    def _wake(self) -> None:
        """Under the lock: have one more thread look for work, if there is one to be had. Raises nothing."""
        if self._idle:
            self._looking = True
            self._idle.pop().release()
        elif len(self._threads) < self.most:
            # They end with the process: whoever wants their work finished calls `stop`.
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:
                _LOG.warning("no thread can be started beyond %d, work waits for one of those: %s", len(self._threads), error)
                return
            self._threads.append(thread)
            self._looking = True

    def _work(self) -> None:
        wake = threading.Lock()
        wake.acquire()
        woken = True
        while True:
            work = self._take(wake, woken)
            if work is not None:
                woken = False
                try:
                    work()
                except BaseException:  # noqa: BLE001 - the thread must outlive whatever happens, such as a panic of a library in Rust
                    _LOG.exception("a thread's work failed")
                del work  # what it holds is not for this thread to keep
                continue
            if self._closed:
                return
            wake.acquire()
            woken = True

    def _take(self, wake: threading.Lock, woken: bool) -> Act | None:  # noqa: FBT001 - it is all that it says
        """The next piece; None: there is none, and `wake` is released once there is."""
        with self._lock:
            if woken:
                self._looking = False
            if not self._waiting:
                if not self._closed:
                    self._idle.append(wake)
                    if len(self._idle) == len(self._threads):
                        self._at_rest.notify_all()
                return None
            work = (self._ready or self._spare).popleft()
            if self._waiting and not self._looking:
                self._wake()
            return work
