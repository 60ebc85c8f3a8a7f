"""The steps of bringing a directory to the state of a manifest."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from typing import Final

from dualtrack.domain.errors import ObjectMissing
from dualtrack.domain.limits import PlatformLimits
from dualtrack.objects import nofollow, trees
from dualtrack.objects.blobs import BlobCorrupt, BlobStore
from dualtrack.objects.cancelling import Check, never
from dualtrack.objects.file_digests import FileDigests
from dualtrack.objects.manifest import Entry, EntryKind, Manifest
from dualtrack.objects.places import Span
from dualtrack.objects.trees import Found, Tree, WorkspaceTooLarge

_DIRECTORY_MODE: Final = 0o755
_CHUNK_BYTES: Final = 1024 * 1024
_NEW_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Restoring:
    """One restore of one open directory; the methods are called in the order they stand here, and raise `Cancelled` once `check` does."""

    def __init__(
        self,
        root: int,
        manifest: Manifest,
        blobs: BlobStore,
        digests: FileDigests,
        owner: tuple[int, int] | None,
        check: Check = never,
    ) -> None:
        self._root = root
        self._manifest = manifest
        self._blobs = blobs
        self._digests = digests
        self._owner = owner
        self._check = check
        self._kept: dict[str, Found] = {}

    def clear(self, limits: PlatformLimits) -> None:
        """Remove what is not in the manifest, or is something else there."""
        try:
            tree = trees.scan(self._root, max_entries=limits.workspace_files, max_bytes=limits.workspace_bytes, check=self._check)
        except WorkspaceTooLarge:
            # Whatever fills it is no snapshot's; from scratch is cheaper than going through it.
            trees.empty(self._root, self._check)
            tree = Tree()
        for skipped in tree.skipped:
            if skipped.parent == ".":
                trees.remove(self._root, skipped.name, self._check)
            else:
                with trees.parent_of(self._root, f"{skipped.parent}/{skipped.name}") as (parent, name):
                    trees.remove(parent, name, self._check)
        removed: set[str] = set()
        for path in sorted(tree.found):
            self._check()
            found = tree.found[path]
            if removed and path.rpartition("/")[0] in removed:
                removed.add(path)
            elif self._fits(found):
                self._kept[path] = found
            else:
                removed.add(path)
                with trees.parent_of(self._root, path) as (parent, name):
                    trees.remove(parent, name, self._check)

    def make_directories_and_links(self) -> None:
        """Make those that are missing."""
        with trees.Parents(self._root) as parents:
            for entry in self._manifest.entries:
                if entry.kind is EntryKind.FILE:
                    continue
                self._check()
                kept = self._kept.get(entry.path)
                if entry.kind is EntryKind.DIRECTORY and (kept is None or stat.S_IMODE(kept.status.st_mode) != _DIRECTORY_MODE):
                    self._make_directory(*parents.of(entry.path), new=kept is None)
                elif entry.kind is EntryKind.SYMLINK and kept is None:
                    parent, name = parents.of(entry.path)
                    os.symlink(entry.target, name, dir_fd=parent)
                    if self._owner is not None:
                        os.chown(name, *self._owner, dir_fd=parent, follow_symlinks=False)

    def _make_directory(self, parent: int, name: str, *, new: bool) -> None:
        if new:
            os.mkdir(name, 0o700, dir_fd=parent)
        with nofollow.opened(name, nofollow.DIRECTORY_FLAGS, parent) as directory:
            if new:
                self._give(directory)
            os.fchmod(directory, _DIRECTORY_MODE)

    def missing(self, read_ns: int) -> list[Entry]:
        """The files whose content is not there; those that are get the right mode. Files of unknown content are read."""
        return [entry for entry in self._manifest.entries if entry.kind is EntryKind.FILE and not self._has(entry, read_ns)]

    def fetch_packed(self, span: Span[Entry]) -> list[tuple[Entry, os.stat_result]]:
        """Write the files whose contents lie in one part of a pack; their statuses afterwards. Thread-safe."""
        self._check()
        first = span.items[0][1]
        try:
            data = self._blobs.part(span.blob, start=span.start, size=span.size)
        except ObjectMissing as error:
            raise content_missing(first) from error
        written = []
        with trees.Parents(self._root) as parents:
            for place, entry in span.items:
                self._check()
                content = span.cut(data, place)
                if hashlib.sha256(content).hexdigest() != entry.sha256:
                    raise content_damaged(entry)
                written.append((entry, self._write(*parents.of(entry.path), entry, content)))
        return written

    def _write(self, parent: int, name: str, entry: Entry, content: bytes) -> os.stat_result:
        """Write a small file in place: one that is left unfinished by a crash is read, and found wrong, by the next restore."""
        if entry.path in self._kept:
            os.unlink(name, dir_fd=parent)
        descriptor = os.open(name, _NEW_FILE_FLAGS, 0o600, dir_fd=parent)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            self._give(descriptor)
            os.fchmod(descriptor, _mode(entry))
            return os.fstat(descriptor)
        except BaseException:
            os.unlink(name, dir_fd=parent)
            raise
        finally:
            os.close(descriptor)

    def fetch(self, entry: Entry) -> tuple[Entry, os.stat_result]:
        """Write one file beside its place and move it there; its status afterwards. Thread-safe."""
        self._check()
        with trees.parent_of(self._root, entry.path) as (parent, name):
            temporary = f".restoring-{secrets.token_hex(12)}"
            descriptor = os.open(temporary, _NEW_FILE_FLAGS, 0o600, dir_fd=parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    for chunk in self._content(entry):
                        self._check()
                        file.write(chunk)
                    self._check()
                    self._give(file.fileno())
                    os.fchmod(file.fileno(), _mode(entry))
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)
                raise
            # Not before: moving a file changes its ctime.
            return entry, os.stat(name, dir_fd=parent, follow_symlinks=False)

    def _content(self, entry: Entry) -> Iterator[bytes]:
        """The bytes of a file; an object that is gone or damaged is told by the file's path, which is all that users know."""
        try:
            yield from self._blobs.stream(entry.sha256)
        except ObjectMissing as error:
            raise content_missing(entry) from error
        except BlobCorrupt as error:
            raise content_damaged(entry) from error

    def _fits(self, found: Found) -> bool:
        entry = self._manifest.by_path.get(found.path)
        if entry is None:
            return False
        if stat.S_ISDIR(found.status.st_mode):
            return entry.kind is EntryKind.DIRECTORY
        if stat.S_ISLNK(found.status.st_mode):
            return entry.kind is EntryKind.SYMLINK and entry.target == found.target
        # Two names of one file would change together; in a snapshot they are two files.
        return entry.kind is EntryKind.FILE and entry.size == found.status.st_size and found.status.st_nlink == 1

    def _has(self, entry: Entry, read_ns: int) -> bool:
        self._check()
        kept = self._kept.get(entry.path)
        if kept is None:
            return False
        right_mode = stat.S_IMODE(kept.status.st_mode) == _mode(entry)
        digest = self._digests.get(kept.status)
        if digest is not None and right_mode:
            return digest == entry.sha256
        with trees.parent_of(self._root, entry.path) as (parent, name), trees.regular_file(parent, name) as (descriptor, status):
            if digest is None:
                digest = self._digest_of(descriptor)
            if digest != entry.sha256:
                return False
            if right_mode:
                self._digests.remember(status, digest, read_ns=read_ns)
            else:
                os.fchmod(descriptor, _mode(entry))
        return True

    def _digest_of(self, descriptor: int) -> str:
        hashing = hashlib.sha256()
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            self._check()
            hashing.update(chunk)
        return hashing.hexdigest()

    def _give(self, descriptor: int) -> None:
        if self._owner is not None:
            os.fchown(descriptor, *self._owner)


def content_missing(entry: Entry) -> ObjectMissing:
    """The error for a file whose content is gone, told by its path, which is all that users know."""
    return ObjectMissing(f"The content of {entry.path!r} is missing from the object store: restore it from a backup.")


def content_damaged(entry: Entry) -> BlobCorrupt:
    """The error for a file whose content is not what it was."""
    return BlobCorrupt(f"The content of {entry.path!r} in the object store is damaged: restore it from a backup.")


def _mode(entry: Entry) -> int:
    return 0o755 if entry.executable else 0o644
