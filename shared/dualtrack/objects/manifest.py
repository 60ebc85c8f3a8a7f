"""A workspace's state as a list: what lies where, with which content. Canonical, so that equal workspaces have equal digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from dualtrack.domain.errors import InvalidPath
from dualtrack.domain.paths import workspace_path

_VERSION: Final = 1


class EntryKind(StrEnum):
    """What a path is."""

    FILE = "file"
    DIRECTORY = "dir"
    SYMLINK = "symlink"


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a workspace. Of a file's mode only whether its owner may execute it is kept; no times, no owners."""

    path: str
    kind: EntryKind
    size: int = 0
    sha256: str = ""
    """Of a file's content; its blob has the same name."""
    executable: bool = False
    target: str = ""
    """Where a symbolic link points."""


@dataclass(frozen=True)
class Manifest:
    """All entries of a workspace but its root, in order of their paths; every parent directory is an entry too."""

    entries: tuple[Entry, ...]

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

    @property
    def files(self) -> int:
        """How many files."""
        return sum(entry.kind is EntryKind.FILE for entry in self.entries)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.entries)

    def encode(self) -> bytes:
        """The canonical JSON: UTF-8, no spaces, sorted, fields that say nothing left out."""
        document = {"entries": [_as_json(entry) for entry in self.entries], "version": _VERSION}
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: the snapshot's id."""
        return hashlib.sha256(self.encode()).hexdigest()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """The manifest that `encode` wrote. Raises `InvalidPath`, ValueError for anything else."""
        document = json.loads(data)
        if document["version"] != _VERSION:
            raise ValueError(f"Workspace manifest version {document['version']} is unknown: a newer release wrote it.")
        return cls.of(
            Entry(
                path=item["path"],
                kind=EntryKind(item["type"]),
                size=item.get("size", 0),
                sha256=item.get("sha256", ""),
                executable=item.get("executable", False),
                target=item.get("target", ""),
            )
            for item in document["entries"]
        )


EMPTY: Final = Manifest(())


def parents(path: str) -> list[str]:
    """The directories above a workspace path, nearest first, without the root."""
    found = []
    while (end := path.rfind("/")) > 0:
        path = path[:end]
        found.append(path)
    return found


def _as_json(entry: Entry) -> dict[str, Any]:
    item: dict[str, Any] = {"path": entry.path, "type": entry.kind.value}
    if entry.kind is EntryKind.FILE:
        item |= {"size": entry.size, "sha256": entry.sha256}
        if entry.executable:
            item["executable"] = True
    elif entry.kind is EntryKind.SYMLINK:
        item["target"] = entry.target
    return item
