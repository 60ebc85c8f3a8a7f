"""What is kept comes back exactly, over whatever was there; the digest follows the content only."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dualtrack.objects.manifest import Entry, EntryKind, Manifest
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.testing.objects import MemoryStore

from .conftest import LIMITS, state

FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None  # many small files, so that hundreds of examples take seconds

names = st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="/"), min_size=1, max_size=12).filter(
    lambda name: name not in {".", ".."} and name.strip() and len(name.encode()) < 100
)
leaves = st.one_of(
    st.tuples(st.just("file"), st.binary(max_size=40), st.booleans()),
    st.tuples(st.just("symlink"), names, st.just(False)),
)
trees_of = st.recursive(leaves, lambda inside: st.dictionaries(names, inside, max_size=4), max_leaves=12)
workspaces = st.dictionaries(names, trees_of, max_size=5)


def build(directory: Path, tree: dict) -> None:  # type: ignore[type-arg]
    for name, item in tree.items():
        path = directory / name
        if isinstance(item, dict):
            path.mkdir()
            build(path, item)
        elif item[0] == "file":
            path.write_bytes(item[1])
            path.chmod(0o755 if item[2] else 0o600)
        else:
            path.symlink_to(item[1])


many_empty = {f"{n}": ("file", b"", False) for n in range(20)}  # packed


@settings(max_examples=60, deadline=None)
@given(workspaces, workspaces)
@example({"0": ("file", b"", False)}, many_empty)
@example(many_empty, {"0": ("file", b"", False)})
def test_any_workspace_is_restored_over_any_other(first: dict, second: dict) -> None:  # type: ignore[type-arg]
    with tempfile.TemporaryDirectory(dir=FAST) as folder:
        store = WorkspaceStore(MemoryStore(), "ten_1", LIMITS)
        a, b = Path(folder, "a"), Path(folder, "b")
        for path, tree in ((a, first), (b, second)):
            path.mkdir()
            build(path, tree)
        expected = state(a)
        one, two = store.snapshot(a, None), store.snapshot(b, None)
        assert one.skipped == two.skipped == ()
        assert (store.manifest(one.digest) == store.manifest(two.digest)) == (expected == state(b))
        store.restore(one.digest, b)
        assert state(b) == expected
        # Not the id: a content that the other snapshot has in a pack stays there.
        assert store.manifest(store.snapshot(b, two.digest).digest) == store.manifest(one.digest)
        store.restore(two.digest, a)
        store.restore(one.digest, a)
        assert state(a) == expected
        store.restore(None, a)
        assert state(a) == {}


@given(workspaces)
@settings(max_examples=40, deadline=None)
def test_a_manifest_reads_back_as_it_was_written(tree: dict) -> None:  # type: ignore[type-arg]
    with tempfile.TemporaryDirectory(dir=FAST) as folder:
        build(Path(folder), tree)
        store = WorkspaceStore(MemoryStore(), "ten_1", LIMITS)
        manifest = store.manifest(store.snapshot(Path(folder), None).digest)
    again = Manifest.decode(manifest.encode())
    assert again == manifest
    assert again.encode() == manifest.encode()


def test_the_digest_does_not_depend_on_times_order_or_place(store: WorkspaceStore, tmp_path: Path) -> None:
    for name, order in (("one", "ab"), ("two", "ba")):
        for letter in order:
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / letter).write_text(letter)
    os.utime(tmp_path / "one" / "a", (1, 1))
    assert store.snapshot(tmp_path / "one", None).digest == store.snapshot(tmp_path / "two", None).digest


def test_empty_workspaces(store: WorkspaceStore, work: Path) -> None:
    assert store.snapshot(work, None).digest == store.empty()
    (work / "a").write_text("1")
    store.restore(store.empty(), work)
    assert state(work) == {}


def test_two_names_of_one_file_become_two_files(store: WorkspaceStore, work: Path) -> None:
    (work / "a").write_text("1")
    (work / "b").hardlink_to(work / "a")
    digest = store.snapshot(work, None).digest
    store.restore(digest, work)
    (work / "a").write_text("2")
    assert (work / "b").read_text() == "1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_is_restored_belongs_to_the_owner(store: WorkspaceStore, work: Path) -> None:
    (work / "sub").mkdir()
    (work / "sub" / "file").write_text("1")
    (work / "link").symlink_to("sub/file")
    digest = store.snapshot(work, None).digest
    store.restore(None, work)
    store.restore(digest, work, owner=(65534, 65534))
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in work.rglob("*")} == {(65534, 65534)}


def test_the_kinds_of_entries_are_part_of_the_stored_format() -> None:
    manifest = Manifest.of([Entry("a/b", EntryKind.FILE, 1, "0" * 64, executable=True), Entry("l", EntryKind.SYMLINK, target="a")])
    assert manifest.encode() == (
        b'{"entries":[{"path":"a","type":"dir"},{"executable":true,"path":"a/b","sha256":"' + b"0" * 64 + b'","size":1,"type":"file"},'
        b'{"path":"l","target":"a","type":"symlink"}],"version":1}'
    )
