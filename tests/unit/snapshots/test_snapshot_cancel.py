"""Saving and restoring a workspace stop soon after they are told to, wherever they are; nothing half-done is taken for done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from dualtrack.domain.errors import Cancelled
from dualtrack.domain.limits import PlatformLimits
from dualtrack.engine.place import Place
from dualtrack.objects import workspace
from dualtrack.objects.blobs import BlobStore
from dualtrack.objects.cancelling import GRACE_S, interruptible
from dualtrack.objects.file_digests import FileDigests
from dualtrack.objects.parallel import PARALLEL
from dualtrack.objects.port import ObjectInfo
from dualtrack.objects.workdirs import Workdirs
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.sandbox.sessions import EndReason
from dualtrack.settings import SandboxSettings
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.sandbox import FakeSessions

from .conftest import contents

LIMITS = PlatformLimits()
LARGE = 70_000  # an object of its own
SMALL = 2_000  # into a pack
MIB = 1024 * 1024


class CancellingStore(MemoryStore):
    """Sets `cancel` as the n-th request of a kind comes, and counts those that come after it."""

    def __init__(self) -> None:
        super().__init__()
        self.cancel = threading.Event()
        self.at = {"put": 0, "part": 0, "stream": 0}
        self.after = 0
        self._counting = threading.Lock()

    def put(self, key: str, data: bytes | BinaryIO, *, content_type: str = "application/octet-stream") -> ObjectInfo:
        self._seen("put")
        return super().put(key, data, content_type=content_type)

    def part(self, key: str, *, start: int, size: int) -> bytes:
        self._seen("part")
        return super().part(key, start=start, size=size)

    def stream(self, key: str, *, chunk_bytes: int = 262_144) -> Iterator[bytes]:
        self._seen("stream")
        return super().stream(key, chunk_bytes=chunk_bytes)

    def _seen(self, kind: str) -> None:
        with self._counting:
            self.after += self.cancel.is_set()
            self.at[kind] -= 1
            if self.at[kind] == 0:
                self.cancel.set()


@pytest.fixture
def tmp_path(fast_path: Path) -> Path:
    return fast_path


@pytest.fixture
def memory() -> CancellingStore:
    return CancellingStore()


@pytest.fixture(autouse=True)
def digests(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forgets the digests of files, as a process that has just started."""

    def forget() -> None:
        monkeypatch.setattr(workspace, "_digests", FileDigests())

    forget()
    return forget


