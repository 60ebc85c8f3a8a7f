"""Workspace snapshots: what is kept comes back exactly, what is hostile does no harm, what is unchanged costs nothing."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dualtrack.domain.errors import InvalidPath, ObjectMissing, StorageUnavailable, TooLarge
from dualtrack.domain.limits import PlatformLimits
from dualtrack.objects import trees
from dualtrack.objects.blobs import BlobCorrupt, BlobStore
from dualtrack.objects.file_digests import FileDigests, file_clock_ns
from dualtrack.objects.manifest import Entry, EntryKind, Manifest
from dualtrack.objects.workspace import InputFile, WorkspaceStore, WorkspaceTooLarge
from dualtrack.testing.objects import MemoryStore

LIMITS = PlatformLimits(workspace_bytes=10_000_000, workspace_files=500)

FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None  # many small files, so that hundreds of examples take seconds

State = dict[str, tuple[str, bytes | str | bool, bool]]


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def store(memory: MemoryStore) -> WorkspaceStore:
    return WorkspaceStore(memory, "ten_1", LIMITS)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


def state(directory: Path) -> State:
    """Everything there is in a directory, in terms of what a snapshot keeps; by plain means, not those under test."""
    found: State = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = ("symlink", str(path.readlink()), False)
        elif path.is_dir():
            found[name] = ("dir", True, False)
        elif path.is_file():
            found[name] = ("file", path.read_bytes(), os.access(path, os.X_OK) and bool(path.stat().st_mode & 0o100))
        else:
            found[name] = ("special", True, False)
    return found


def next_tick() -> None:
    """Wait until a change made now can be told from one made before, also where the system stamps files by its fine clock (Linux 6.13)."""
    start = time.time_ns()
    while file_clock_ns() <= start:
        pass


# --- round trips ---------------------------------------------------------------------------------------------------

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


def test_changed_paths_are_named(store: WorkspaceStore, work: Path) -> None:
    (work / "sub").mkdir()
    for name in ("kept", "edited", "removed", "sub/kept", "script"):
        (work / name).write_text("1")
    first = store.snapshot(work, None)
    assert first.changed == ("edited", "kept", "removed", "script", "sub/kept")
    assert (first.files, first.bytes) == (5, 5)
    (work / "edited").write_text("2")
    (work / "removed").unlink()
    (work / "sub" / "added").write_text("3")
    (work / "script").chmod(0o755)
    (work / "empty").mkdir()
    second = store.snapshot(work, first.digest)
    assert second.changed == ("edited", "removed", "script", "sub/added")
    assert store.snapshot(work, second.digest).changed == ()


def test_empty_workspaces(store: WorkspaceStore, work: Path) -> None:
    assert store.snapshot(work, None).digest == store.empty()
    (work / "a").write_text("1")
    store.restore(store.empty(), work)
    assert state(work) == {}


# --- only what changed ----------------------------------------------------------------------------------------------


def test_only_new_content_is_stored(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    for n in range(10):
        (work / f"{n}").write_text(f"content {n}")
    first = store.snapshot(work, None)
    assert memory.calls["put"] == 11
    (work / "3").write_text("content 4")
    (work / "5").write_text("new")
    store.snapshot(work, first.digest)
    assert memory.calls["put"] == 11 + 1 + 1  # the new content and the manifest


def test_a_fresh_process_asks_nothing_about_what_the_previous_snapshot_names(memory: MemoryStore, work: Path) -> None:
    for n in range(20):
        (work / f"{n}").write_text(f"content {n}")
    first = WorkspaceStore(memory, "ten_1", LIMITS).snapshot(work, None)
    other = MemoryStore()  # as a process sees it that has not met these blobs
    for key in memory.keys(""):
        other.put(key, memory.get(key))
    other.calls.clear()
    assert WorkspaceStore(other, "ten_1", LIMITS).snapshot(work, first.digest).digest == first.digest
    assert (other.calls["put"], other.calls["head"]) == (0, 0)


def test_unchanged_files_are_not_read_again(store: WorkspaceStore, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        (work / f"{n}").write_text(f"content {n}")
    next_tick()
    first = store.snapshot(work, None)
    opened: list[str] = []
    real = trees.regular_file

    def noting(parent: int, name: str) -> AbstractContextManager[tuple[int, os.stat_result]]:
        opened.append(name)
        return real(parent, name)

    monkeypatch.setattr(trees, "regular_file", noting)
    assert store.snapshot(work, first.digest).digest == first.digest
    assert opened == []
    (work / "3").write_text("other")
    store.snapshot(work, first.digest)
    assert opened == ["3"]


def test_a_change_that_hides_behind_size_and_mtime_is_seen(store: WorkspaceStore, work: Path) -> None:
    path = work / "a"
    path.write_text("aaaa")
    os.utime(path, (1, 1))
    next_tick()
    first = store.snapshot(work, None)
    path.write_text("bbbb")
    os.utime(path, (1, 1))
    second = store.snapshot(work, first.digest)
    assert second.changed == ("a",)
    assert store.entry(second.digest, "a").sha256 != store.entry(first.digest, "a").sha256


def test_changes_within_one_tick_of_the_file_clock_are_seen(store: WorkspaceStore, work: Path) -> None:
    previous = None
    seen = set()
    for n in range(200):
        (work / "a").write_text(f"{n:04}")
        previous = store.snapshot(work, previous).digest
        seen.add(previous)
    assert len(seen) == 200


def test_restoring_what_is_there_fetches_nothing(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    for n in range(5):
        (work / f"{n}").write_text(f"content {n}")
    digest = store.snapshot(work, None).digest
    before = {path.name: path.stat().st_ino for path in work.iterdir()}
    memory.calls.clear()
    store.restore(digest, work)
    assert memory.calls["stream"] == 0
    (work / "3").write_text("changed")
    store.restore(digest, work)
    assert memory.calls["stream"] == 1
    after = {path.name: path.stat().st_ino for path in work.iterdir()}
    assert {name for name in before if before[name] != after[name]} <= {"3"}


def test_only_so_many_file_digests_are_remembered(tmp_path: Path) -> None:
    digests = FileDigests(max_files=2)
    statuses = []
    for n in range(3):
        (tmp_path / str(n)).touch()
        statuses.append((tmp_path / str(n)).stat())
    next_tick()
    for status in statuses:
        digests.remember(status, "digest", read_ns=file_clock_ns())
    assert [digests.get(status) for status in statuses] == [None, "digest", "digest"]


# --- entries --------------------------------------------------------------------------------------------------------


def test_entries_of_a_snapshot(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    (work / "out").mkdir()
    (work / "out" / "report.csv").write_text("a,b\n")
    (work / "out" / "run").write_text("#!")
    (work / "out" / "run").chmod(0o700)
    (work / "link").symlink_to("out/report.csv")
    digest = store.snapshot(work, None).digest
    entry = store.entry(digest, "/workspace/out/report.csv")
    assert (entry.path, entry.size, entry.executable) == ("out/report.csv", 4, False)
    assert memory.get(entry.blob_key) == b"a,b\n"
    assert store.entry(digest, "./out/run").executable
    for path in ("out", "link", "absent", "."):
        with pytest.raises(ObjectMissing):
            store.entry(digest, path)
    with pytest.raises(InvalidPath):
        store.entry(digest, "../etc/passwd")
    with pytest.raises(ObjectMissing):
        store.entry(None, "out/report.csv")


def test_inputs_make_the_first_workspace_without_being_copied(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    blob = BlobStore(memory, "ten_1").put(b"orders")
    memory.calls.clear()
    digest = store.from_inputs([InputFile("data/orders.csv", blob.size, blob.sha256), InputFile("copy", blob.size, blob.sha256)])
    assert memory.calls["put"] == 1
    assert store.from_inputs([InputFile("copy", 6, blob.sha256), InputFile("data/orders.csv", 6, blob.sha256)]) == digest
    store.restore(digest, work)
    assert state(work) == {
        "copy": ("file", b"orders", False),
        "data": ("dir", True, False),
        "data/orders.csv": ("file", b"orders", False),
    }
    assert store.snapshot(work, digest).changed == ()


@pytest.mark.parametrize("paths", [["../a"], ["a", "a"], ["a", "a/b"], ["/a"], ["./a"], ["."], [""]])
def test_inputs_with_bad_paths_are_refused(store: WorkspaceStore, paths: list[str]) -> None:
    with pytest.raises(InvalidPath):
        store.from_inputs([InputFile(path, 1, "0" * 64) for path in paths])


def test_inputs_larger_than_a_workspace_are_refused(store: WorkspaceStore) -> None:
    with pytest.raises(TooLarge, match="input files") as caught:
        store.from_inputs([InputFile("a", LIMITS.workspace_bytes + 1, "0" * 64)])
    assert caught.value.param == "inputs"


# --- failures -------------------------------------------------------------------------------------------------------


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


def test_a_file_behind_a_link_is_asked_for_by_its_own_path(store: WorkspaceStore, work: Path) -> None:
    (work / "out").mkdir()
    (work / "out" / "file").touch()
    (work / "latest").symlink_to("/workspace/out")
    digest = store.snapshot(work, None).digest
    for path in ("latest", "latest/file"):
        with pytest.raises(ObjectMissing, match="symbolic link \\('latest' -> '/workspace/out'\\): give the path"):
            store.entry(digest, path)


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


# --- hostile leavings -----------------------------------------------------------------------------------------------


def skipped(store: WorkspaceStore, work: Path) -> dict[str, str]:
    return dict(store.snapshot(work, None).skipped)


def test_pipes_sockets_and_bad_names_are_skipped_reported_and_removed(store: WorkspaceStore, work: Path) -> None:
    (work / "sub").mkdir()
    os.mkfifo(work / "sub" / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        directory = os.open(work, os.O_RDONLY)
        os.mknod("sock", stat.S_IFSOCK | 0o600, dir_fd=directory)
        os.close(directory)
        del listener
    Path(os.fsdecode(os.fsencode(work) + b"/\xff\xfe")).write_text("x")
    (work / "line\nbreak").write_text("x")
    (work / " ").write_text("x")
    (work / "kept").write_text("x")
    snapshot = store.snapshot(work, None)
    assert dict(snapshot.skipped) == {
        "sub/pipe": "FIFO",
        "sock": "socket",
        "\\xff\\xfe": "name is not UTF-8",
        "line\nbreak": "name has control characters",
        " ": "name is blank",
    }
    store.restore(snapshot.digest, work)
    assert state(work) == {"kept": ("file", b"x", False), "sub": ("dir", True, False)}


TARGETS = [
    *("/etc/shadow", "/usr/bin/python3", "/workspace/real", "..", "../outside", "../../../../etc/shadow", "a/../../x", "sub/..", "."),
    *("../sibling", "deeper/x", "./x", "dangling", "link", "/nonexistent", "with space", "Größe\n", "x/" * 2000 + "x"),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target[:24])
def test_links_come_back_as_they_were_wherever_they_point(store: WorkspaceStore, work: Path, target: str) -> None:
    for path in (work / "link", work / "a" / "b" / "link"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    snapshot = store.snapshot(work, None)
    assert snapshot.skipped == ()
    assert (snapshot.files, snapshot.changed) == (0, ("a/b/link", "link"))
    store.restore(None, work)
    assert state(work) == {}
    for _ in range(2):
        store.restore(snapshot.digest, work)
        assert [os.readlink(path) for path in (work / "link", work / "a" / "b" / "link")] == [target, target]  # noqa: PTH115 - verbatim
    assert store.snapshot(work, snapshot.digest).digest == snapshot.digest


def test_links_that_can_not_be_kept_say_why(store: WorkspaceStore, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "bytes").symlink_to(os.fsdecode(b"\xff"))
    monkeypatch.setattr(trees, "MAX_TARGET_BYTES", 8)
    (work / "long").symlink_to("123456789")
    (work / "kept").symlink_to("12345678")
    assert skipped(store, work) == {"bytes": "link target is not UTF-8", "long": "link target is longer than 8 bytes"}


def test_links_are_never_followed(store: WorkspaceStore, memory: MemoryStore, work: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (work / "data").mkdir()
    (work / "data" / "secret").write_text("mine")
    digest = store.snapshot(work, None).digest
    (work / "data" / "secret").unlink()
    (work / "data").rmdir()
    (work / "data").symlink_to(outside)
    (work / "secret").symlink_to(outside / "secret")
    snapshot = store.snapshot(work, None)
    assert snapshot.files == 0
    assert not any(memory.get(key) == b"secret" for key in memory.keys(""))
    store.restore(digest, work)
    assert not (work / "data").is_symlink()
    assert (work / "data" / "secret").read_text() == "mine"
    assert (outside / "secret").read_text() == "secret"
    (work / "data" / "secret").unlink()
    (work / "data" / "secret").symlink_to(outside / "secret")
    store.restore(None, work)
    assert (outside / "secret").read_text() == "secret"


def test_sparse_bombs_are_refused_unread(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    with (work / "bomb").open("wb") as file:
        file.truncate(1 << 40)
    started = time.monotonic()
    with pytest.raises(WorkspaceTooLarge, match=str(LIMITS.workspace_bytes)):
        store.snapshot(work, None)
    assert time.monotonic() - started < 60
    assert memory.calls["put"] == 0
    store.restore(None, work)
    assert state(work) == {}


def test_too_many_entries_are_refused_and_cleared(store: WorkspaceStore, work: Path) -> None:
    (work / "kept").write_text("1")
    digest = store.snapshot(work, None).digest
    for n in range(LIMITS.workspace_files):
        (work / f"{n}").touch()
    with pytest.raises(WorkspaceTooLarge, match=str(LIMITS.workspace_files)) as caught:
        store.snapshot(work, digest)
    assert not caught.value.retryable
    store.restore(digest, work)
    assert state(work) == {"kept": ("file", b"1", False)}


def test_too_much_that_cannot_be_kept_is_refused(work: Path) -> None:
    store = WorkspaceStore(MemoryStore(), "ten_1", PlatformLimits(workspace_files=5000))
    for n in range(1001):
        os.mkfifo(work / f"{n}")
    with pytest.raises(WorkspaceTooLarge, match="can't be kept"):
        store.snapshot(work, None)
    store.restore(None, work)
    assert state(work) == {}


def test_very_deep_directories_are_skipped_and_removed(store: WorkspaceStore, work: Path) -> None:
    descriptor = os.open(work, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    snapshot = store.snapshot(work, None)
    assert [reason for _, reason in snapshot.skipped] == ["100 directories deep"]
    store.restore(None, work)
    assert state(work) == {}


def test_files_of_no_access_and_odd_modes_are_read_and_set_right(store: WorkspaceStore, work: Path) -> None:
    (work / "locked").mkdir()
    (work / "locked" / "secret").write_text("1")
    (work / "locked" / "secret").chmod(0)
    (work / "setuid").write_text("2")
    (work / "setuid").chmod(0o4755)
    (work / "locked").chmod(0)
    snapshot = store.snapshot(work, None)
    assert snapshot.files == 2
    assert snapshot.skipped == ()
    store.restore(snapshot.digest, work)
    assert (work / "locked" / "secret").read_text() == "1"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in work.rglob("*")}
    assert modes == {"locked": 0o755, "secret": 0o644, "setuid": 0o755}


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
