"""The places of one executor process: one a job, as many as there are sessions and directories for."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, Self

from dualtrack.domain.errors import DualtrackError
from dualtrack.domain.limits import SandboxLimits
from dualtrack.engine.place import Place
from dualtrack.objects.workdirs import Workdir, Workdirs
from dualtrack.sandbox.sessions import EndReason, Sessions

_LOG: Final = logging.getLogger(__name__)
_BARE: Final = 256
"""Jobs remembered that have no session."""
_WATCH_S: Final = 1.0
SWEEP_S: Final = 5.0
"""How soon a session ends after its job has, or after its idle time."""


class Places:
    """The places of one executor process; a context manager that ends all sessions. Thread-safe."""

    def __init__(self, sessions: Sessions, workdirs: Workdirs, limits: SandboxLimits, finished: Callable[[list[str]], set[str]]) -> None:
        """Takes where sessions and directories come from.

        Args:
            sessions: claimed as needed, one a job.
            workdirs: a directory a job.
            limits: how many sessions are kept between calls, and for how long.
            finished: which of these jobs have ended; asked every few seconds.
        """
        self._sessions = sessions
        self._workdirs = workdirs
        self._limits = limits
        self._finished = finished
        self._lock = threading.Lock()
        self._places: OrderedDict[str, Place] = OrderedDict()
        self._users: dict[str, int] = {}
        self._stop = threading.Event()
        self._threads = (
            threading.Thread(target=self._often, args=(SWEEP_S, self.sweep), name="places-sweep", daemon=True),
            # Of its own: a full disk must not wait for the database.
            threading.Thread(target=self._often, args=(_WATCH_S, self.watch), name="places-watch", daemon=True),
        )

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for place in self._places.values():
            with contextlib.suppress(DualtrackError):
                place.end(EndReason.SHUTDOWN)

    @contextlib.contextmanager
    def lease(self, job_id: str, *, shared: bool) -> Iterator[Place]:
        """The job's place. Leases of one job wait for each other, except that shared ones (calls that change nothing) go together.

        Raises:
            WorkdirBusy: others of the same job did not end in time.
            OSError: its directory can't be made.
        """
        with self._workdirs.lease(job_id, shared=shared) as directory:
            place = self._entered(job_id, directory)
            try:
                yield place
            finally:
                self._left(job_id)

    def sweep(self) -> None:
        """End sessions that are idle for too long, whose jobs have ended, or that are too many; of those that nobody has leased."""
        with self._lock:
            free = {job_id: place for job_id, place in self._places.items() if job_id not in self._users and place.live}
            surplus = sum(place.live for place in self._places.values()) - self._limits.sessions_kept
        over = self._finished(list(free)) if free else set()
        for job_id, place in free.items():
            if job_id in over:
                place.try_end(EndReason.DONE, "")
            elif place.idle_for(self._limits.idle_s):
                place.try_end(EndReason.IDLE, f"idle for {self._limits.idle_s:g} s")
            elif surplus > 0 or place.homeless:
                place.try_end(EndReason.EVICTED, "others needed its room")
            else:
                continue
            surplus -= 1
        with self._lock:
            for job_id in [job_id for job_id in over if job_id not in self._users]:
                self._places.pop(job_id, None)

    def watch(self) -> None:
        """End sessions whose background processes exceed a limit while no command runs in them."""
        with self._lock:
            live = [place for place in self._places.values() if place.live]
        for place in live:
            try:
                place.watch()
            except DualtrackError as error:
                _LOG.warning("a sandbox beyond its limits could not be ended: %s", error)

    def _entered(self, job_id: str, directory: Workdir) -> Place:
        with self._lock:
            place = old = self._places.get(job_id)
            if place is None or not place.stands_in(directory):
                place = self._places[job_id] = Place(self._sessions, directory, self._limits.disk_bytes)
            self._places.move_to_end(job_id)
            self._users[job_id] = self._users.get(job_id, 0) + 1
            # What is left of jobs that have no session is next to nothing, yet there is no end of jobs.
            if len(self._places) > _BARE:
                bare = [other for other, kept in self._places.items() if not kept.live and other not in self._users]
                for other in bare[: max(0, len(bare) - _BARE)]:
                    del self._places[other]
        if old is not None and old is not place:
            old.end(EndReason.EVICTED)
        return place

    def _left(self, job_id: str) -> None:
        with self._lock:
            self._users[job_id] -= 1
            if not self._users[job_id]:
                del self._users[job_id]

    def _often(self, pause_s: float, look: Callable[[], None]) -> None:
        while not self._stop.wait(pause_s):
            try:
                look()
            except DualtrackError as error:
                _LOG.warning("kept sandboxes could not be looked through, trying again: %s", error)
            except Exception:  # noqa: BLE001 - the thread must outlive whatever happens
                _LOG.exception("kept sandboxes could not be looked through, trying again")
