"""A workspace's state as a list: what lies where, with which content. Canonical, so that equal workspaces have equal digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from dualtrack.domain.errors import InvalidPath
from dualtrack.domain.paths import workspace_path
from dualtrack.objects.places import Place

if TYPE_CHECKING:
    from dualtrack.objects.manifest_chunks import Chunk

_VERSION: Final = 1


class EntryKind(StrEnum):
    """What a path is."""

    FILE = "file"
    DIRECTORY = "dir"
    SYMLINK = "symlink"


@dataclass(frozen=True, slots=True)
class Pack:
    """A blob that holds the contents of many small files, one after the other."""

    sha256: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a workspace. Of a file's mode only whether its owner may execute it is kept; no times, no owners."""

    path: str
    kind: EntryKind
    size: int = 0
    sha256: str = ""
    """Of a file's content; its blob has the same name, unless it lies in a pack."""
    executable: bool = False
    target: str = ""
    """Where a symbolic link points."""
    pack: Pack | None = field(default=None, compare=False)
    """The pack that holds a file's content; where it lies makes no other file of it."""
    start: int = field(default=0, compare=False)
    """Where in the pack the content begins."""

    @property
    def place(self) -> Place:
        """Where the content of a file that lies in a pack is. Raises ValueError for any other."""
        if self.pack is None:
            raise ValueError(f"{self.path!r} lies in no pack.")
        return Place(self.pack.sha256, self.start, self.size)


@dataclass(frozen=True)
class Manifest:
    """All entries of a workspace but its root, in order of their paths; every parent directory is an entry too."""

    entries: tuple[Entry, ...]
    chunks: tuple[Chunk, ...] = field(default=(), compare=False, repr=False)
    """What it was read from or stored as, if that is in chunks (`objects.manifest_chunks`); none in the plain format."""

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Manifest:
        """A manifest of these entries, with the parent directories they need.

        Raises:
            InvalidPath: a path is not in normal form, occurs twice, or lies below something that is no directory.
        """
        found: dict[str, Entry] = {}
        for entry in entries:
            if entry.path == "." or workspace_path(entry.path) != entry.path:
                raise InvalidPath(f"{entry.path!r} is no normal workspace path.")
            if entry.path in found:
                raise InvalidPath(f"{entry.path!r} occurs twice in a workspace.")
            found[entry.path] = entry
        for path in list(found):
            for parent in parents(path):
                if found.setdefault(parent, Entry(parent, EntryKind.DIRECTORY)).kind is not EntryKind.DIRECTORY:
                    raise InvalidPath(f"{path!r} lies below {parent!r}, which is no directory.")
        return cls(tuple(found[path] for path in sorted(found)))

    @cached_property
    def by_path(self) -> dict[str, Entry]:
        """The entries by their paths."""
        return {entry.path: entry for entry in self.entries}

    @cached_property
    def contents(self) -> dict[str, Entry]:
        """A file for each content, by its digest."""
        return {entry.sha256: entry for entry in self.entries if entry.kind is EntryKind.FILE}

    @cached_property
    def files(self) -> int:
        """How many files."""
        return sum(entry.kind is EntryKind.FILE for entry in self.entries)

    @cached_property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.entries)

    def encode(self) -> bytes:
        """The plain format, which knows no packs: canonical JSON, UTF-8, no spaces, sorted, fields that say nothing left out."""
        document = {"entries": [as_json(entry) for entry in self.entries], "version": _VERSION}
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()

    @property
    def digest(self) -> str:
        """SHA-256 of the plain format: the id of a snapshot that is stored so."""
        return hashlib.sha256(self.encode()).hexdigest()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """The manifest that `encode` wrote. Raises `InvalidPath`, ValueError for anything else."""
        document = json.loads(data)
        if document["version"] != _VERSION:
            raise ValueError(f"Workspace manifest version {document['version']} is unknown: a newer release wrote it.")
        return cls.of(from_json(item) for item in document["entries"])


EMPTY: Final = Manifest(())


def parents(path: str) -> list[str]:
    """The directories above a workspace path, nearest first, without the root."""
    found = []
    while (end := path.rfind("/")) > 0:
        path = path[:end]
        found.append(path)
    return found


def as_json(entry: Entry) -> dict[str, Any]:
    """An entry as stored manifests have it, without its pack."""
    item: dict[str, Any] = {"path": entry.path, "type": entry.kind.value}
    if entry.kind is EntryKind.FILE:
        item |= {"size": entry.size, "sha256": entry.sha256}
        if entry.executable:
            item["executable"] = True
    elif entry.kind is EntryKind.SYMLINK:
        item["target"] = entry.target
    return item


def from_json(item: dict[str, Any], pack: Pack | None = None) -> Entry:
    """The entry that `as_json` wrote. Raises KeyError, ValueError."""
    return Entry(
        path=item["path"],
        kind=EntryKind(item["type"]),
        size=item.get("size", 0),
        sha256=item.get("sha256", ""),
        executable=item.get("executable", False),
        target=item.get("target", ""),
        pack=pack,
        start=item.get("start", 0),
    )
