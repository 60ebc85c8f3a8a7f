"""What the API takes and shows of webhooks and their deliveries."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from dualtrack.domain.webhook import (
    DEFAULT_NOTICES,
    SECRET_PREFIX,
    Delivery,
    DeliveryStatus,
    NoticeType,
    NoticeTypes,
    Webhook,
    WebhookSecret,
    WebhookUrl,
)

_URL = "Where to: an http or https address on the public internet, or one that the operator allows."
_Description = Annotated[str, StringConstraints(max_length=500)]


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WebhookSpec(_Closed):
    """A webhook about to be added."""

    url: WebhookUrl = Field(description=_URL)
    events: NoticeTypes = Field(DEFAULT_NOTICES, description="What it is told of.")
    description: _Description = Field("", description="For people.")
    secret: WebhookSecret | None = Field(None, description=f"Signs the deliveries: {SECRET_PREFIX} and base64. Empty: one is made.")


class WebhookChange(_Closed):
    """What is to be changed; all else stays."""

    url: WebhookUrl | None = Field(None, description=_URL)
    events: NoticeTypes | None = Field(None, description="What it is told of.")
    description: _Description | None = Field(None, description="For people.")
    disabled: bool | None = Field(
        None, strict=True, description="Whether it is told nothing. An endpoint that answers 410 is disabled by itself."
    )


class WebhookRotation(_Closed):
    """Another secret."""

    secret: WebhookSecret | None = Field(None, description=f"{SECRET_PREFIX} and base64. Empty: one is made.")


class WebhookView(BaseModel):
    """An endpoint and what it listens to."""

    id: str
    object: Literal["webhook"] = "webhook"
    job_id: str | None = Field(description="The job that it came with; null: it hears of all the tenant's jobs.")
    url: str
    events: list[NoticeType]
    description: str
    secret: str | None = Field(description="In the answers that make or change it; null in all others.")
    disabled: bool
    disabled_reason: str | None
    previous_secret_until: datetime | None = Field(description="Until when deliveries are signed with the secret before this one too.")
    created_at: datetime

    @classmethod
    def of(cls, webhook: Webhook, *, secret: str | None = None) -> WebhookView:
        """The view of a webhook; `secret` in clear, where it is to be shown."""
        return cls(
            id=webhook.id,
            job_id=webhook.job_id,
            url=webhook.url,
            events=list(webhook.events),
            description=webhook.description,
            secret=secret,
            disabled=webhook.disabled_at is not None,
            disabled_reason=webhook.disabled_reason,
            previous_secret_until=webhook.previous_until,
            created_at=webhook.created_at,
        )


class WebhookRemoved(BaseModel):
    """A webhook that is no more."""

    id: str
    object: Literal["webhook"] = "webhook"
    deleted: Literal[True] = True


class AttemptView(BaseModel):
    """One attempt to deliver."""

    number: int
    at: datetime
    status: int | None = Field(description="HTTP status of the answer; null: there was none.")
    error: str | None = Field(description="Why it does not count as delivered.")
    answer: str = Field(description="The beginning of what was answered.")
    latency_s: float


class DeliveryView(BaseModel):
    """An event on its way to an endpoint."""

    id: str = Field(description="The header `webhook-id` of every attempt.")
    object: Literal["delivery"] = "delivery"
    webhook_id: str
    job_id: str
    type: NoticeType
    status: DeliveryStatus
    payload: dict[str, Any] = Field(description="The body.")
    attempts: list[AttemptView] = Field(description="The newest 50, oldest first.")
    next_attempt_at: datetime | None
    created_at: datetime
    finished_at: datetime | None

    @classmethod
    def of(cls, delivery: Delivery) -> DeliveryView:
        """The view of a delivery."""
        return cls(
            id=delivery.id,
            webhook_id=delivery.webhook_id,
            job_id=delivery.job_id,
            type=delivery.type,
            status=delivery.status,
            payload=json.loads(delivery.body),
            attempts=[AttemptView.model_validate(entry) for entry in delivery.log],
            next_attempt_at=delivery.due_at,
            created_at=delivery.created_at,
            finished_at=delivery.finished_at,
        )
