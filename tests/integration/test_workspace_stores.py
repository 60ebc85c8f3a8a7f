"""Workspaces in the real stores: what one executor saves, another one finds."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from dualtrack.domain.errors import ObjectMissing, StorageUnavailable
from dualtrack.domain.limits import PlatformLimits
from dualtrack.objects.factory import open_store
from dualtrack.objects.port import ObjectStore
from dualtrack.objects.s3 import PART_BYTES, S3Store
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.settings import FolderSettings, S3Settings

if TYPE_CHECKING:
    from dualtrack.testing.servers import S3Server

LIMITS = PlatformLimits()
Opener = Callable[[], ObjectStore]


@pytest.fixture(params=["folder", "s3"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same store anew each time, as another process would."""
    settings: FolderSettings | S3Settings = FolderSettings(path=tmp_path / "objects")
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        settings = S3Settings(
            endpoint_url=server.endpoint_url,
            bucket=f"workspaces-{secrets.token_hex(6)}",
            access_key_id=SecretStr(server.access_key_id),
            secret_access_key=SecretStr(server.secret_access_key),
        )
    opened: list[ObjectStore] = []

    def open_it() -> ObjectStore:
        opened.append(open_store(settings))
        return opened[-1]

    yield open_it
    for store in opened:
        if isinstance(store, S3Store):
            store.close()


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_another_executor_goes_on_from_a_snapshot(opener: Opener, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (one / "large").write_bytes(os.urandom(2 * PART_BYTES + 1))
    (one / "sub").mkdir()
    for n in range(50):
        (one / "sub" / f"{n}").write_bytes(os.urandom(n))
    first = WorkspaceStore(opener(), "ten_1", LIMITS).snapshot(one, None)

    other = WorkspaceStore(opener(), "ten_1", LIMITS)
    other.restore(first.digest, two)
    assert contents(two) == contents(one)
    (two / "sub" / "7").write_bytes(b"changed by the other")
    (two / "large").unlink()
    second = other.snapshot(two, first.digest)
    assert second.changed == ("large", "sub/7")

    third = WorkspaceStore(opener(), "ten_1", LIMITS)
    third.restore(second.digest, one)
    assert contents(one) == contents(two)
    third.restore(first.digest, two)
    assert len((two / "large").read_bytes()) == 2 * PART_BYTES + 1


def test_an_artifact_is_served_from_its_blob(opener: Opener, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "report.csv").write_text("a,b\n")
    store = opener()
    workspaces = WorkspaceStore(store, "ten_1", LIMITS)
    entry = workspaces.entry(workspaces.snapshot(tmp_path / "work", None).digest, "report.csv")
    assert b"".join(store.stream(entry.blob_key)) == b"a,b\n"


def test_a_missing_blob_is_told_and_leaves_no_half_file(opener: Opener, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a").write_text("a")
    (work / "b").write_text("b")
    store = opener()
    workspaces = WorkspaceStore(store, "ten_1", LIMITS)
    digest = workspaces.snapshot(work, None).digest
    store.delete(workspaces.entry(digest, "a").blob_key)
    workspaces.restore(None, work)
    with pytest.raises(ObjectMissing):
        workspaces.restore(digest, work)
    assert set(contents(work)) <= {"b"}


def test_a_lost_store_is_our_failure_not_the_commands(opener: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a").write_text("a")
    store = opener()

    def fail(*_: object, **__: object) -> None:
        raise StorageUnavailable("away")

    monkeypatch.setattr(store, "put", fail)
    with pytest.raises(StorageUnavailable):
        WorkspaceStore(store, "ten_1", LIMITS).snapshot(work, None)