def fill(directory: Path, files: int, size: int) -> None:
    directory.mkdir(exist_ok=True)
    for n in range(files):
        (directory / f"{n:05}").write_bytes(n.to_bytes(8, "big") * (size // 8))


@pytest.mark.parametrize(("files", "size"), [(300, LARGE), (2_000, 4 * SMALL)], ids=["alone", "packed"])
def test_a_snapshot_stops_between_two_requests(
    store: WorkspaceStore, memory: CancellingStore, work: Path, tmp_path: Path, files: int, size: int
) -> None:
    fill(work, files, size)
    memory.at["put"] = 3
    with pytest.raises(Cancelled):
        store.snapshot(work, None, cancel=memory.cancel)
    assert memory.after <= PARALLEL
    assert not any(memory.get(key).startswith((b'{"', b"dualtrack-manifest")) for key in memory.keys("blobs/")), "no manifest"

    digest = store.snapshot(work, None, cancel=threading.Event()).digest
    (tmp_path / "other").mkdir()
    store.restore(digest, tmp_path / "other")
    assert contents(tmp_path / "other") == contents(work)


def test_a_snapshot_that_is_cancelled_before_it_begins_stores_nothing(store: WorkspaceStore, memory: CancellingStore, work: Path) -> None:
    fill(work, 3, SMALL)
    memory.cancel.set()
    with pytest.raises(Cancelled):
        store.snapshot(work, None, cancel=memory.cancel)
    assert not memory.calls


@pytest.mark.parametrize("stage", ["hashing", "storing"])
def test_a_large_file_is_given_up_in_the_middle(memory: CancellingStore, tmp_path: Path, stage: str) -> None:
    (tmp_path / "large").write_bytes(bytes(20 * MIB))
    if stage == "storing":
        memory.at["put"] = 1
    asked = 0

    def check() -> None:
        nonlocal asked
        asked += 1
        if memory.cancel.is_set() or (stage == "hashing" and asked > 5):
            raise Cancelled("the test says so")

    with (tmp_path / "large").open("rb") as file, pytest.raises(Cancelled):
        BlobStore(memory, "ten_1").put_file(file, check)
    assert list(memory.keys("")) == []
    assert (stage == "hashing") == (asked < 20), "looked at for every piece"


@pytest.mark.parametrize(("files", "size", "kind"), [(300, LARGE, "stream"), (2_000, 4 * SMALL, "part")], ids=["alone", "packed"])
def test_a_restore_stops_between_two_requests_and_the_next_one_makes_it_right(
    store: WorkspaceStore,
    memory: CancellingStore,
    work: Path,
    tmp_path: Path,
    files: int,
    size: int,
    kind: str,
    digests: Callable[[], None],
) -> None:
    fill(work, files, size)
    digest = store.snapshot(work, None).digest
    other = work.with_name("other")
    fill(other, 5, SMALL + 8)
    memory.at[kind] = 2
    memory.after = 0
    digests()
    with pytest.raises(Cancelled):
        store.restore(digest, other, cancel=memory.cancel)
    assert memory.after <= PARALLEL
    assert len(contents(other)) < files
    assert not list(other.glob(".restoring-*"))

    store.restore(digest, other)
    assert contents(other) == contents(work)


def test_a_restore_stops_while_it_only_looks_and_removes(store: WorkspaceStore, memory: CancellingStore, work: Path) -> None:
    fill(work, 200, SMALL)

    class Soon(threading.Event):
        """Set once it has been looked at so often."""

        left = 250  # beyond the listing, amid the removals

        def is_set(self) -> bool:
            self.left -= 1
            return self.left < 0

    with pytest.raises(Cancelled):
        store.restore(None, work, cancel=Soon())
    assert 0 < len(contents(work)) < 200
    store.restore(None, work)
    assert contents(work) == {}


def test_nobody_goes_on_with_a_half_restored_place(store: WorkspaceStore, memory: CancellingStore, work: Path, tmp_path: Path) -> None:
    fill(work, 100, LARGE)
    digest = store.snapshot(work, None).digest
    with Workdirs(SandboxSettings(workspaces=tmp_path / "workspaces")) as workdirs, workdirs.lease("job_1") as directory:
        sessions = FakeSessions(tmp_path / "workspaces" / "fakes", iter(()))
        place = Place(sessions, directory, 0)
        memory.at["stream"] = 2
        with pytest.raises(Cancelled):
            place.prepare(store, digest, cancel=memory.cancel)
        assert directory.size == 100 * (LARGE // 8 * 8), "what may be there counts"
        assert len(contents(directory.path)) < 100
        place.prepare(store, digest, cancel=threading.Event())
        assert contents(directory.path) == contents(work)
        place.end(EndReason.DONE)


class HangingStore(MemoryStore):
    """Answers nothing from its n-th request on, until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 10**9
        self.hangs = threading.Event()
        self.released = threading.Event()
        self.answered = threading.Semaphore(0)

    def _called(self, method: str, key: str | None = None) -> None:
        super()._called(method, key)
        self.left -= 1
        if self.left <= 0:
            self.hangs.set()
            self.released.wait(120)
            self.answered.release()


@pytest.mark.parametrize("size", [LARGE, SMALL])
def test_a_store_that_does_not_answer_holds_up_no_cancel(tmp_path: Path, work: Path, digests: Callable[[], None], size: int) -> None:
    hanging, cancel = HangingStore(), threading.Event()
    store = WorkspaceStore(hanging, "ten_1", LIMITS)
    fill(work, 40, size)
    digest = store.snapshot(work, None).digest
    digests()
    other = tmp_path / "other"
    other.mkdir()
    hanging.left = 1

    def cancel_then() -> None:
        hanging.hangs.wait(60)
        cancel.set()

    threading.Thread(target=cancel_then).start()
    started = time.monotonic()
    with pytest.raises(Cancelled):
        interruptible(lambda: store.restore(digest, other, cancel=cancel), cancel)
    assert time.monotonic() - started < GRACE_S + 60
    hanging.released.set()
    assert hanging.answered.acquire(timeout=60)
    for thread in threading.enumerate():
        if thread.name.startswith("workspace"):
            thread.join(60)
    assert list(other.iterdir()) == [], "what was left to end by itself writes nothing any more"


def test_work_that_is_not_cancelled_gives_what_it_gives() -> None:
    never_set = threading.Event()
    assert interruptible(lambda: 42, never_set) == 42

    def fails() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        interruptible(fails, never_set)
