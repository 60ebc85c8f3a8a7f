"""Where an executor works on a job: its directory and, from call to call, its sandbox session.

A session is gone on with only while it stands exactly where the job does: the job's workspace is the one that the session's last call
ended with, and that call is the last one recorded of the job, by whichever executor. Otherwise it is ended, the directory brought to the
job's snapshot, and a new one claimed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dualtrack.db.steps import LatestChange
from dualtrack.domain.egress import EgressRequest
from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.limits import SandboxLimits
from dualtrack.objects.cancelling import interruptible
from dualtrack.objects.workdirs import Workdir
from dualtrack.objects.workspace import Snapshot, WorkspaceStore
from dualtrack.sandbox.port import Command, Outcome
from dualtrack.sandbox.sessions import EndReason, PythonCell, Session, SessionRequest, Sessions, Sink

if TYPE_CHECKING:
    from dualtrack.egress.gateway import Outlet

WayOut = Callable[[], "Outlet | None"]
"""Opens a session's way to the network; None where it has no network."""

_LOG: Final = logging.getLogger(__name__)
_UNRECORDED: Final = ""
"""Stands for a call at work: should it never be recorded, what it has left in its session is not gone on with."""


def no_way_out() -> None:
    """The way out of a sandbox that has no network."""


class Place:
    """One job's place, while leased. Commands of calls that share it run one after another."""

    def __init__(self, sessions: Sessions, directory: Workdir, disk_bytes: int) -> None:
        """`disk_bytes`: the most that sandboxes may write to the directory."""
        self._sessions = sessions
        self._disk_bytes = disk_bytes
        self._directory = directory
        self._lock = threading.RLock()
        self._session: Session | None = None
        self._digest: str | None = None
        self._latest: str | None = None
        """The last call that may have changed something in the session; None while it has seen none."""
        self._stateful = False
        self._lost = ""
        self._outlet: Outlet | None = None
        """The session's way to the network."""
        self._asked: list[EgressRequest] = []
        """Requests of sessions that are over, not yet told of."""
        self.used_at = time.monotonic()

    def stands_in(self, directory: Workdir) -> bool:
        """Whether that is its directory; another one is made once this one had to go for others."""
        return self._directory is directory

    @property
    def homeless(self) -> bool:
        """Whether its directory had to go for others."""
        return not self._directory.path.is_dir()

    @property
    def live(self) -> bool:
        """Whether it holds a session."""
        return self._session is not None

    def prepare(
        self,
        store: WorkspaceStore,
        digest: str | None,
        latest: Callable[[], LatestChange | None] | None = None,
        *,
        cancel: threading.Event,
        alone: bool = False,
    ) -> None:
        """Bring it to where the job stands.

        Args:
            store: of the job's tenant.
            digest: the job's workspace.
            latest: the job's last recorded call that may have changed something; None for a call that needs nothing but the files.
            cancel: give up once it is set.
            alone: have a session in which nothing has run: what earlier calls have left there must not meddle with this one.

        Raises:
            Cancelled: it is; nobody goes on with what is in the directory now: whoever comes next restores it.
            ObjectMissing, BlobCorrupt, WorkspaceUnavailable, StorageUnavailable: the workspace can't be restored.
        """
        with self._lock:
            last = None if latest is None else latest()
            fresh = self._session is None or self._latest is None
            if self._session is not None and (self._session.ended is not None or not self._stands_at(digest, latest, last)):
                self.end(EndReason.DONE, "other calls of the job ran elsewhere or were undone")
                fresh = True
            elif alone:
                self.end(EndReason.DONE, "the job's checks ran in sandboxes of their own")
                fresh = True
            if fresh and last is not None and last.kept_state and not self._lost:
                self._lost = _gone("this call runs elsewhere or after a restart")
            if self._session is not None:
                return
            interruptible(lambda: self._restore(store, digest, cancel), cancel)
            self._digest = digest
            self._latest = None

    def _restore(self, store: WorkspaceStore, digest: str | None, cancel: threading.Event) -> None:
        size = store.manifest(digest).size
        self._directory.size = max(self._directory.size, size)  # until it is done, some of both
        store.restore(digest, self._directory.path, owner=self._directory.owner, cancel=cancel)
        self._directory.size = size

    def _stands_at(self, digest: str | None, latest: Callable[[], LatestChange | None] | None, last: LatestChange | None) -> bool:
        if self._latest == _UNRECORDED or self._digest != digest:
            return False
        return self._latest is None or latest is None or (last is not None and self._latest == last.call_id)

    def begin(self) -> None:
        """A call begins that may change something."""
        with self._lock:
            self._latest = _UNRECORDED

    def done(self, snapshot: Snapshot, call_id: str) -> None:
        """That call has ended, with this workspace; whether it gets recorded shows in the database."""
        with self._lock:
            self._digest = snapshot.digest
            self._latest = call_id
            self._directory.size = snapshot.bytes

    def too_large(self, least: int) -> None:
        """That call has ended, with a workspace of more than `least` bytes, which goes with the next `prepare`."""
        self._directory.size = least

    def run(
        self,
        command: Command,
        request: SessionRequest,
        limits: SandboxLimits,
        cancel: threading.Event,
        sink: Sink | None,
        way_out: WayOut = no_way_out,
    ) -> Outcome:
        """Run a command in the job's session, which is claimed, with a way out, where there is none. See `Session.run`."""
        with self._lock:
            outcome = self._claimed(request, cancel, way_out).run(command, limits, cancel, sink)
            return self._seen(outcome)

    def python(
        self,
        cell: PythonCell,
        request: SessionRequest,
        limits: SandboxLimits,
        cancel: threading.Event,
        sink: Sink | None,
        way_out: WayOut = no_way_out,
    ) -> Outcome:
        """The same for Python source. See `Session.python`."""
        with self._lock:
            outcome = self._claimed(request, cancel, way_out).python(cell, limits, cancel, sink)
            self._stateful |= cell.persistent
            return self._seen(outcome)

    @contextlib.contextmanager
    def standing_still(self, cancel: threading.Event | None = None) -> Iterator[Path]:
        """The directory with the job's files; nothing changes it as long as the block lasts. Raises `Cancelled` once `cancel` is set."""
        with self._lock, contextlib.ExitStack() as stack:
            session = self._session
            if session is not None:
                try:
                    stack.enter_context(session.quiet())
                    session.pull(cancel)
                except SandboxFailed as error:
                    _LOG.warning("a sandbox did not stand still and was ended: %s", error)
                    self.end(EndReason.BROKEN, "it did not answer any more", during_call=True)
                    session = None
            yield self._directory.path if session is None else session.workspace

    def asked(self) -> tuple[EgressRequest, ...]:
        """What its sandboxes asked of the network since the last time."""
        with self._lock:
            asked, self._asked = self._asked, []
            return (*asked, *self._outlet.drain()) if self._outlet is not None else tuple(asked)

    @property
    def keeps_state(self) -> bool:
        """Whether its session holds background processes or Python variables of calls until now."""
        return self._stateful

    def take_notice(self) -> str:
        """What the agent has to know of a session it has lost; told once."""
        with self._lock:
            lost, self._lost = self._lost, ""
            return lost

    def end(self, reason: EndReason, why: str = "", *, during_call: bool = False) -> None:
        """End the session, if there is one; its files go to the directory. `why` is for the agent.

        Those written after the last call are not kept: the next one begins where that one has ended.
        """
        with self._lock:
            session, self._session = self._session, None
            if session is None:
                return
            if self._stateful:
                self._lost = _gone(why, during_call=during_call)
                if not during_call:  # nobody knows how much was written in the background since the last call
                    self._directory.size = max(self._directory.size, self._disk_bytes)
            self._stateful = False
            try:
                session.close(reason, keep=self._directory.path if self._directory.path.is_dir() else None)
            finally:
                outlet, self._outlet = self._outlet, None
                if outlet is not None:
                    outlet.close()
                    self._asked += outlet.drain()

    def idle_for(self, seconds: float) -> bool:
        """Whether it holds a session that nobody has used for so long."""
        return self._session is not None and time.monotonic() - self.used_at > seconds

    def try_end(self, reason: EndReason, why: str) -> bool:
        """The same as `end` unless a call is at work in it."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self.end(reason, why)
        finally:
            self._lock.release()
        return True

    def watch(self) -> None:
        """End the session if what goes on in it between calls exceeds a limit."""
        if not self._lock.acquire(blocking=False):
            return  # a call is at work in it
        try:
            if self._session is not None and (limit := self._session.overrun()):
                self._stateful = True  # whatever was said: something did go on
                self.end(EndReason.LIMIT, f"{limit}, between two calls")
        finally:
            self._lock.release()

    def _claimed(self, request: SessionRequest, cancel: threading.Event, way_out: WayOut) -> Session:
        self.used_at = time.monotonic()
        if self._session is not None and self._session.ended is None:
            return self._session
        if self._session is not None:
            self.end(EndReason.BROKEN, "it had broken off", during_call=True)
        outlet = way_out()
        try:
            session = self._sessions.claim(request if outlet is None else replace(request, egress=outlet.session))
            try:
                session.adopt(self._directory.path, cancel)
            except BaseException:
                session.close(EndReason.BROKEN, keep=self._directory.path)
                raise
        except BaseException:
            if outlet is not None:
                outlet.close()
            raise
        self._session, self._outlet = session, outlet
        return session

    def _seen(self, outcome: Outcome) -> Outcome:
        self.used_at = time.monotonic()
        self._stateful |= outcome.background > 0
        if self._session is not None and (reason := self._session.ended) is not None:
            self.end(reason, outcome.note or "it broke off", during_call=True)
        return outcome


def _gone(why: str, *, during_call: bool = False) -> str:
    files = "" if during_call else ", and what those wrote after the last call"
    return f"[the sandbox of earlier calls has ended ({why}): its background processes and Python variables are gone{files}]"
