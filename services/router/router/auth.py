"""Who calls: Bearer keys, looked up by their SHA-256, with a short memory so that the fast track asks the database rarely."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool

from dualtrack.db import tenants
from dualtrack.db.engine import Database
from dualtrack.db.tenants import Caller
from dualtrack.domain.errors import Unauthenticated

REMEMBERED_S: Final = 10.0
"""Seconds a key is known without asking again: how long a revoked key may still work."""
MAX_REMEMBERED: Final = 10_000
MAX_KEY_CHARS: Final = 256


class Keys:
    """Finds the caller of a key. Only keys that exist are remembered, so a new key works at once. For one event loop."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()

    async def authenticate(self, authorization: str) -> Caller:
        """Who sent a request with this `Authorization` header (empty: none).

        Raises:
            Unauthenticated: it holds no key, or an unknown or revoked one.
            DatabaseUnavailable: the key is not remembered and can't be looked up.
        """
        scheme, _, key = authorization.partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key:
            raise Unauthenticated("Give an API key in the header 'Authorization: Bearer dt_…'; `dualtrack keys create` makes one.")
        if len(key) > MAX_KEY_CHARS:
            raise Unauthenticated("This is no API key of this platform: they begin with dt_.")
        return await self.caller(key)

    async def caller(self, key: str) -> Caller:
        """Whose key it is.

        Raises:
            Unauthenticated: unknown or revoked.
            DatabaseUnavailable: it is not remembered and can't be looked up.
        """
        digest = hashlib.sha256(key.encode()).digest()  # the clear key is not kept in memory
        found = self._known.get(digest)
        if found is not None and found[1] > self._clock():
            self._known.move_to_end(digest)
            return found[0]
        self._known.pop(digest, None)
        caller = await run_in_threadpool(self._look_up, key)
        if caller is None:
            raise Unauthenticated("This API key is unknown or revoked: make one with `dualtrack keys create`.")
        self._known[digest] = (caller, self._clock() + REMEMBERED_S)
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return caller

    def _look_up(self, key: str) -> Caller | None:
        with self._database.transaction() as tx:
            return tenants.caller(tx, key)


class _Bearer(HTTPBearer):
    """The security scheme that OpenAPI names, and the check itself."""

    async def __call__(self, request: Request) -> Caller:  # type: ignore[override] # gives the caller, not the bare credentials
        keys: Keys = request.app.state.keys
        return await keys.authenticate(request.headers.get("authorization", ""))


BEARER: Final = _Bearer(bearerFormat="dt_…", scheme_name="ApiKey", description="An API key, made by `dualtrack keys create`.")

CallerDep = Annotated[Caller, Depends(BEARER)]
"""A parameter of this type makes an address need a key and gives its caller."""
