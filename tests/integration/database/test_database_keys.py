"""Keys: a repeated request finds what the first one made, and an API key is kept as a hash."""

from __future__ import annotations

import threading
import time

import pytest
from sqlalchemy import func, select, update

from dualtrack.db import idempotency, tenants
from dualtrack.db.engine import Database
from dualtrack.db.idempotency import RequestKey
from dualtrack.db.tables import metadata
from dualtrack.domain.errors import IdempotencyMismatch


def test_the_same_key_gives_the_same_resource_and_another_request_a_conflict(database: Database) -> None:
    with database.transaction() as tx:
        tenant, other = tenants.ensure_tenant(tx), tenants.ensure_tenant(tx, "other")
        key = RequestKey.of(tenant, "k", "POST", b"a")
        assert idempotency.once(tx, key, lambda: "job_1") == ("job_1", True)
        assert idempotency.once(tx, key, lambda: "job_2") == ("job_1", False)
        assert idempotency.once(tx, RequestKey.of(other, "k", "POST", b"b"), lambda: "job_3") == ("job_3", True)
        assert idempotency.once(tx, None, lambda: "job_4") == ("job_4", True)
        for request in (("POST", b"b"), ("POS", b"Ta"), ("POST", b"a", b"")):
            with pytest.raises(IdempotencyMismatch):
                idempotency.once(tx, RequestKey.of(tenant, "k", *request), lambda: "job_5")


def test_of_twins_under_one_key_one_creates_and_a_failed_first_leaves_the_key_free(database: Database) -> None:
    with database.transaction() as tx:
        key = RequestKey.of(tenants.ensure_tenant(tx), "k", "POST")
    with pytest.raises(ZeroDivisionError), database.transaction() as tx:
        idempotency.once(tx, key, lambda: str(1 // 0))
    created: list[str] = []
    start = threading.Barrier(4)
    found: list[tuple[str, bool]] = []

    def create() -> str:
        created.append(f"job_{len(created)}")
        time.sleep(0.05)  # the twins come while this one is at work
        return created[-1]

    def run() -> None:
        start.wait()
        with database.transaction() as tx:
            found.append(idempotency.once(tx, key, create))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert created == ["job_0"]
    assert sorted(found) == [("job_0", False)] * 3 + [("job_0", True)]


def test_keys_are_kept_hashed_and_revoked_ones_open_nothing(database: Database) -> None:
    with database.transaction() as tx:
        key = tenants.create_key(tx, tenants.ensure_tenant(tx), "test")
        found = tenants.caller(tx, key)
        assert found is not None
        stored = " ".join(str(row) for row in tx.connection.execute(select(metadata.tables["api_keys"])))
        assert key not in stored
        tx.connection.execute(update(metadata.tables["api_keys"]).values(revoked_at=func.now()))
        assert tenants.caller(tx, key) is None
        assert tenants.caller(tx, key + "x") is None
