"""An object store in memory, for tests."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import BinaryIO

from dualtrack.domain.errors import ObjectMissing, StorageUnavailable
from dualtrack.objects.keys import check_key
from dualtrack.objects.port import ObjectInfo, StoredObject
from dualtrack.objects.reading import read_up_to

_READ_BYTES = 1024 * 1024


class MemoryStore:
    """An `ObjectStore` that keeps everything in a dictionary, counts what is asked of it, and fails when told to.

    Attributes:
        calls: how often each method was called.
        put_at: when each object was last put; tests make objects older by it.
        unavailable: while true, every method raises `StorageUnavailable`.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.unavailable = False
        self._objects: dict[str, bytes] = {}
        self.put_at: dict[str, datetime] = {}
        self._lock = threading.Lock()

    def put(self, key: str, data: bytes | BinaryIO, *, content_type: str = "application/octet-stream") -> ObjectInfo:
        self._called("put", key)
        if not isinstance(data, bytes):
            parts = []
            while part := read_up_to(data, _READ_BYTES):
                parts.append(part)
            data = b"".join(parts)
        with self._lock:
            self._objects[key] = data
            self.put_at[key] = datetime.now(UTC)
        return ObjectInfo(key, len(data))

    def get(self, key: str) -> bytes:
        self._called("get", key)
        return self._get(key)

    def part(self, key: str, *, start: int, size: int) -> bytes:
        self._called("part", key)
        return self._get(key)[start : start + size]

    def stream(self, key: str, *, chunk_bytes: int = 262_144) -> Iterator[bytes]:
        self._called("stream", key)
        data = self._get(key)
        return (data[start : start + chunk_bytes] for start in range(0, len(data), chunk_bytes))

    def head(self, key: str) -> StoredObject | None:
        self._called("head", key)
        with self._lock:
            data = self._objects.get(key)
            return None if data is None else StoredObject(key, len(data), self.put_at[key])

    def delete(self, key: str) -> None:
        self._called("delete", key)
        with self._lock:
            self._objects.pop(key, None)

    def keys(self, prefix: str) -> Iterator[str]:
        self._called("keys")
        with self._lock:
            return iter(sorted(key for key in self._objects if key.startswith(prefix)))

    def stored(self, prefix: str) -> Iterator[StoredObject]:
        self._called("stored")
        with self._lock:
            found = sorted((key, len(data)) for key, data in self._objects.items() if key.startswith(prefix))
            return iter([StoredObject(key, size, self.put_at[key]) for key, size in found])

    def presign(self, key: str, *, filename: str, content_type: str, expires_s: int) -> str | None:
        return None

    def check(self) -> None:
        self._called("check")

    def _get(self, key: str) -> bytes:
        with self._lock:
            try:
                return self._objects[key]
            except KeyError as error:
                raise ObjectMissing(f"There is no object {key!r}.") from error

    def _called(self, method: str, key: str | None = None) -> None:
        if key is not None:
            check_key(key)
        with self._lock:
            self.calls[method] += 1
        if self.unavailable:
            raise StorageUnavailable("The store was told to be unavailable.")
