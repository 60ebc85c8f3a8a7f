"""A request to a person, bound to one call: may exactly this run, what is the answer, did that happen?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from dualtrack.domain.waiting import ApprovalKind, ApprovalStatus


class Resolution(StrEnum):
    """What a person says of an external call that may or may not have happened."""

    HAPPENED = "happened"
    """it did: the agent is told so"""
    NOT_HAPPENED = "not_happened"
    """it did not: the agent is told so, and decides itself"""
    RETRY = "retry"
    """make it again, under the same idempotency key"""
    FAIL = "fail"
    """the job fails"""


@dataclass(frozen=True, slots=True)
class Approval:
    """A row of `approvals`. Tool, arguments and hash are those asked about, for ever."""

    id: str
    tenant_id: str
    job_id: str
    call_id: str
    kind: ApprovalKind
    tool: str
    arguments: Mapping[str, Any]
    arguments_sha256: str
    message: str
    status: ApprovalStatus
    created_at: datetime
    expires_at: datetime
    lapsed: bool
    """Whether its time is over, though nobody may have written that down yet."""
    decided_by: str | None = None
    """Id of the API key that decided; `scheduler`, or `platform` where the job ended."""
    decided_by_name: str | None = None
    decided_at: datetime | None = None
    note: str | None = None
    """A note, the reason of a denial, an answer, or what was observed."""
    edited_arguments: Mapping[str, Any] | None = None
    """What was approved instead of what was asked for."""
    edited_sha256: str | None = None
    outcome: Resolution | None = None
    """Of kind `unknown`, once decided."""

    def permits(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether this very call was approved."""
        approved = self.kind is ApprovalKind.CALL and self.status is ApprovalStatus.APPROVED
        return approved and self.tool == tool and arguments_sha256(arguments) == (self.edited_sha256 or self.arguments_sha256)


def arguments_sha256(arguments: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of the arguments as canonical JSON: UTF-8, keys sorted, no spaces, whole numbers without a fraction or exponent.

    The same before and after they were in a database, which keeps a number's value but not how it was written.
    """
    text = json.dumps(_canonical(arguments), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, float):
        exact = Decimal(repr(value))
        return int(exact) if exact.is_finite() and exact == exact.to_integral_value() else value
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return value
