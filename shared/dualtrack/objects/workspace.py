"""Workspace snapshots: a manifest (itself a blob, whose digest is the snapshot's id) and blobs with the contents of files, alone or packed.

A snapshot holds directories, regular files (content, and whether they are executable) and symbolic links, whose targets are
text that nothing here ever follows: they mean something inside a sandbox only. Owners, times and all other modes are not kept:
directories come back as 755, files as 644 or 755. Nothing else a command may leave behind is kept: FIFOs, sockets, devices, hard links
to files elsewhere, names that are not UTF-8, have control characters or lie too deep; `Snapshot.skipped` tells of them.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import DualtrackError, InvalidPath, ObjectMissing, TooLarge
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.paths import workspace_path
from dualtrack.objects import nofollow, places, trees
from dualtrack.objects.blobs import SMALL_BYTES, BlobStore
from dualtrack.objects.cancelling import check_of
from dualtrack.objects.file_digests import FileDigests, file_clock_ns
from dualtrack.objects.manifest import EMPTY, Entry, EntryKind, Manifest, parents
from dualtrack.objects.manifests import Manifests
from dualtrack.objects.parallel import in_parallel
from dualtrack.objects.port import ObjectStore
from dualtrack.objects.restoring import Restoring, content_damaged, content_missing
from dualtrack.objects.saving import Saving, WorkspaceUnavailable
from dualtrack.objects.trees import WorkspaceTooLarge

__all__ = ["FileEntry", "InputFile", "Snapshot", "WorkspaceStore", "WorkspaceTooLarge", "WorkspaceUnavailable"]

_digests: Final = FileDigests()


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
    """Its id. Equal ids: equal workspaces; equal workspaces of some size have equal ids only if they are packed alike."""
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
        self._manifests = Manifests(self._blobs)
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
        return self._manifests.put(manifest)

    def merged(self, digest: str | None, source: str | None, paths: Sequence[str]) -> str:
        """The id of a workspace that is `digest` but for these files, which are as in `source`. Nothing is copied.

        Raises:
            ObjectMissing: `source` has no such file.
            InvalidPath: a file would lie below a file, or where a directory with something in it is.
            TooLarge: it would be more than a workspace may hold.
        """
        new = {path: self._file(source, path) for path in paths}
        before = self.manifest(digest)
        kept = dict(before.by_path)
        for path in paths:
            inside = next((other for other in kept if other.startswith(f"{path}/")), None)
            if inside is not None:
                raise InvalidPath(f"{path!r} is a directory there, with {inside!r} in it.")
            kept[path] = new[path]
        manifest = Manifest.of(kept.values())
        self._require_size(manifest, "The workspace would be more than one may hold")
        return self._manifests.put(manifest, before)

    def _require_size(self, manifest: Manifest, what: str) -> None:
        if manifest.size > self._limits.workspace_bytes or len(manifest.entries) > self._limits.workspace_files:
            raise TooLarge(
                f"{what} ({self._limits.workspace_bytes} bytes, {self._limits.workspace_files} files and directories).", param="inputs"
            )

    def manifest(self, digest: str | None) -> Manifest:
        """What a snapshot holds. Raises `ObjectMissing`, `BlobCorrupt`, whose messages name neither tenant nor key."""
        return EMPTY if digest is None else self._manifests.get(digest)

    def entry(self, digest: str | None, path: str) -> FileEntry:
        """A regular file of a snapshot, as an object of its own: one out of a pack is stored alone now.

        `path` in any form a tool may be given.

        Raises:
            InvalidPath: `path` can't be in a workspace.
            ObjectMissing: there is no regular file at that path, or no content.
            BlobCorrupt: the content is damaged.
        """
        found = self._file(digest, path)
        if found.pack is not None and not self._blobs.knows(found.sha256):
            self._store_alone(found)
        return FileEntry(found.path, found.size, found.sha256, self._blobs.key(found.sha256), found.executable)

    def _file(self, digest: str | None, path: str) -> Entry:
        normal = workspace_path(path)
        manifest = self.manifest(digest)
        found = manifest.by_path.get(normal)
        if found is None or found.kind is not EntryKind.FILE:
            raise ObjectMissing(f"{normal!r} {_not_a_file(found, manifest, normal)}")
        return found

    def _store_alone(self, entry: Entry) -> None:
        place = entry.place
        try:
            data = self._blobs.part(place.blob, start=place.start, size=place.size)
        except ObjectMissing as error:
            raise content_missing(entry) from error
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise content_damaged(entry)
        self._blobs.put(data)

    def snapshot(self, directory: Path, previous: str | None, *, cancel: threading.Event | None = None) -> Snapshot:
        """Store what a directory holds. Only files that changed are read, only content that is new is stored.

        No process may be at work in it. Unreadable entries are made readable for their owner. `cancel` is looked at between two files,
        pieces of large files and requests to the store; those under way are waited for (see `cancelling.interruptible`).

        Raises:
            Cancelled: `cancel` is set: what was stored until then is named by nothing.
            WorkspaceTooLarge: it holds more than a workspace may; nothing was read or stored.
            WorkspaceUnavailable, StorageUnavailable: our machinery failed.
        """
        check = check_of(cancel)
        check()
        before = self.manifest(previous)
        self._blobs.remember(entry.sha256 for entry in before.entries if entry.size > SMALL_BYTES)
        if previous is not None and previous != EMPTY.digest:
            self._blobs.remember([previous])
        with _os_errors(directory), nofollow.opened(directory, nofollow.DIRECTORY_FLAGS) as root:
            tree = trees.scan(root, max_entries=self._limits.workspace_files, max_bytes=self._limits.workspace_bytes, check=check)
            entries = Saving(root, tree, before, self._blobs, _digests, check).entries()
        check()
        if entries == before.entries:
            manifest, digest = before, previous or EMPTY.digest
        else:
            manifest = Manifest(entries)
            digest = self._manifests.put(manifest, before)
        return Snapshot(
            digest=digest,
            files=manifest.files,
            bytes=manifest.size,
            changed=_changed(before, manifest),
            skipped=tuple((skipped.path, skipped.reason) for skipped in tree.skipped),
        )

    def restore(
        self, digest: str | None, directory: Path, *, owner: tuple[int, int] | None = None, cancel: threading.Event | None = None
    ) -> None:
        """Bring a directory to exactly the state of a snapshot: what differs is fetched, what is not in it removed, the rest left alone.

        Each file appears whole or not at all; after a failure in between, the next restore goes on from there. No process may be
        at work in it. `owner` (uid, gid) is given whatever is made here; only root can. `cancel` is looked at as by `snapshot`.

        Raises:
            Cancelled: `cancel` is set: the directory holds neither what it did nor the snapshot, and can only be restored.
            ObjectMissing, BlobCorrupt: the snapshot is not or no longer there, or a file's content, which is named by its path.
            WorkspaceUnavailable, StorageUnavailable: our machinery failed.
        """
        check = check_of(cancel)
        check()
        manifest = self.manifest(digest)
        with _os_errors(directory), nofollow.opened(directory, nofollow.DIRECTORY_FLAGS) as root:
            restoring = Restoring(root, manifest, self._blobs, _digests, owner, check)
            restoring.clear(self._limits)
            restoring.make_directories_and_links()
            missing = restoring.missing(file_clock_ns())
            fetched = in_parallel(restoring.fetch, [entry for entry in missing if entry.pack is None])
            packed = places.spans((entry for entry in missing if entry.pack is not None), lambda entry: entry.place)
            for written in in_parallel(restoring.fetch_packed, packed):
                fetched += written
            read_ns = file_clock_ns()
            for entry, status in fetched:
                _digests.remember(status, entry.sha256, read_ns=read_ns)


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
    paths = (path for path in old.keys() | new.keys() if (one := old.get(path)) is not (other := new.get(path)) and one != other)
    only_directories = {None, EntryKind.DIRECTORY}
    return tuple(sorted(path for path in paths if {entry and entry.kind for entry in (old.get(path), new.get(path))} - only_directories))


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
