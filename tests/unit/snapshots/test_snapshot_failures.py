"""Contents that are damaged, missing or another tenant's, and a store that is down: told plainly, and nothing half-done is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualtrack.domain.errors import ObjectMissing, StorageUnavailable
from dualtrack.objects.blobs import BlobCorrupt, BlobStore
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.testing.objects import MemoryStore

from .conftest import LIMITS, state


def test_a_damaged_blob_leaves_no_file(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    (work / "a").write_text("right")
    digest = store.snapshot(work, None).digest
    entry = store.entry(digest, "a")
    memory.put(entry.blob_key, b"wrong")
    (work / "a").unlink()
    with pytest.raises(BlobCorrupt, match="content of 'a' in the object store is damaged"):
        store.restore(digest, work)
    assert state(work) == {}
    memory.put(entry.blob_key, b"right")
    store.restore(digest, work)
    assert (work / "a").read_text() == "right"


def test_what_is_missing_is_told_by_its_path_not_by_tenant_and_key(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    (work / "data").mkdir()
    (work / "data" / "orders.csv").write_text("a,b")
    digest = store.snapshot(work, None).digest
    memory.delete(store.entry(digest, "data/orders.csv").blob_key)
    (work / "data" / "orders.csv").unlink()
    with pytest.raises(ObjectMissing, match=r"content of 'data/orders\.csv' is missing from the object store") as content:
        store.restore(digest, work)
    with pytest.raises(ObjectMissing, match="workspace 000000000000 is missing") as manifest:
        store.entry("0" * 64, "data/orders.csv")
    for caught in (content, manifest):
        assert not caught.value.retryable
        assert "ten_1" not in caught.value.message
        assert "blobs/" not in caught.value.message
    assert state(work) == {"data": ("dir", True, False)}


def test_a_store_that_is_down_fails_the_snapshot_and_the_next_one_succeeds(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    for n in range(30):
        (work / f"{n}").write_text(f"content {n}")
    memory.unavailable = True
    with pytest.raises(StorageUnavailable):
        store.snapshot(work, None)
    memory.unavailable = False
    digest = store.snapshot(work, None).digest
    store.restore(None, work)
    store.restore(digest, work)
    assert (work / "29").read_text() == "content 29"


def test_a_snapshot_that_is_not_there(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    with pytest.raises(ObjectMissing):
        store.restore("0" * 64, work)
    digest = BlobStore(memory, "ten_1").put(b'{"version":99,"entries":[]}').sha256
    with pytest.raises(BlobCorrupt, match="newer release"):
        store.restore(digest, work)


def test_another_tenants_snapshot_is_not_there(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    (work / "a").write_text("1")
    digest = store.snapshot(work, None).digest
    with pytest.raises(ObjectMissing):
        WorkspaceStore(memory, "ten_2", LIMITS).manifest(digest)
