"""Content-addressed blobs: stored once, checked when read."""

from __future__ import annotations

import hashlib
import io
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualtrack.domain.errors import InvalidPath, ObjectMissing
from dualtrack.domain.limits import FRESH_S
from dualtrack.objects import blobs
from dualtrack.objects.blobs import BlobCorrupt, BlobStore, SourceChanged
from dualtrack.testing.objects import MemoryStore


@given(st.binary(max_size=2000))
def test_what_was_put_comes_back_by_its_digest(data: bytes) -> None:
    store = BlobStore(MemoryStore(), "ten_1")
    blob = store.put(data)
    assert blob.sha256 == hashlib.sha256(data).hexdigest()
    assert blob.key == f"blobs/ten_1/{blob.sha256[:2]}/{blob.sha256}"
    assert blob.size == len(data)
    assert store.get(blob.sha256) == data
    assert b"".join(store.stream(blob.sha256)) == data
    assert store.put_file(io.BytesIO(data)) == blob


def test_the_same_bytes_are_stored_once_per_tenant() -> None:
    memory = MemoryStore()
    for _ in range(3):
        BlobStore(memory, "ten_1").put(b"data")
    assert (memory.calls["put"], memory.calls["head"]) == (1, 0)
    other = BlobStore(memory, "ten_2")
    digest = hashlib.sha256(b"data").hexdigest()
    with pytest.raises(ObjectMissing):
        other.get(digest)
    assert not other.has(digest)
    other.put(b"data")
    assert memory.calls["put"] == 2


def test_what_another_process_stored_is_not_stored_again() -> None:
    memory = MemoryStore()
    key = BlobStore(memory, "ten_1").key(hashlib.sha256(b"data").hexdigest())
    memory.put(key, b"data")
    BlobStore(memory, "ten_1").put_file(io.BytesIO(b"data"))
    assert memory.calls["put"] == 1


def test_large_blobs_are_asked_for_before_they_are_stored() -> None:
    memory = MemoryStore()
    data = bytes(blobs.SMALL_BYTES + 1)
    memory.put(BlobStore(memory, "ten_1").key(hashlib.sha256(data).hexdigest()), data)
    BlobStore(memory, "ten_1").put(data)
    assert (memory.calls["put"], memory.calls["head"]) == (1, 1)


def test_only_so_many_digests_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "KNOWN_BLOBS", 2)
    memory = MemoryStore()
    store = BlobStore(memory, "ten_1")
    first, *_ = [store.put(bytes([n])).sha256 for n in range(3)]
    heads = memory.calls["head"]
    assert store.has(first)
    assert memory.calls["head"] == heads + 1


def test_damage_is_found() -> None:
    memory = MemoryStore()
    store = BlobStore(memory, "ten_1")
    blob = store.put(b"data")
    memory.put(blob.key, b"dat4")
    with pytest.raises(BlobCorrupt, match=blob.sha256):
        store.get(blob.sha256)
    with pytest.raises(BlobCorrupt):
        list(store.stream(blob.sha256))


def test_a_missing_blob_is_told_before_the_first_chunk() -> None:
    with pytest.raises(ObjectMissing):
        BlobStore(MemoryStore(), "ten_1").stream("0" * 64)


@pytest.mark.parametrize("digest", ["", "abc", "0" * 63, "0" * 65, "A" * 64, "../" + "0" * 61])
def test_what_is_no_digest_is_refused(digest: str) -> None:
    with pytest.raises(InvalidPath):
        BlobStore(MemoryStore(), "ten_1").get(digest)


def test_a_file_that_changes_while_it_is_stored_is_not_stored() -> None:
    class Changing(io.BytesIO):
        reads = 0

        def read(self, size: int | None = -1) -> bytes:
            self.reads += 1
            data = super().read(size)
            return data if self.reads <= 2 else data.replace(b"a", b"b")

    memory = MemoryStore()
    with pytest.raises(SourceChanged):
        BlobStore(memory, "ten_1").put_file(Changing(b"aaaa"))
    assert list(memory.keys("")) == []


def test_a_file_is_stored_from_its_position() -> None:
    store = BlobStore(MemoryStore(), "ten_1")
    file = io.BytesIO(b"skipped kept")
    file.seek(8)
    assert store.get(store.put_file(file).sha256) == b"kept"


def test_what_is_old_and_may_be_garbage_is_put_again(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemoryStore()
    digest = hashlib.sha256(b"data").hexdigest()
    key = BlobStore(memory, "ten_1").key(digest)
    memory.put(key, b"data")
    memory.put_at[key] -= timedelta(seconds=FRESH_S + 1)
    store = BlobStore(memory, "ten_1")
    assert not store.has(digest)
    store.put_file(io.BytesIO(b"data"))
    assert memory.calls["put"] == 2
    assert datetime.now(UTC) - memory.put_at[key] < timedelta(minutes=1)
    assert store.has(digest)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + FRESH_S + 1)  # this process knew it for long
    memory.put_at[key] -= timedelta(seconds=FRESH_S + 1)
    assert not store.has(digest)
    store.remember([digest])  # a recorded snapshot names it: it stays
    monkeypatch.setattr(time, "monotonic", lambda: now + 100 * FRESH_S)
    assert store.has(digest)
