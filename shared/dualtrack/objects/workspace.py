"""Workspace snapshots: a manifest (itself a blob, whose digest is the snapshot's id) and a blob for each file's content.

A snapshot holds directories, regular files (content, and whether they are executable) and symbolic links, whose targets are
text that nothing here ever follows: they mean something inside a sandbox only. Owners, times and all other modes are not kept:
directories come back as 755, files as 644 or 755. Nothing else a command may leave behind is kept: FIFOs, sockets, devices, names
that are not UTF-8, have control characters or lie too deep; `Snapshot.skipped` tells of them.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from dualtrack.domain.errors import DualtrackError, InfrastructureError, InvalidPath, ObjectMissing, TooLarge
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.paths import workspace_path
from dualtrack.objects import nofollow, trees
from dualtrack.objects.blobs import BlobCorrupt, BlobStore
from dualtrack.objects.file_digests import FileDigests, file_clock_ns
from dualtrack.objects.manifest import EMPTY, Entry, EntryKind, Manifest, parents
from dualtrack.objects.port import ObjectStore
from dualtrack.objects.restoring import Restoring
from dualtrack.objects.trees import Found, WorkspaceTooLarge

__all__ = ["FileEntry", "InputFile", "Snapshot", "WorkspaceStore", "WorkspaceTooLarge", "WorkspaceUnavailable"]

PARALLEL: Final = 8
"""Files moved to or from the object store at once, for one workspace."""
_WHOLE_BYTES: Final = 1024 * 1024  # up to this a file is read once and stored from memory, beyond it is read twice
_MANIFESTS: Final = 16

_digests: Final = FileDigests()
_manifests: OrderedDict[str, Manifest] = OrderedDict()
_manifests_lock: Final = threading.Lock()

_T = TypeVar("_T")
_R = TypeVar("_R")


class WorkspaceUnavailable(InfrastructureError):
    """The directory on this machine can't be read or written (disk full, permissions)."""

    code = "workspace_unavailable"


@dataclass(frozen=True, slots=True)
class InputFile:
    """An uploaded file, whose blob is stored, and where it lies in a job's first workspace."""

    path: str
    """Normal workspace path."""
    size: int
    """Bytes."""
    sha256: str


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A regular file of a snapshot."""

    path: str
    size: int
    """Bytes."""
    sha256: str
    blob_key: str
    """Where its content lies in the object store."""
    executable: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A stored workspace."""

    digest: str
    """Its id, equal for equal workspaces."""
    files: int
    bytes: int
    """Of all files together."""
    changed: tuple[str, ...]
    """Paths of files and links that were added, changed or removed since the previous snapshot, in order."""
    skipped: tuple[tuple[str, str], ...]
    """Path and reason, in a few words, of what was found and not kept."""


