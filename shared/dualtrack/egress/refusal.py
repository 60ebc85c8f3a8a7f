"""What the proxy says no with."""

from __future__ import annotations

from dualtrack.domain.egress import EgressReason


class Refusal(Exception):
    """A request that is not served.

    Attributes:
        status: for the sandbox, where an answer can still be given.
        reason: for the audit trail.
        message: for whoever reads the answer in the sandbox: what to do instead. Holds nothing secret.
        allowed: whether the request had been let through before it failed.
    """

    def __init__(self, status: int, reason: EgressReason, message: str, *, allowed: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.allowed = allowed


class Cut(Exception):
    """The connection must end at once, without a further word.

    Attributes:
        reason: for the audit trail.
    """

    def __init__(self, reason: EgressReason) -> None:
        super().__init__(reason.value)
        self.reason = reason
