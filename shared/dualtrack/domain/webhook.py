"""Webhooks: who is told what, how a delivery stands, when it is tried again."""

from __future__ import annotations

import base64
import binascii
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from dualtrack.domain.events import EventType
from dualtrack.domain.limits import URL_CHARS, PlatformLimits

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - the mark that all secrets begin with
SECRET_BYTES: Final = (24, 64)
"""Fewest and most, as the specification has them."""


class NoticeType(StrEnum):
    """The events that webhooks tell of, under their own names."""

    JOB_SUCCEEDED = EventType.JOB_SUCCEEDED.value
    JOB_FAILED = EventType.JOB_FAILED.value
    JOB_CANCELLED = EventType.JOB_CANCELLED.value
    JOB_EXPIRED = EventType.JOB_EXPIRED.value
    JOB_WAITING = EventType.JOB_WAITING.value
    ARTIFACT_SAVED = EventType.ARTIFACT_SAVED.value


DEFAULT_NOTICES: Final = tuple(kind for kind in NoticeType if kind is not NoticeType.ARTIFACT_SAVED)
"""What is told where nothing is chosen: every end, and that a job waits for somebody."""


class DeliveryStatus(StrEnum):
    """The life of a delivery: pending, then one of the others; a redelivery makes it pending again."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


def secret_key(secret: str) -> bytes:
    """The key that a secret (`whsec_` and base64) stands for.

    Raises:
        ValueError: it is none of 24 to 64 bytes.
    """
    fewest, most = SECRET_BYTES
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(SECRET_PREFIX) or not fewest <= len(key) <= most:
        raise ValueError(f"must be {SECRET_PREFIX} and the base64 of {fewest} to {most} bytes")
    return key


def _secret(text: str) -> str:
    secret_key(text)
    return text


def _each_once(events: tuple[NoticeType, ...]) -> tuple[NoticeType, ...]:
    return tuple(kind for kind in NoticeType if kind in events)


WebhookUrl = Annotated[str, StringConstraints(min_length=1, max_length=URL_CHARS)]
WebhookSecret = Annotated[str, StringConstraints(max_length=200), AfterValidator(_secret)]
NoticeTypes = Annotated[tuple[NoticeType, ...], Field(min_length=1, max_length=len(NoticeType)), AfterValidator(_each_once)]


class JobWebhook(BaseModel):
    """Who is told of one job."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: WebhookUrl = Field(description="Where to: an http or https address on the public internet, or one that the operator allows.")
    events: NoticeTypes = Field(DEFAULT_NOTICES, description="What of.")
    secret: WebhookSecret | None = Field(
        None,
        description=f"Signs the deliveries: {SECRET_PREFIX} and base64. Empty: one is made. Shown only in the answer that makes the job.",
    )


@dataclass(frozen=True, slots=True)
class Webhook:
    """An endpoint. Times are aware, UTC."""

    id: str
    tenant_id: str
    job_id: str | None
    """The job whose specification it came with; None: it is the tenant's and hears of all jobs."""
    url: str
    events: tuple[NoticeType, ...]
    description: str
    secret: str
    """As stored: sealed, where the operator set keys (`dualtrack.webhooks.sealing`)."""
    previous_secret: str | None
    """Signs beside the secret until `previous_until`; as stored too."""
    previous_until: datetime | None
    disabled_at: datetime | None
    disabled_reason: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event on its way to one endpoint. Its id is the `webhook-id` of every attempt."""

    id: str
    webhook_id: str
    job_id: str
    seq: int
    """Number of the event in its job."""
    type: NoticeType
    body: str
    status: DeliveryStatus
    attempt: int
    """Fencing token of the sender's claim."""
    tries: int
    """Claims since it was created or redelivered."""
    log: tuple[Mapping[str, Any], ...]
    """Attempts, oldest first: number, at, status, error, answer, latency_s."""
    due_at: datetime | None
    created_at: datetime
    finished_at: datetime | None


def pause(tries: int, limits: PlatformLimits, retry_after_s: float | None = None) -> float:
    """Seconds until the next try after the `tries`-th failed: tripling, half of it jitter; longer if the receiver asks for it."""
    cap = min(limits.webhook_backoff_max_s, limits.webhook_backoff_s * 3.0 ** min(tries - 1, 20))
    own = cap * (0.5 + 0.5 * random.random())  # noqa: S311 - jitter, not a secret
    return max(own, min(retry_after_s or 0.0, limits.webhook_backoff_max_s))
