"""Garbage: what nothing refers to goes once it is old; nothing else does, whatever is at work."""

from __future__ import annotations

import tempfile
import weakref
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select, text, update

from dualtrack.db import webhooks
from dualtrack.db.engine import Database
from dualtrack.db.hook_tables import deliveries
from dualtrack.db.tables import idempotency_keys, metadata
from dualtrack.doctor import examination, garbage
from dualtrack.doctor.garbage import Collected, collect
from dualtrack.doctor.objects import examine_objects
from dualtrack.domain.errors import Conflict
from dualtrack.domain.limits import DELIVERY_LOG_S, GARBAGE_S, IDEMPOTENCY_S, PlatformLimits
from dualtrack.domain.webhook import NoticeType
from dualtrack.objects import blobs
from dualtrack.objects.blobs import BlobStore
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.testing.objects import MemoryStore
from dualtrack.webhooks.signature import new_secret

from .conftest import Make, finish, python, shell

OLD = timedelta(seconds=GARBAGE_S + 60)
LONG = "print('x' * 5000); open('data', 'w').write('y' * 100)"


def age(store: MemoryStore) -> None:
    """A day passes for all objects."""
    for key in store.put_at:
        store.put_at[key] -= OLD


def test_only_what_nothing_refers_to_goes(make: Make, database: Database, store: MemoryStore) -> None:
    stepper = make([python(LONG), shell("echo more > more"), finish()])
    job = stepper.run(stepper.submit())
    kept = {found.key for found in store.stored("")}
    lost = {f"observations/{job.tenant_id}/{job.id}/call_x/1": 3, f"blobs/{job.tenant_id}/ab/{'ab' * 32}": 4}
    for key, size in lost.items():
        store.put(key, b"x" * size)
    store.put("elsewhere/x", b"not ours")
    assert collect(database, store, dry_run=False) == Collected(0, 0, 0, 0)  # too young
    age(store)
    assert collect(database, store, dry_run=True) == Collected(2, 7, 0, 0)
    assert collect(database, store, dry_run=False) == Collected(2, 7, 0, 0)
    assert {found.key for found in store.stored("")} == kept | {"elsewhere/x"}
    assert all(finding.holds for finding in examine_objects(database, store))


