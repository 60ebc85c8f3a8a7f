"""Secrets, and the headers that prove who sent a delivery and when."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

from dualtrack.domain.webhook import SECRET_PREFIX, secret_key

_NEW_BYTES: Final = 32


def new_secret() -> str:
    """A random secret as its owner is shown it."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_NEW_BYTES)).decode()


def headers(message_id: str, timestamp: int, body: bytes, signing: Sequence[str]) -> dict[str, str]:
    """The headers of one attempt.

    Args:
        message_id: the same on every attempt.
        timestamp: of this attempt, Unix seconds.
        body: exactly the bytes that are sent.
        signing: secrets; each gives a signature, so that a receiver may know either while they change.
    """
    content = f"{message_id}.{timestamp}.".encode() + body
    signatures = [base64.b64encode(hmac.new(secret_key(secret), content, hashlib.sha256).digest()).decode() for secret in signing]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
