"""Workspaces of many files: contents in packs, manifests in chunks, so that requests and bytes follow what changed, not what there is."""

from __future__ import annotations

import hashlib
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualtrack.domain.errors import InvalidPath, ObjectMissing
from dualtrack.domain.limits import PlatformLimits
from dualtrack.objects import manifest_chunks, manifests, places, saving
from dualtrack.objects.blobs import BlobCorrupt, BlobStore
from dualtrack.objects.manifest import Entry, EntryKind, Manifest, Pack
from dualtrack.objects.manifests import Manifests
from dualtrack.objects.places import GAP_BYTES, SPAN_BYTES, Place
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.testing.objects import MemoryStore

from .conftest import contents

LIMITS = PlatformLimits()
FILES = 1100


@pytest.fixture
def tmp_path(fast_path: Path) -> Path:
    return fast_path


@pytest.fixture
def work(work: Path) -> Path:
    fill(work, FILES)
    return work


def fill(directory: Path, files: int) -> None:
    made = random.Random(1)
    for n in range(files):
        path = directory / f"d{n // 50:03}" / f"f{n:05}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made.randbytes(made.randrange(1500)))


def sizes(memory: MemoryStore) -> dict[str, int]:
    return {found.key: found.size for found in memory.stored("")}


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forget what this process knows of manifests, as another process would not know it."""

    def act() -> None:
        monkeypatch.setattr(manifests, "_cache", manifests._Cache())
        manifests._chunks.clear()

    return act


def test_thousands_of_files_take_few_requests(
    store: WorkspaceStore, memory: MemoryStore, work: Path, tmp_path: Path, forget: Callable[[], None]
) -> None:
    snapshot = store.snapshot(work, None)
    assert (snapshot.files, len(snapshot.changed), snapshot.skipped) == (FILES, FILES, ())
    assert memory.calls.total() <= 6
    assert sum(sizes(memory).values()) < sum(map(len, contents(work).values())) + 250 * FILES
    forget()
    memory.calls.clear()
    (tmp_path / "other").mkdir()
    store.restore(snapshot.digest, tmp_path / "other")
    assert contents(tmp_path / "other") == contents(work)
    assert memory.calls.total() <= 4
    assert store.snapshot(tmp_path / "other", snapshot.digest).digest == snapshot.digest


def test_a_change_costs_what_changed(
    store: WorkspaceStore, memory: MemoryStore, work: Path, tmp_path: Path, forget: Callable[[], None]
) -> None:
    first = store.snapshot(work, None)
    before = sizes(memory)
    memory.calls.clear()
    (work / "d010" / "f00500").write_text("changed")
    (work / "d015" / "new").write_text("added")
    (work / "d020" / "f01000").unlink()
    second = store.snapshot(work, first.digest)
    assert second.changed == ("d010/f00500", "d015/new", "d020/f01000")
    assert memory.calls["put"] == 3
    new = sum(size for key, size in sizes(memory).items() if key not in before)
    assert new < 0.6 * before[BlobStore(memory, "ten_1").key(first.digest)]
    # One that has the first snapshot, and knows its manifest, fetches two files and what is new of the manifest.
    (tmp_path / "other").mkdir()
    store.restore(first.digest, tmp_path / "other")
    memory.calls.clear()
    store.restore(second.digest, tmp_path / "other")
    assert contents(tmp_path / "other") == contents(work)
    assert memory.calls.total() == 2
    # Back again: of the packs only the parts that are needed.
    packs = {entry.pack for entry in store.manifest(first.digest).entries if entry.pack is not None}
    memory.calls.clear()
    store.restore(first.digest, tmp_path / "other")
    assert (memory.calls["part"], memory.calls.total()) == (2, 2)
    assert sum(pack.size for pack in packs) > 500_000


def test_what_is_stored_already_is_not_stored_again(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    first = store.snapshot(work, None)
    before = sizes(memory)
    memory.calls.clear()
    (work / "d000").rename(work / "moved")
    for n in range(100):
        (work / f"copy{n}").write_bytes((work / "d001" / "f00050").read_bytes())
    second = store.snapshot(work, first.digest)
    assert len(second.changed) == 50 + 50 + 100
    assert set(sizes(memory)) - set(before) == {BlobStore(memory, "ten_1").key(second.digest)}


def test_equal_contents_are_packed_once(store: WorkspaceStore, memory: MemoryStore, tmp_path: Path) -> None:
    for n in range(500):
        (tmp_path / f"{n}").write_bytes(b"x" * 1000 + bytes([n % 2]))
    store.snapshot(tmp_path, None)
    assert sum(sizes(memory).values()) < 2 * 1001 + 500 * 200


def test_another_jobs_same_files_make_mostly_the_same_packs(memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_PACK_MIN_BYTES", 2000)
    monkeypatch.setattr(saving, "_CUT", "0")
    store = WorkspaceStore(memory, "ten_1", LIMITS)
    for name in ("one", "two"):
        fill(tmp_path / name, 500)
    (tmp_path / "two" / "d000" / "a first file of its own").write_bytes(b"its own")
    first = store.snapshot(tmp_path / "one", None)
    packs = len(sizes(memory)) - 1
    assert packs > 10
    second = store.snapshot(tmp_path / "two", None)
    assert second.digest != first.digest
    assert len(sizes(memory)) - 1 - packs <= 3


def test_many_steps_keep_a_manifest_in_few_objects(store: WorkspaceStore, work: Path, forget: Callable[[], None]) -> None:
    digest = store.snapshot(work, None).digest
    for n in range(60):
        (work / f"d{n % 20:03}" / "log").write_text(str(n))
        digest = store.snapshot(work, digest).digest
    forget()
    manifest = store.manifest(digest)
    assert len({chunk.place.blob for chunk in manifest.chunks}) <= manifest_chunks.MAX_BLOBS + 1
    assert manifest.files == FILES + 20
    assert [entry.path for entry in manifest.entries] == sorted(entry.path for entry in manifest.entries)


def test_an_old_manifest_of_single_blobs_is_gone_on_from(store: WorkspaceStore, memory: MemoryStore, work: Path, tmp_path: Path) -> None:
    blobs = BlobStore(memory, "ten_1")
    entries = [Entry(path, EntryKind.FILE, len(data), blobs.put(data).sha256) for path, data in contents(work).items()]
    old = blobs.put(Manifest.of(entries).encode()).sha256
    (tmp_path / "other").mkdir()
    store.restore(old, tmp_path / "other")
    assert contents(tmp_path / "other") == contents(work)
    (work / "d000" / "f00000").write_text("changed")
    memory.calls.clear()
    new = store.snapshot(work, old)
    assert new.changed == ("d000/f00000",)
    assert memory.calls["put"] == 2
    store.restore(new.digest, tmp_path / "other")
    assert contents(tmp_path / "other") == contents(work)


def test_a_file_out_of_a_pack_becomes_an_artifact(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    digest = store.snapshot(work, None).digest
    entry = store.entry(digest, "d000/f00007")
    assert memory.get(entry.blob_key) == (work / "d000" / "f00007").read_bytes()
    memory.calls.clear()
    assert store.entry(digest, "d000/f00007") == entry
    assert memory.calls.total() == 0


def test_files_out_of_packs_are_merged_without_being_copied(store: WorkspaceStore, memory: MemoryStore, work: Path, tmp_path: Path) -> None:
    child = store.snapshot(work, None).digest
    (tmp_path / "parent").mkdir()
    (tmp_path / "parent" / "own").write_text("own")
    parent = store.snapshot(tmp_path / "parent", None).digest
    memory.calls.clear()
    merged = store.merged(parent, child, ["d000/f00007", "d001/f00055"])
    assert (memory.calls["put"], memory.calls.total()) == (1, 1)
    store.restore(merged, tmp_path / "parent")
    expected = {path: contents(work)[path] for path in ("d000/f00007", "d001/f00055")} | {"own": b"own"}
    assert contents(tmp_path / "parent") == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_out_of_packs_belong_to_the_owner(store: WorkspaceStore, work: Path, tmp_path: Path) -> None:
    (work / "d000" / "f00003").chmod(0o700)
    digest = store.snapshot(work, None).digest
    (tmp_path / "other").mkdir()
    store.restore(digest, tmp_path / "other", owner=(65534, 65534))
    found = [path.lstat() for path in (tmp_path / "other").rglob("*")]
    assert {(status.st_uid, status.st_gid) for status in found} == {(65534, 65534)}
    assert {stat.S_IMODE(status.st_mode) for status in found} == {0o755, 0o644}


@pytest.mark.parametrize("cut", [0, 1])
def test_chosen_names_can_not_make_chunks_tiny_or_endless(monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    monkeypatch.setattr("zlib.crc32", lambda _: cut)  # as if each name had been chosen so
    entries = [Entry(f"{n:06}", EntryKind.FILE, 1, "0" * 64) for n in range(5000)]
    lengths = [len(chunk.entries) for chunk in manifest_chunks.encode(entries, ())[1].chunks]
    assert sum(lengths) == 5000
    assert min(lengths[:-1]) >= manifest_chunks.MIN_CHUNK_ENTRIES
    assert max(lengths) <= manifest_chunks.MAX_CHUNK_ENTRIES


def test_a_lost_or_damaged_pack_is_told_by_a_files_path(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    digest = store.snapshot(work, None).digest
    pack = store.manifest(digest).by_path["d000/f00007"].pack
    assert pack is not None
    key = BlobStore(memory, "ten_1").key(pack.sha256)
    data = memory.get(key)
    right = contents(work)
    store.restore(None, work)
    memory.put(key, bytes(len(data)))
    with pytest.raises(BlobCorrupt, match=r"content of 'd0.*' in the object store is damaged"):
        store.restore(digest, work)
    with pytest.raises(BlobCorrupt, match="content of 'd000/f00008'"):
        store.entry(digest, "d000/f00008")
    memory.delete(key)
    for ask in (lambda: store.restore(digest, work), lambda: store.entry(digest, "d000/f00008")):
        with pytest.raises(ObjectMissing, match=r"content of 'd0.*' is missing") as caught:
            ask()
        assert "ten_1" not in caught.value.message
    assert all(right[path] == found for path, found in contents(work).items())
    memory.put(key, data)
    store.restore(digest, work)
    assert contents(work) == right


def test_a_lost_part_of_a_manifest_is_told(store: WorkspaceStore, memory: MemoryStore, work: Path, forget: Callable[[], None]) -> None:
    first = store.snapshot(work, None).digest
    (work / "new").write_text("1")
    second = store.snapshot(work, first).digest
    forget()
    key = BlobStore(memory, "ten_1").key(first)
    data = memory.get(key)
    memory.put(key, bytes(len(data)))
    with pytest.raises(BlobCorrupt, match="part of the manifest is damaged"):
        store.manifest(second)
    memory.delete(key)
    with pytest.raises(ObjectMissing, match=f"workspace {second[:12]} is missing"):
        store.manifest(second)


# --- the format -----------------------------------------------------------------------------------------------------


def chunked(*entries: Entry) -> bytes:
    return manifest_chunks.encode(entries, ())[0]


FILE = Entry("d/f", EntryKind.FILE, 3, "0" * 64, pack=Pack("1" * 64, 10), start=7)


def test_the_stored_format() -> None:
    item = b'{"pack":0,"path":"d/f","sha256":"' + b"0" * 64 + b'","size":3,"start":7,"type":"file"}'
    chunk = b'{"entries":[{"path":"d","type":"dir"},' + item + b'],"packs":[["' + b"1" * 64 + b'",10]]}'
    digest = hashlib.sha256(chunk).hexdigest().encode()
    header = b'{"chunks":[{"sha256":"%s","size":%d,"start":0}]}' % (digest, len(chunk))
    assert chunked(Entry("d", EntryKind.DIRECTORY), FILE) == b"dualtrack-manifest 2 %010d\n" % len(header) + header + chunk


@pytest.mark.parametrize(
    "entries",
    [
        (FILE,),
        (Entry("d", EntryKind.SYMLINK, target="/etc"), FILE),
        (Entry("d", EntryKind.DIRECTORY), FILE, FILE),
        (Entry("b", EntryKind.DIRECTORY), Entry("a", EntryKind.DIRECTORY)),
        (Entry("..", EntryKind.DIRECTORY), Entry("../f", EntryKind.FILE)),
        (Entry("/etc", EntryKind.DIRECTORY),),
        (Entry(".", EntryKind.DIRECTORY),),
    ],
    ids=["no directory", "below a link", "twice", "order", "outside", "absolute", "root"],
)
def test_manifests_that_would_reach_outside_are_refused(
    memory: MemoryStore, entries: tuple[Entry, ...], forget: Callable[[], None]
) -> None:
    forget()
    blobs = BlobStore(memory, "ten_1")
    with pytest.raises((InvalidPath, BlobCorrupt)):
        Manifests(blobs).read(blobs.put(chunked(*entries)).sha256)


@pytest.mark.parametrize("data", [b"", b"x", b"{}", b"nonsense\n" * 10, b"0000000009\n{}", b"9999999999\n" + b"[" * 100])
def test_damaged_manifests_are_refused(memory: MemoryStore, data: bytes) -> None:
    blobs = BlobStore(memory, "ten_1")
    with pytest.raises(BlobCorrupt, match="no workspace manifest"):
        Manifests(blobs).read(blobs.put(b"dualtrack-manifest 2 " + data).sha256)


names = st.text(st.sampled_from("ab-/é"), min_size=1, max_size=6).filter(lambda name: all(name.split("/")))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(names, st.integers(0, 3), max_size=12), min_size=1, max_size=6))
def test_any_row_of_manifests_reads_back(rows: list[dict[str, int]]) -> None:
    memory = MemoryStore()
    blobs = BlobStore(memory, "ten_1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_chunks, "CHUNK_ENTRIES", 2)
        patch.setattr(manifest_chunks, "MIN_CHUNK_ENTRIES", 1)
        patch.setattr(manifest_chunks, "MAX_CHUNK_ENTRIES", 3)
        patch.setattr(manifest_chunks, "MAX_BLOBS", 2)
        patch.setattr(manifests, "CHUNKED_FROM", 1)
        before = Manifest(())
        for row in rows:
            files = {path: n for path, n in row.items() if not any(other.startswith(f"{path}/") for other in row)}
            entries = (
                Entry(path, EntryKind.FILE, n, f"{n}" * 64, pack=Pack(f"{n}" * 64, 9) if n % 2 else None, start=n if n % 2 else 0)
                for path, n in files.items()
            )
            manifest = Manifest.of(entries)
            digest = Manifests(blobs).put(manifest, before)
            patch.setattr(manifests, "_cache", manifests._Cache())
            manifests._chunks.clear()
            before = Manifests(blobs).get(digest)
            assert before == manifest
            assert [(entry.pack, entry.start) for entry in before.entries] == [(entry.pack, entry.start) for entry in manifest.entries]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 50 * GAP_BYTES), st.integers(0, 2 * SPAN_BYTES)), max_size=30))
def test_spans_cover_every_place_once(wanted: list[tuple[str, int, int]]) -> None:
    found = [Place(blob, start, size) for blob, start, size in wanted]
    made = places.spans(found, lambda place: place)
    assert sorted((item.blob, item.start, item.size) for span in made for _, item in span.items) == sorted(wanted)
    for span in made:
        assert span.size <= max([SPAN_BYTES, *(place.size for place, _ in span.items)])
        for place, _ in span.items:
            assert place.blob == span.blob
            assert span.start <= place.start
            assert place.start + place.size <= span.start + span.size
