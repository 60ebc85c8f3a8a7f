"""What requests to the API have in common: a resource's path, and the key that makes one safe to repeat."""

from __future__ import annotations

import uuid
from urllib.parse import quote


def path_of(collection: str, resource_id: str) -> str:
    """The path of one resource of `collection` (such as `jobs`); whatever the id holds stays within its part of the path."""
    return f"/v1/{collection}/{quote(resource_id, safe='')}"


def own_key() -> str:
    """An idempotency key of this run's own: the request can be sent again when the connection breaks before the answer."""
    return f"cli-{uuid.uuid4()}"
