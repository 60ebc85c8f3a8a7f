"""Sending what the outbox holds: claimed, sent with no transaction open, recorded under the claim's number. At least once."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from dualtrack.db import clock, deliveries, webhooks
from dualtrack.db.engine import assert_no_transaction
from dualtrack.domain.errors import NotFound
from dualtrack.domain.webhook import Delivery, DeliveryStatus, Webhook, pause
from dualtrack.engine.hands import Errand, Hands
from dualtrack.engine.runtime import Runtime
from dualtrack.faults import Fault, point
from dualtrack.webhooks.sealing import SecretUnreadable
from dualtrack.webhooks.sender import GONE, Outcome, send

_LOG: Final = logging.getLogger(__name__)


class Deliverer:
    """Threads of its own send, so that slow endpoints hold up nobody else."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._hands = Hands(self, runtime.limits.webhook_in_flight, "webhook")

    def start_due(self) -> int:
        """Have threads send what is due, as many as there is room for; how many were started. Raises `DatabaseUnavailable`."""
        return self._hands.start_due()

    def send_next(self) -> bool:
        """Send the one delivery that is due for longest; False when there is none. Raises `DatabaseUnavailable`."""
        return self._hands.do_next()

    def close(self) -> None:
        """Send nothing more; returns when what is under way has ended."""
        self._hands.close()

    def due(self, most: int, busy: Collection[str]) -> int:
        """For its threads."""
        del busy  # each is claimed under a lease
        with self._runtime.database.transaction() as tx:
            return deliveries.due(tx, most)

    def take(self, busy: Collection[str]) -> Errand | None:
        """For its threads."""
        del busy
        with self._runtime.database.transaction() as tx:
            delivery = deliveries.claim(tx, self._runtime.limits)
        return None if delivery is None else Errand(delivery.id, lambda: self._deliver(delivery))

    def _deliver(self, delivery: Delivery) -> bool:
        point(Fault.DELIVERY_CLAIMED, delivery.id)
        try:
            with self._runtime.database.transaction() as tx:
                webhook, now = webhooks.get(tx, delivery.webhook_id), clock.now(tx)
        except NotFound:  # removed meanwhile, and the delivery with it
            return True
        self._send(delivery, webhook, now)
        return True

    def _send(self, delivery: Delivery, webhook: Webhook, at: datetime) -> None:
        assert_no_transaction()
        if webhook.disabled_at is not None:
            outcome = Outcome(
                delivered=False, status=None, error=f"The endpoint is disabled: {webhook.disabled_reason}", answer="", latency_s=0
            )
        else:
            outcome = self._attempt(delivery, webhook, at)
            point(Fault.DELIVERY_SENT, delivery.id)
        self._record(delivery, webhook, outcome, at)

    def _attempt(self, delivery: Delivery, webhook: Webhook, at: datetime) -> Outcome:
        try:
            return send(delivery, self._opened(webhook, at), self._runtime.limits, self._runtime.allow, now=at)
        except SecretUnreadable as error:
            return Outcome(delivered=False, status=None, error=error.message, answer="", latency_s=0)
        except Exception as error:  # noqa: BLE001 - a fault of ours fails like any other attempt, or this one would be tried for ever
            _LOG.exception("delivery %s", delivery.id, extra={"job_id": delivery.job_id})
            text = f"{type(error).__name__} in the scheduler; see its log."
            return Outcome(delivered=False, status=None, error=text, answer="", latency_s=0)

    def _opened(self, webhook: Webhook, at: datetime) -> Webhook:
        """With the secrets that sign at this moment. Raises `SecretUnreadable` where the current one is."""
        sealer, previous = self._runtime.sealer, webhook.previous_secret
        secret = sealer.open(webhook.secret)
        if previous is not None:
            try:
                previous = sealer.open(previous) if webhook.previous_until is not None and webhook.previous_until > at else None
            except SecretUnreadable as error:  # receivers that know the new one need no more
                _LOG.warning("webhook %s: signed with its new secret only: %s", webhook.id, error)
                previous = None
        return replace(webhook, secret=secret, previous_secret=previous)

    def _record(self, delivery: Delivery, webhook: Webhook, outcome: Outcome, at: datetime) -> None:
        limits = self._runtime.limits
        entry: dict[str, Any] = {
            "at": at.isoformat(),
            "status": outcome.status,
            "error": outcome.error,
            "answer": outcome.answer,
            "latency_s": round(outcome.latency_s, 3),
        }
        with self._runtime.database.transaction() as tx:
            if outcome.delivered:
                kept = deliveries.finish(tx, delivery, DeliveryStatus.DELIVERED, entry)
            elif outcome.status == GONE or webhook.disabled_at is not None:
                if outcome.status == GONE:  # first, since whoever removes an endpoint locks it before its deliveries
                    webhooks.disable(tx, webhook.id, "It answered 410 (gone).")
                kept = deliveries.finish(tx, delivery, DeliveryStatus.FAILED, entry)
            else:
                kept = deliveries.put_off(tx, delivery, pause(delivery.tries, limits, outcome.retry_after_s), entry, limits)
        if not kept:
            _LOG.warning("delivery %s: attempt %s was taken over", delivery.id, delivery.attempt, extra={"job_id": delivery.job_id})
