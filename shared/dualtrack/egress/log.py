"""What the sandbox of a session asked of the network, until it is written down: bounded, whatever the sandbox does."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Final

from dualtrack.domain.egress import EgressRequest

OTHERS: Final = "(others)"
"""In the place of the host, where even the added-up requests were to too many."""

_Key = tuple[object, ...]


class RequestLog:
    """Requests since the last `drain`. The first ones stand alone, further ones are added up by host and outcome. Thread-safe."""

    def __init__(self, most: int) -> None:
        """`most`: requests kept alone, and as many sums besides."""
        self._most = most
        self._lock = threading.Lock()
        self._alone: list[EgressRequest] = []
        self._sums: dict[_Key, EgressRequest] = {}

    def add(self, request: EgressRequest) -> None:
        """Take one in."""
        with self._lock:
            if len(self._alone) < self._most:
                self._alone.append(request)
                return
            key: _Key = (request.host, request.port, request.method, request.allowed, request.reason, request.status)
            if key not in self._sums and len(self._sums) >= self._most:
                key = (request.allowed,)
                request = replace(request, host=OTHERS, port=0, method="", reason=None, status=None, secrets=())
            before = self._sums.get(key)
            self._sums[key] = request if before is None else _sum(before, request)

    def drain(self) -> tuple[EgressRequest, ...]:
        """All since the last time; they are forgotten."""
        with self._lock:
            found = (*self._alone, *self._sums.values())
            self._alone, self._sums = [], {}
            return found


def _sum(one: EgressRequest, other: EgressRequest) -> EgressRequest:
    return replace(
        one,
        bytes_up=one.bytes_up + other.bytes_up,
        bytes_down=one.bytes_down + other.bytes_down,
        secrets=tuple(dict.fromkeys((*one.secrets, *other.secrets))),
        requests=one.requests + other.requests,
    )
