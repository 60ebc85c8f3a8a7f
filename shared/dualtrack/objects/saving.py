"""The steps of storing what a directory holds."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dualtrack.domain.errors import InfrastructureError
from dualtrack.objects import trees
from dualtrack.objects.blobs import SMALL_BYTES, BlobStore
from dualtrack.objects.cancelling import Check
from dualtrack.objects.file_digests import FileDigests, file_clock_ns
from dualtrack.objects.manifest import Entry, EntryKind, Manifest, Pack
from dualtrack.objects.parallel import flowing, in_parallel
from dualtrack.objects.trees import Found, Tree

PACKED_FROM: Final = 16
"""New small files of one snapshot from which they are stored in packs, not one by one."""
PACK_BYTES: Final = 4 * 1024 * 1024
"""Largest pack."""
_PACK_MIN_BYTES: Final = 1024 * 1024
_CUT: Final = "00"  # a pack ends behind a content whose digest begins so: one of 256
_WHOLE_BYTES: Final = 1024 * 1024  # up to this a file is read once and stored from memory, beyond it is read twice


class WorkspaceUnavailable(InfrastructureError):
    """The directory on this machine can't be read or written (disk full, permissions)."""

    code = "workspace_unavailable"


@dataclass(frozen=True, slots=True)
class _Content:
    """A small file's bytes, read."""

    found: Found
    sha256: str
    data: bytes


@dataclass(frozen=True, slots=True)
class _Packing:
    """Contents that become one pack."""

    data: bytes
    starts: tuple[tuple[str, int], ...]
    """Each content's digest and where it begins."""