def test_an_attempt_that_comes_upon_garbage_makes_it_its_own(
    make: Make, database: Database, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost attempt's blobs are a day old when another process makes the same ones, while garbage is collected time and again."""
    stepper = make([shell("echo same > a"), finish()])
    stepper.run(stepper.submit())
    objects = {found.key: store.get(found.key) for found in store.stored("")}
    with database.transaction() as tx:  # as if it had been lost
        tx.connection.execute(text("SET LOCAL session_replication_role = replica"))
        for table in reversed(metadata.sorted_tables):
            if table.name in {"events", "calls", "steps", "jobs"}:
                tx.connection.execute(table.delete())
    monkeypatch.setattr(blobs, "_known", weakref.WeakKeyDictionary())  # another process
    age(store)
    job = stepper.submit()
    put, collected = store.put, []

    def put_and_collect(key: str, data: bytes, **more: str) -> object:
        info = put(key, data, **more)
        collected.append(collect(database, store, dry_run=False).objects)
        return info

    store.put = put_and_collect  # type: ignore[method-assign, assignment]
    assert stepper.run(job).status == "succeeded"
    assert sum(collected) > 0
    assert {key: store.get(key) for key in objects} == objects
    age(store)
    collect(database, store, dry_run=False)
    assert all(finding.holds for finding in examine_objects(database, store))


def test_packs_and_parts_of_manifests_are_no_garbage(make: Make, database: Database, store: MemoryStore) -> None:
    """Small files in packs, manifests that go on from those before: all that a later snapshot needs stays; a lost attempt's goes."""
    fill = "import os\nfor n in range(1200): os.makedirs(f'd{n // 50}', exist_ok=True); open(f'd{n // 50}/{n}', 'w').write(f'{n} x')"
    save = {"tool": "save_artifact", "arguments": {"path": "d3/170"}}
    stepper = make([python(fill), shell("echo more > d7/more"), save, finish()])
    job = stepper.run(stepper.submit())
    workspaces = WorkspaceStore(store, job.tenant_id, PlatformLimits())
    manifest = workspaces.manifest(job.workspace)
    packs = {entry.pack.sha256 for entry in manifest.entries if entry.pack is not None}
    parts = {chunk.place.blob for chunk in manifest.chunks}
    assert (len(packs), len(parts), manifest.files) == (1, 2, 1201)
    with tempfile.TemporaryDirectory() as folder:
        for n in range(20):
            Path(folder, str(n)).write_text(f"of an attempt that was lost {n}")
        workspaces.snapshot(Path(folder), None)
    age(store)
    assert collect(database, store, dry_run=False).objects == 2
    assert all(finding.holds for finding in examine_objects(database, store))
    for digest in packs | parts:
        key = BlobStore(store, job.tenant_id).key(digest)
        data = store.get(key)
        store.delete(key)
        for of_job in (None, job.id):
            broken = [finding for finding in examine_objects(database, store, job_id=of_job) if not finding.holds]
            assert broken, f"nothing says that {key} is missing"
        store.put(key, data)
    assert store.get(workspaces.entry(job.workspace, "d3/170").blob_key) == b"170 x"


def test_put_again_between_the_listing_and_the_deletion(database: Database, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    key = f"blobs/ten_1/ab/{'ab' * 32}"
    store.put(key, b"data")
    age(store)
    head = store.head

    def put_again(asked: str) -> object:
        store.put(asked, b"data")
        return head(asked)

    monkeypatch.setattr(store, "head", put_again)
    assert collect(database, store, dry_run=False).objects == 0
    assert store.get(key) == b"data"


def test_nothing_goes_while_a_snapshot_can_not_be_read(make: Make, database: Database, store: MemoryStore) -> None:
    stepper = make([shell("echo one > a"), finish()])
    job = stepper.run(stepper.submit())
    store.put("observations/x/y/z/1", b"lost")
    assert job.workspace is not None
    store.delete(f"blobs/{job.tenant_id}/{job.workspace[:2]}/{job.workspace}")
    age(store)
    with pytest.raises(Conflict, match="Nothing was deleted"):
        collect(database, store, dry_run=False)
    assert store.get("observations/x/y/z/1") == b"lost"


def test_old_idempotency_keys_go(make: Make, database: Database, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "BATCH", 2)
    tenant = make([finish()]).tenant_id
    with database.transaction() as tx:
        for n in range(5):
            row = {"tenant_id": tenant, "key": f"old{n}", "fingerprint": "f", "resource_id": "r"}
            old = func.now() - timedelta(seconds=IDEMPOTENCY_S + 60)
            tx.connection.execute(idempotency_keys.insert().values(row | {"created_at": old}))
        tx.connection.execute(idempotency_keys.insert().values(row | {"key": "new"}))
    assert collect(database, store, dry_run=True).idempotency_keys == 5
    assert collect(database, store, dry_run=False).idempotency_keys == 5
    with database.transaction() as tx:
        assert tx.connection.execute(select(idempotency_keys.c.key)).scalars().all() == ["new"]


def test_every_column_that_names_an_object_is_looked_at() -> None:
    """Whoever adds one has to teach `doctor.references` about it, or its objects are garbage after a day."""
    named = {
        f"{table.name}.{column.name}"
        for table in metadata.sorted_tables
        for column in table.columns
        if column.name.endswith(("blob_key", "observation_key", "workspace", "object_key", "digest"))
    }
    assert named == {
        "files.blob_key", "artifacts.blob_key", "calls.observation_key", "jobs.workspace", "jobs.first_workspace", "calls.workspace",
    }  # fmt: skip


def test_old_deliveries_of_a_tenants_webhook_go_and_those_of_a_jobs_own_stay(make: Make, database: Database, store: MemoryStore) -> None:
    stepper = make([finish(), finish(), finish()])
    own = {"url": "http://93.184.215.14/own", "events": ["job.succeeded"]}
    with database.transaction() as tx:
        kinds = [NoticeType.JOB_SUCCEEDED]
        webhooks.add(
            tx, webhook_id="wh_tenant", tenant_id=stepper.tenant_id, url="http://93.184.215.14/", events=kinds, secret=new_secret()
        )
    old, waiting, new = (stepper.run(stepper.submit(webhook=own)) for _ in range(3))
    with database.transaction() as tx:
        over = update(deliveries).values(status="delivered", due_at=None)
        ago = func.now() - timedelta(seconds=DELIVERY_LOG_S + 60)
        tx.connection.execute(over.values(finished_at=ago).where(deliveries.c.job_id == old.id))
        tx.connection.execute(over.values(finished_at=func.now()).where(deliveries.c.job_id == new.id))
    assert collect(database, store, dry_run=True).deliveries == 1
    assert collect(database, store, dry_run=False).deliveries == 1
    with database.transaction() as tx:
        left = tx.connection.execute(select(deliveries.c.job_id)).scalars().all()
    assert sorted(left) == sorted([old.id, waiting.id, waiting.id, new.id, new.id])
    assert [finding.name for finding in examination.examine(database) if not finding.holds] == ["webhooks.sealed"]  # there is no key here