class WorkspaceStore:
    """The workspaces of one tenant. Thread-safe, and cheap to make; a directory is used by one caller at a time."""

    def __init__(self, store: ObjectStore, tenant: str, limits: PlatformLimits) -> None:
        self._blobs = BlobStore(store, tenant)
        self._limits = limits

    def empty(self) -> str:
        """The id of the workspace with nothing in it; None means the same wherever an id is taken."""
        return EMPTY.digest

    def from_inputs(self, inputs: Sequence[InputFile]) -> str:
        """The id of a first workspace that holds these files. Nothing is copied.

        Raises:
            InvalidPath: a path is not in normal form, or two files are in each other's way.
            TooLarge: together they are more than a workspace may hold.
        """
        manifest = Manifest.of(Entry(item.path, EntryKind.FILE, item.size, item.sha256) for item in inputs)
        self._require_size(manifest, "The input files are more than a workspace may hold")
        return self._put_manifest(manifest)

    def merged(self, digest: str | None, source: str | None, paths: Sequence[str]) -> str:
        """The id of a workspace that is `digest` but for these files, which are as in `source`. Nothing is copied.

        Raises:
            ObjectMissing: `source` has no such file.
            InvalidPath: a file would lie below a file, or where a directory with something in it is.
            TooLarge: it would be more than a workspace may hold.
        """
        for path in paths:
            self.entry(source, path)
        new = self.manifest(source).by_path
        kept = {entry.path: entry for entry in self.manifest(digest).entries}
        for path in paths:
            inside = next((other for other in kept if other.startswith(f"{path}/")), None)
            if inside is not None:
                raise InvalidPath(f"{path!r} is a directory there, with {inside!r} in it.")
            kept[path] = new[path]
        manifest = Manifest.of(kept.values())
        self._require_size(manifest, "The workspace would be more than one may hold")
        return self._put_manifest(manifest)

    def _require_size(self, manifest: Manifest, what: str) -> None:
        if manifest.size > self._limits.workspace_bytes or len(manifest.entries) > self._limits.workspace_files:
            raise TooLarge(
                f"{what} ({self._limits.workspace_bytes} bytes, {self._limits.workspace_files} files and directories).", param="inputs"
            )

    def manifest(self, digest: str | None) -> Manifest:
        """What a snapshot holds. Raises `ObjectMissing`, `BlobCorrupt`, whose messages name neither tenant nor key."""
        if digest is None or digest == EMPTY.digest:
            return EMPTY
        key = self._blobs.key(digest)
        with _manifests_lock:
            if key in _manifests:
                _manifests.move_to_end(key)
                return _manifests[key]
        try:
            manifest = Manifest.decode(self._blobs.get(digest))
        except ObjectMissing as error:
            raise ObjectMissing(f"The workspace {digest[:12]} is missing from the object store: restore it from a backup.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise BlobCorrupt(f"Blob {digest} is no workspace manifest of a release up to this one: {error}") from error
        self._keep_manifest(key, manifest)
        return manifest

    def entry(self, digest: str | None, path: str) -> FileEntry:
        """A regular file of a snapshot; `path` in any form a tool may be given.

        Raises:
            InvalidPath: `path` can't be in a workspace.
            ObjectMissing: there is no regular file at that path.
        """
        normal = workspace_path(path)
        manifest = self.manifest(digest)
        found = manifest.by_path.get(normal)
        if found is None or found.kind is not EntryKind.FILE:
            raise ObjectMissing(f"{normal!r} {_not_a_file(found, manifest, normal)}")
        return FileEntry(found.path, found.size, found.sha256, self._blobs.key(found.sha256), found.executable)

    def snapshot(self, directory: Path, previous: str | None) -> Snapshot:
        """Store what a directory holds. Only files that changed are read, only content that is new is stored.

        No process may be at work in it. Unreadable entries are made readable for their owner.

        Raises:
            WorkspaceTooLarge: it holds more than a workspace may; nothing was read or stored.
            WorkspaceUnavailable, StorageUnavailable: our machinery failed.
        """
        before = self.manifest(previous)
        self._blobs.remember(entry.sha256 for entry in before.entries if entry.kind is EntryKind.FILE)
        if previous is not None and previous != EMPTY.digest:
            self._blobs.remember([previous])
        with _os_errors(directory), nofollow.opened(directory, nofollow.DIRECTORY_FLAGS) as root:
            tree = trees.scan(root, max_entries=self._limits.workspace_files, max_bytes=self._limits.workspace_bytes)
            files = [found for found in tree.found.values() if stat.S_ISREG(found.status.st_mode)]
            stored = {file.path: _entry(file, digest) for file in files if (digest := self._stored_digest(file)) is not None}
            new = [file for file in files if file.path not in stored]
            stored |= {entry.path: entry for entry in _in_parallel(lambda file: self._store(root, file), new)}
        manifest = Manifest(tuple(stored.get(path) or _entry(tree.found[path]) for path in sorted(tree.found)))
        return Snapshot(
            digest=self._put_manifest(manifest),
            files=manifest.files,
            bytes=manifest.size,
            changed=_changed(before, manifest),
            skipped=tuple((skipped.path, skipped.reason) for skipped in tree.skipped),
        )

    def restore(self, digest: str | None, directory: Path, *, owner: tuple[int, int] | None = None) -> None:
        """Bring a directory to exactly the state of a snapshot: what differs is fetched, what is not in it removed, the rest left alone.

        Each file appears whole or not at all; after a failure in between, the next restore goes on from there. No process may be
        at work in it. `owner` (uid, gid) is given whatever is made here; only root can.

        Raises:
            ObjectMissing, BlobCorrupt: the snapshot is not or no longer there, or a file's content, which is named by its path.
            WorkspaceUnavailable, StorageUnavailable: our machinery failed.
        """
        manifest = self.manifest(digest)
        with _os_errors(directory), nofollow.opened(directory, nofollow.DIRECTORY_FLAGS) as root:
            restoring = Restoring(root, manifest, self._blobs, _digests, owner)
            restoring.clear(self._limits)
            restoring.make_directories_and_links()
            read_ns = file_clock_ns()
            fetched = _in_parallel(restoring.fetch, restoring.missing(read_ns))
            read_ns = file_clock_ns()
            for entry, status in fetched:
                _digests.remember(status, entry.sha256, read_ns=read_ns)

    def _stored_digest(self, found: Found) -> str | None:
        """The digest of a file that has not changed since it was read, if its content is stored."""
        digest = _digests.get(found.status)
        return digest if digest is not None and self._blobs.has(digest) else None

    def _store(self, root: int, found: Found) -> Entry:
        read_ns = file_clock_ns()
        with (
            trees.parent_of(root, found.path) as (parent, name),
            trees.regular_file(parent, name) as (descriptor, status),
            os.fdopen(descriptor, "rb", closefd=False) as file,
        ):
            whole = status.st_size <= _WHOLE_BYTES
            blob = self._blobs.put(file.read(_WHOLE_BYTES + 1)) if whole else self._blobs.put_file(file)
        if blob.size != found.status.st_size:
            raise WorkspaceUnavailable(f"{found.path!r} changed while the workspace was saved.")
        _digests.remember(status, blob.sha256, read_ns=read_ns)
        return _entry(found, blob.sha256)

    def _put_manifest(self, manifest: Manifest) -> str:
        blob = self._blobs.put(manifest.encode())
        self._keep_manifest(blob.key, manifest)
        return blob.sha256

    @staticmethod
    def _keep_manifest(key: str, manifest: Manifest) -> None:
        with _manifests_lock:
            _manifests[key] = manifest
            _manifests.move_to_end(key)
            if len(_manifests) > _MANIFESTS:
                _manifests.popitem(last=False)


def _entry(found: Found, digest: str = "") -> Entry:
    if stat.S_ISDIR(found.status.st_mode):
        return Entry(found.path, EntryKind.DIRECTORY)
    if stat.S_ISLNK(found.status.st_mode):
        return Entry(found.path, EntryKind.SYMLINK, target=found.target)
    return Entry(found.path, EntryKind.FILE, found.status.st_size, digest, executable=bool(found.status.st_mode & stat.S_IXUSR))


def _not_a_file(found: Entry | None, manifest: Manifest, path: str) -> str:
    """What is wrong with a path that is no regular file. Commands can read through links, snapshots do not."""
    link = next((above for above in (path, *parents(path)) if _is_link(manifest.by_path.get(above))), None)
    if link is not None:
        target = manifest.by_path[link].target
        return f"is reached by a symbolic link ({link!r} -> {target!r}): give the path of the file itself."
    return "does not exist in the workspace." if found is None else "is no regular file in the workspace."


def _is_link(entry: Entry | None) -> bool:
    return entry is not None and entry.kind is EntryKind.SYMLINK


def _changed(before: Manifest, after: Manifest) -> tuple[str, ...]:
    if before is after:
        return ()
    old, new = before.by_path, after.by_path
    paths = (path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    only_directories = {None, EntryKind.DIRECTORY}
    return tuple(sorted(path for path in paths if {entry and entry.kind for entry in (old.get(path), new.get(path))} - only_directories))


def _in_parallel(work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """The results in order; the first failure is raised once what is under way has ended, and what has not begun is dropped."""
    if len(items) <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(PARALLEL, len(items)), thread_name_prefix="workspace") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _os_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except DualtrackError:
        raise
    except OSError as error:
        raise WorkspaceUnavailable(
            f"The workspace directory {directory} can't be used: {error}. Check the disk and permissions."
        ) from error
