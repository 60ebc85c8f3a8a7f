"""What became of a request from a sandbox to the network, as the audit trail tells it. Never a path, a query, a header or a body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class EgressReason(StrEnum):
    """Why a request was refused, or did not come to its end."""

    NOT_ALLOWED = "not_allowed"
    """The host and port are not on the allow-list."""
    PRIVATE_ADDRESS = "private_address"
    """The name has no address on the public internet, and the operator allows it no other."""
    UNREACHABLE = "unreachable"
    """No such host, no connection, or no TLS with it."""
    BAD_REQUEST = "bad_request"
    """Not HTTP as the proxy takes it."""
    HOST_MISMATCH = "host_mismatch"
    """The header Host, or the name in TLS, is another than the one asked for."""
    NOT_TLS = "not_tls"
    """Something else than HTTP or TLS, on a port that is for them."""
    SECRET_NOT_BOUND = "secret_not_bound"  # noqa: S105 - no secret
    """A placeholder that stands for nothing at this host, or in this place of the request."""
    UNREADABLE_ANSWER = "unreadable_answer"
    """An answer that can't be searched for secrets: it is compressed."""
    BYTES_LIMIT = "bytes_limit"
    REQUESTS_LIMIT = "requests_limit"
    CONNECTIONS_LIMIT = "connections_limit"
    BROKEN = "broken"
    """It was sent, and broke off or timed out before its end."""


@dataclass(frozen=True, slots=True)
class EgressRequest:
    """One request or tunnel.

    Attributes:
        host: as it was asked for, in its canonical form; empty where it is none.
        method: CONNECT for a tunnel that nobody looks into.
        allowed: whether it was let through.
        reason: empty for one that was let through and came to its end.
        status: of the answer; None where there was none, or nobody saw it.
        bytes_up: sent to the host.
        bytes_down: received from it.
        secrets: names of those put in.
        requests: how many this stands for.
    """

    host: str
    port: int
    method: str
    allowed: bool
    reason: EgressReason | None = None
    status: int | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    secrets: tuple[str, ...] = ()
    requests: int = 1

    @property
    def data(self) -> Mapping[str, Any]:
        """As an event has it."""
        values = asdict(self)
        return {"decision": "allowed" if values.pop("allowed") else "refused", **values, "secrets": list(self.secrets)}


@dataclass(frozen=True, slots=True)
class EgressUsage:
    """What a session has done so far."""

    requests: int = 0
    refused: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
