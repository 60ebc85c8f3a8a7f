"""One attempt to deliver, over the network."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from dualtrack import __version__
from dualtrack.domain.errors import OutgoingError
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.text import storable
from dualtrack.domain.webhook import Delivery, Webhook
from dualtrack.net import guard
from dualtrack.net.addresses import AllowList
from dualtrack.webhooks import signature

GONE: Final = 410
"""The receiver wants no more: its endpoint is disabled."""
_ACCEPTED: Final = range(200, 300)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an attempt."""

    delivered: bool
    status: int | None
    """HTTP status; None: no answer."""
    error: str | None
    """Why there was no answer that counts, for a person."""
    answer: str
    """The beginning of the answer's body."""
    latency_s: float
    retry_after_s: float | None = None
    """What the receiver asked for."""


def send(delivery: Delivery, webhook: Webhook, limits: PlatformLimits, allow: AllowList, *, now: datetime) -> Outcome:
    """Post a delivery to its endpoint, which may take up to `limits.webhook_timeout_s`. Never raises for what the receiver does.

    The webhook has its secrets in clear. `now` is signed, and receivers refuse what is minutes off: it comes from the database, whatever
    this machine's clock says.
    """
    old = webhook.previous_secret if webhook.previous_until is not None and webhook.previous_until > now else None
    body = delivery.body.encode()
    signed = signature.headers(delivery.id, int(now.timestamp()), body, [webhook.secret, *([old] if old else [])])
    headers = {"Content-Type": "application/json", "User-Agent": f"dualtrack/{__version__} (webhooks)", **signed}
    started = time.monotonic()
    try:
        answer = guard.request(
            "POST",
            webhook.url,
            headers=headers,
            body=body,
            timeout_s=limits.webhook_timeout_s,
            max_bytes=limits.webhook_answer_bytes,
            allow=allow,
        )
    except OutgoingError as error:
        return Outcome(delivered=False, status=None, error=error.message, answer="", latency_s=time.monotonic() - started)
    delivered = answer.status in _ACCEPTED
    return Outcome(
        delivered=delivered,
        status=answer.status,
        error=None if delivered else f"The endpoint answered with status {answer.status}.",
        answer=storable(answer.body.decode(errors="replace")),
        latency_s=time.monotonic() - started,
        retry_after_s=_seconds(answer.headers.get("retry-after", ""), now),
    )


def _seconds(text: str, now: datetime) -> float | None:
    """`Retry-After`, a number of seconds or a date, in seconds from `now`; None where it is neither."""
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    return (until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds()
