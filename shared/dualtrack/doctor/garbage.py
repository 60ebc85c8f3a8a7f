"""Deleting what nothing refers to and nobody will ask for: objects of lost attempts, idempotency keys that are over, old deliveries.

Safe beside work under way. What an attempt relies on was put, or put again, within the last `FRESH_S` seconds (see `objects.blobs`) or is
named by a recorded row; deleted is only what no row names and was last put `GARBAGE_S` seconds ago, looked at once more right before.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import text

from dualtrack.db.engine import Database
from dualtrack.doctor import objects, references
from dualtrack.domain.errors import Conflict
from dualtrack.domain.limits import DELIVERY_LOG_S, GARBAGE_S, IDEMPOTENCY_S
from dualtrack.objects.port import ObjectStore

_LOG: Final = logging.getLogger(__name__)
BATCH: Final = 1000
_EXACTNESS: Final = timedelta(seconds=2)
_KEYS: Final = "idempotency_keys", "created_at < now() - make_interval(secs => :age)"
# Those of a job's own webhook are as many as its events, and stay with them.
_DELIVERIES: Final = (
    "deliveries",
    """finished_at < now() - make_interval(secs => :age)
    AND webhook_id IN (SELECT id FROM webhooks WHERE job_id IS NULL)""",
)


@dataclass(frozen=True, slots=True)
class Collected:
    """What was deleted, or would be."""

    objects: int
    bytes: int
    """Of those objects together."""
    idempotency_keys: int
    deliveries: int


def collect(database: Database, store: ObjectStore, *, dry_run: bool) -> Collected:
    """Delete garbage; `dry_run`: only count it.

    Raises:
        Conflict: a snapshot can't be read, so nobody knows what it names; nothing was deleted.
        StorageUnavailable, DatabaseUnavailable: what was deleted until then stays deleted.
    """
    count, size = _objects(database, store, dry_run=dry_run)
    keys = _rows(database, *_KEYS, IDEMPOTENCY_S, dry_run=dry_run)
    return Collected(count, size, keys, _rows(database, *_DELIVERIES, DELIVERY_LOG_S, dry_run=dry_run))


def _objects(database: Database, store: ObjectStore, *, dry_run: bool) -> tuple[int, int]:
    with database.transaction() as tx:
        connection = tx.connection
        for setting in ("statement_timeout", "idle_in_transaction_session_timeout"):
            connection.execute(text(f"SET LOCAL {setting} = 0"))
        references.gather(connection, None)
        with contextlib.closing(references.read_manifests(connection, store)) as unreadable:
            for _, digest, problem in unreadable:
                raise Conflict(f"Nothing was deleted: snapshot {digest}: {problem}. Restore it from a backup first (`dualtrack doctor`).")
        objects.keep(connection, objects.listing(store))
        count, size = 0, 0
        old = text(f"SELECT subject, size, modified_at FROM ({objects.referenced(GARBAGE_S).sql}) garbage")
        with connection.execute(old, execution_options={"yield_per": references.PAGE}) as rows:
            for row in rows:
                if not dry_run:
                    found = store.head(row.subject)
                    # Put again meanwhile: somebody is about to refer to it. (A listing may be more exact than what is said of one object.)
                    if found is None or found.modified_at - row.modified_at > _EXACTNESS:
                        continue
                    store.delete(row.subject)
                    _LOG.info("deleted %s, to which nothing refers", row.subject)
                count, size = count + 1, size + row.size
        return count, size


def _rows(database: Database, table: str, old: str, age_s: float, *, dry_run: bool) -> int:
    """Delete the old rows of a table, in batches so that nobody waits for them; how many."""
    parameters = {"age": age_s}
    if dry_run:
        with database.transaction() as tx:
            return int(tx.connection.execute(text(f"SELECT count(*) FROM {table} WHERE {old}"), parameters).scalar_one())
    deleted = 0
    while True:
        with database.transaction() as tx:
            statement = f"DELETE FROM {table} WHERE ctid IN (SELECT ctid FROM {table} WHERE {old} LIMIT {BATCH} FOR UPDATE SKIP LOCKED)"
            done = tx.connection.execute(text(statement), parameters).rowcount
        deleted += done
        if done < BATCH:
            return deleted
