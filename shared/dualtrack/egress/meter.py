"""What a session has used, and its limits: requests, bytes, processor time. Thread-safe."""

from __future__ import annotations

import threading

from dualtrack.domain.egress import EgressReason, EgressUsage
from dualtrack.egress.pace import Pace
from dualtrack.egress.refusal import Cut


class Meter:
    """Counts requests and bytes of one session."""

    def __init__(self, max_bytes_up: int, max_bytes_down: int, max_requests: int) -> None:
        self._max_up = max_bytes_up
        self._max_down = max_bytes_down
        self._max_requests = max_requests
        self._lock = threading.Lock()
        self._pace = Pace()
        self._requests = self._refused = self._up = self._down = 0

    @property
    def usage(self) -> EgressUsage:
        """So far."""
        with self._lock:
            return EgressUsage(self._requests, self._refused, self._up, self._down)

    def begin(self) -> bool:
        """Count a request; whether there may be one more."""
        self._pace.keep()
        with self._lock:
            self._requests += 1
            return self._requests <= self._max_requests

    def heard(self, _: int = 0) -> None:
        """Something came from the sandbox that is not counted: it takes time to look at it all the same."""
        self._pace.keep()

    def refused(self) -> None:
        """Count one as refused."""
        with self._lock:
            self._refused += 1

    @property
    def spent(self) -> bool:
        """Whether nothing more may be sent or received."""
        with self._lock:
            return self._up >= self._max_up or self._down >= self._max_down

    def up(self, count: int) -> None:
        """Count bytes about to be sent to a host. Raises `Cut` where they are too many: they must not be sent."""
        self._pace.keep()
        with self._lock:
            if self._up + count > self._max_up:
                self._up = self._max_up
                raise Cut(EgressReason.BYTES_LIMIT)
            self._up += count

    def down(self, count: int) -> None:
        """Count bytes received from a host. Raises `Cut` where they are too many: they must not be handed on."""
        self._pace.keep()
        with self._lock:
            self._down += count
            if self._down > self._max_down:
                self._down = self._max_down
                raise Cut(EgressReason.BYTES_LIMIT)
