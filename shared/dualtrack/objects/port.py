"""The object store as the platform sees it: keys and bytes. Adapters: `objects.s3`, `objects.folder`, `testing.objects`.

All adapters pass `dualtrack.testing.contracts.objects`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What the store knows of one object."""

    key: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as the store's own listing shows it."""

    key: str
    size: int
    """Bytes."""
    modified_at: datetime
    """When it was last put, by the store's clock; with a time zone."""


class ObjectStore(Protocol):
    """Flat keys (`blobs/ten_…/ab/abcd…`: `/`-separated, ASCII, at most 512 characters) to immutable bytes.

    A key is never the beginning of another up to a `/` (`a` beside `a/b`): a folder can't hold both. What is no key at all
    raises `InvalidPath`. Thread-safe. A key is written whole or not at all; a reader never sees half an object.
    All methods raise `StorageUnavailable` when the store can't be reached or refuses.
    """

    def put(self, key: str, data: bytes | BinaryIO, *, content_type: str = "application/octet-stream") -> ObjectInfo:
        """Write an object, replacing what is there. `data` is read from its current position to its end."""
        ...

    def get(self, key: str) -> bytes:
        """All bytes of an object. Raises `ObjectMissing`."""
        ...

    def part(self, key: str, *, start: int, size: int) -> bytes:
        """`size` bytes of an object from `start` on, fewer where it ends before. `size` is at least 1. Raises `ObjectMissing`."""
        ...

    def stream(self, key: str, *, chunk_bytes: int = 262_144) -> Iterator[bytes]:
        """The bytes in chunks. Raises `ObjectMissing` before the first chunk is taken."""
        ...

    def head(self, key: str) -> StoredObject | None:
        """The object's size and age, or None where there is none."""
        ...

    def delete(self, key: str) -> None:
        """Delete; deleting what is not there is no error."""
        ...

    def keys(self, prefix: str) -> Iterator[str]:
        """All keys with that prefix, in order."""
        ...

    def stored(self, prefix: str) -> Iterator[StoredObject]:
        """All objects whose keys have that prefix, in order of their keys, never held in memory together."""
        ...

    def presign(self, key: str, *, filename: str, content_type: str, expires_s: int) -> str | None:
        """An address a client can GET without credentials for `expires_s` seconds; None where the store has no such thing."""
        ...

    def check(self) -> None:
        """Raise `StorageUnavailable`, saying what is wrong, unless the store can be written to and read from now."""
        ...
