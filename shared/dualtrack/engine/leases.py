"""The leases this process holds, renewed by one thread in one statement a kind."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from dualtrack.db import claims
from dualtrack.db.engine import Database
from dualtrack.db.presence import Presence
from dualtrack.domain.errors import DualtrackError, InfrastructureError
from dualtrack.domain.limits import PlatformLimits

_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Lease:
    """A claim being worked on."""

    kind: claims.Kind
    row_id: str
    attempt: int
    cancel: threading.Event = field(default_factory=threading.Event)
    """Set when the work must stop at once: the job was told to stop, or the claim is lost."""
    lost: bool = False


class Leases:
    """Keeps claims alive while work goes on, and this process present: a heartbeat every `heartbeat_s`, and one at once when called."""

    def __init__(self, database: Database, presence: Presence, limits: PlatformLimits) -> None:
        self._database = database
        self._presence = presence
        self._limits = limits
        self._held: dict[tuple[str, str, int], Lease] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        presence.on_call(self._wake.set)
        self._last = time.monotonic()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Mark this process as present and begin to beat."""
        self._presence.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop beating and give the presence back; claims still held are free for others at once."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=10)
        self._presence.close()

    @contextmanager
    def hold(self, kind: claims.Kind, row_id: str, attempt: int) -> Iterator[Lease]:
        """Renew a fresh claim until the block ends."""
        lease = Lease(kind, row_id, attempt)
        key = (kind, row_id, attempt)
        with self._lock:
            self._held[key] = lease
        try:
            yield lease
        finally:
            with self._lock:
                self._held.pop(key, None)

    def _beat(self) -> None:
        while True:
            self._wake.wait(self._limits.heartbeat_s)
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                self.renew()
            except DualtrackError as error:
                _LOG.warning("heartbeat failed, trying again: %s", error)
            except Exception:  # noqa: BLE001 - the heartbeat must outlive whatever happens
                _LOG.exception("heartbeat failed, trying again")

    def check(self) -> None:
        """Raise `InfrastructureError` when no heartbeat has succeeded within a lease: then others take this process's work over."""
        silent = time.monotonic() - self._last
        if silent > self._limits.lease_s:
            raise InfrastructureError(f"no heartbeat has succeeded for {silent:.0f} s; the log says why")

    def renew(self) -> None:
        """Extend all leases now; tell the work of lost or stopped ones, and let go of claims that nobody here works on."""
        with self._lock:
            held = list(self._held.values())
        for kind in ("jobs", "calls"):
            mine = [lease for lease in held if lease.kind == kind]
            rows = sorted((lease.row_id, lease.attempt) for lease in mine)
            with self._database.transaction(vital=True) as tx:
                alive = claims.renew(tx, kind, rows, self._limits) if rows else {}
                claims.disown(tx, kind, self._presence.key, rows, self._limits)
            for lease in mine:
                stopping = alive.get((lease.row_id, lease.attempt))
                lease.lost = stopping is None
                if stopping is not False:
                    lease.cancel.set()
        self._last = time.monotonic()
