"""`Idempotency-Key`: the one way in which a POST that creates something is made safe to repeat.

An address takes `once: OnceDep`. Where that says what was `made` it answers 200 with it, and checks nothing: what was accepted once is not
refused since. Otherwise it passes the `key` to `dualtrack.db.idempotency.once` in the transaction that creates the resource, and
answers 200 where that was not new. `repeated` describes that answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from dualtrack.db import idempotency
from dualtrack.db.engine import Database
from dualtrack.db.idempotency import RequestKey
from router.auth import CallerDep
from router.dependencies import ServicesDep

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x20-\x7e]+$",
        description="Printable ASCII, at most 255 characters. The same key and request always give the same resource.",
    ),
]


@dataclass(frozen=True, slots=True)
class Once:
    """What a request's `Idempotency-Key` says."""

    key: RequestKey | None
    """None: none was sent."""
    made: str | None
    """Id of what this request made before; None: nothing yet."""


async def _once(request: Request, caller: CallerDep, services: ServicesDep, idempotency_key: IdempotencyKey = None) -> Once:
    if idempotency_key is None:
        return Once(None, None)
    key = RequestKey.of(caller.tenant_id, idempotency_key, request.method, request.url.path, _normal(await request.body()))
    return Once(key, await run_in_threadpool(made_before, services.runtime.database, key))


def made_before(database: Database, key: RequestKey) -> str | None:
    """Id of what this request made before; None: nothing yet. Raises `IdempotencyMismatch`."""
    with database.transaction() as tx:
        return idempotency.made(tx, key)


def _normal(body: bytes) -> bytes:
    """JSON without what makes no difference: white space, the order of fields."""
    try:
        return json.dumps(json.loads(body), sort_keys=True).encode()
    except (ValueError, RecursionError):  # no JSON: an address without a body was sent one, which it ignores
        return body


OnceDep = Annotated[Once, Depends(_once)]
"""A parameter of this type makes an address take an `Idempotency-Key`."""


def repeated(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The answer to a repeated request, for an address's OpenAPI description."""
    return {200: {"model": model, "description": "This Idempotency-Key was used before with the same request: what that made."}}