class Saving:
    """One snapshot of one open directory that is known to hold `tree`."""

    def __init__(self, root: int, tree: Tree, before: Manifest, blobs: BlobStore, digests: FileDigests, check: Check) -> None:
        """`before` is a recorded snapshot: what it names is stored and stays. `check` is asked for every file and before every request."""
        self._root = root
        self._tree = tree
        self._before = before
        self._blobs = blobs
        self._digests = digests
        self._check = check

    def entries(self) -> tuple[Entry, ...]:
        """All entries in order, the contents of all files stored. Raises `Cancelled` once the check does."""
        made: dict[str, Entry] = {}
        small, large = [], []
        for path in sorted(self._tree.found):
            self._check()
            found = self._tree.found[path]
            if not stat.S_ISREG(found.status.st_mode):
                made[path] = self._same_or(_other_entry(found))
                continue
            known = self._known(found)
            if known is not None:
                made[path] = known
            elif found.status.st_size <= SMALL_BYTES:
                small.append(found)
            else:
                large.append(found)
        if len(small) < PACKED_FROM:
            large, small = sorted(small + large, key=lambda found: found.path), []
        made |= {entry.path: entry for entry in in_parallel(self._store, large)}
        made |= {entry.path: entry for entry in self._packed(small)}
        return tuple(made[path] for path in sorted(made))

    def _known(self, found: Found) -> Entry | None:
        """The entry of a file that has not changed since it was read, if its content is stored."""
        digest = self._digests.get(found.status)
        if digest is None:
            return None
        entry = self._placed(found, digest)
        if entry is not None:
            return entry
        # To ask the store for a small content costs as much as to put it.
        stored = self._blobs.knows(digest) if found.status.st_size <= SMALL_BYTES else self._blobs.has(digest)
        return _file_entry(found, digest) if stored else None

    def _placed(self, found: Found, digest: str) -> Entry | None:
        """The entry of a file whose content the recorded snapshot names, perhaps under another path."""
        same = self._before.contents.get(digest)
        return None if same is None else self._same_or(_file_entry(found, digest, same.pack, same.start))

    def _same_or(self, entry: Entry) -> Entry:
        """The recorded snapshot's own entry where it is equal: unchanged parts of a manifest are told by identity."""
        old = self._before.by_path.get(entry.path)
        return old if old is not None and old == entry else entry

    def _store(self, found: Found) -> Entry:
        """Store one file as a blob of its own. Thread-safe."""
        self._check()
        read_ns = file_clock_ns()
        with (
            trees.parent_of(self._root, found.path) as (parent, name),
            trees.regular_file(parent, name) as (descriptor, status),
            os.fdopen(descriptor, "rb", closefd=False) as file,
        ):
            if status.st_size <= SMALL_BYTES:
                data = file.read(SMALL_BYTES + 1)
                placed = self._placed(found, hashlib.sha256(data).hexdigest())
                if placed is not None:
                    _require_unchanged(found, len(data))
                    self._digests.remember(status, placed.sha256, read_ns=read_ns)
                    return placed
                blob = self._blobs.put(data)
            elif status.st_size <= _WHOLE_BYTES:
                blob = self._blobs.put(file.read(_WHOLE_BYTES + 1))
            else:
                blob = self._blobs.put_file(file, self._check)
        _require_unchanged(found, blob.size)
        self._digests.remember(status, blob.sha256, read_ns=read_ns)
        return _file_entry(found, blob.sha256)

    def _packed(self, files: Sequence[Found]) -> Iterator[Entry]:
        """The entries of small files, their contents stored in packs where the recorded snapshot doesn't have them."""
        waiting: list[tuple[Found, str]] = []
        stored: dict[str, tuple[Pack, int]] = {}

        def contents() -> Iterator[_Content]:
            for content in self._read(files):
                placed = self._placed(content.found, content.sha256)
                if placed is not None:
                    placed_entries.append(placed)
                    continue
                waiting.append((content.found, content.sha256))
                if content.sha256 not in seen:
                    seen.add(content.sha256)
                    yield content

        placed_entries: list[Entry] = []
        seen: set[str] = set()
        for pack, starts in flowing(self._put_pack, _packings(contents())):
            stored |= {digest: (pack, start) for digest, start in starts}
        yield from placed_entries
        for found, digest in waiting:
            yield _file_entry(found, digest, *stored[digest])

    def _put_pack(self, packing: _Packing) -> tuple[Pack, tuple[tuple[str, int], ...]]:
        self._check()
        blob = self._blobs.put(packing.data)
        return Pack(blob.sha256, blob.size), packing.starts

    def _read(self, files: Sequence[Found]) -> Iterator[_Content]:
        with trees.Parents(self._root) as parents:
            for found in files:
                self._check()
                read_ns = file_clock_ns()
                parent, name = parents.of(found.path)
                with trees.regular_file(parent, name) as (descriptor, status):
                    data = os.read(descriptor, SMALL_BYTES + 1)
                _require_unchanged(found, len(data))
                digest = hashlib.sha256(data).hexdigest()
                self._digests.remember(status, digest, read_ns=read_ns)
                yield _Content(found, digest, data)


def _packings(contents: Iterator[_Content]) -> Iterator[_Packing]:
    """Contents together, cut where their own digests say so: the same files of another job mostly make the same packs."""
    data = bytearray()
    starts: list[tuple[str, int]] = []
    for content in contents:
        if len(data) + len(content.data) > PACK_BYTES:
            yield _Packing(bytes(data), tuple(starts))
            data, starts = bytearray(), []
        starts.append((content.sha256, len(data)))
        data += content.data
        if len(data) >= _PACK_MIN_BYTES and content.sha256.startswith(_CUT):
            yield _Packing(bytes(data), tuple(starts))
            data, starts = bytearray(), []
    if starts:
        yield _Packing(bytes(data), tuple(starts))


def _require_unchanged(found: Found, size: int) -> None:
    if size != found.status.st_size:
        raise WorkspaceUnavailable(f"{found.path!r} changed while the workspace was saved.")


def _other_entry(found: Found) -> Entry:
    if stat.S_ISDIR(found.status.st_mode):
        return Entry(found.path, EntryKind.DIRECTORY)
    return Entry(found.path, EntryKind.SYMLINK, target=found.target)


def _file_entry(found: Found, digest: str, pack: Pack | None = None, start: int = 0) -> Entry:
    status = found.status
    return Entry(
        found.path,
        EntryKind.FILE,
        status.st_size,
        digest,
        executable=bool(status.st_mode & stat.S_IXUSR),
        pack=pack,
        start=start,
    )
