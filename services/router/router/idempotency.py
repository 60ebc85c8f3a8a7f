"""`Idempotency-Key`: the one way in which a POST that creates something is made safe to repeat.

An address takes `once: OnceDep` and passes it to `dualtrack.db.idempotency.once` in the transaction that creates the resource; it
answers 200 where that was not new. `REPEATED` describes that answer.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Depends, Header, Request
from pydantic import BaseModel

from dualtrack.db.idempotency import RequestKey
from router.auth import CallerDep

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x20-\x7e]+$",
        description="Printable ASCII, at most 255 characters. The same key and request always give the same resource.",
    ),
]


async def _once(request: Request, caller: CallerDep, idempotency_key: IdempotencyKey = None) -> RequestKey | None:
    if idempotency_key is None:
        return None
    return RequestKey.of(caller.tenant_id, idempotency_key, request.method, request.url.path, _normal(await request.body()))


def _normal(body: bytes) -> bytes:
    """JSON without what makes no difference: white space, the order of fields."""
    try:
        return json.dumps(json.loads(body), sort_keys=True).encode()
    except (ValueError, RecursionError):  # no JSON: an address without a body was sent one, which it ignores
        return body


OnceDep = Annotated[RequestKey | None, Depends(_once)]
"""A parameter of this type makes an address take an `Idempotency-Key`; None where none was sent."""


def repeated(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The answer to a repeated request, for an address's OpenAPI description."""
    return {200: {"model": model, "description": "This Idempotency-Key was used before with the same request: what that made."}}
