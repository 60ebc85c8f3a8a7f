"""Content-addressed blobs: the same bytes of a tenant are stored once, under their SHA-256, and checked whenever they are read."""

from __future__ import annotations

import hashlib
import io
import math
import re
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import BinaryIO, Final, cast

from dualtrack.domain.errors import DualtrackError, InfrastructureError, InvalidPath
from dualtrack.domain.limits import FRESH_S
from dualtrack.objects.cancelling import Check, never
from dualtrack.objects.port import ObjectStore
from dualtrack.objects.reading import read_up_to

KNOWN_BLOBS: Final = 65_536
"""Digests that a process remembers as stored, per store: 64 bytes each and some overhead, so about 10 MB at most."""
SMALL_BYTES: Final = 65_536
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES: Final = 1024 * 1024


class BlobCorrupt(DualtrackError):
    """The store gave bytes that are not those that were put: restore the object from a backup."""

    code = "object_corrupt"


class SourceChanged(InfrastructureError):
    """A file changed between being hashed and being stored; nothing was stored."""

    code = "source_changed"


@dataclass(frozen=True, slots=True)
class Blob:
    """A stored blob."""

    sha256: str
    size: int
    """Bytes."""
    key: str
    """Where it lies in the object store."""


def digest_of(source: BinaryIO, check: Check = never) -> tuple[str, int]:
    """SHA-256 and size of a seekable file from its current position on, where it stands again afterwards; never held in memory.

    Raises:
        Cancelled: `check` says so, which is asked between two pieces of it.
    """
    start = source.tell()
    hashing = hashlib.sha256()
    size = 0
    while chunk := source.read(_CHUNK_BYTES):
        check()
        hashing.update(chunk)
        size += len(chunk)
    source.seek(start)
    return hashing.hexdigest(), size


class BlobStore:
    """The blobs of one tenant. Thread-safe, and cheap to make: what a process knows of a store is shared by all."""

    def __init__(self, store: ObjectStore, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._known = _known_of(store)

    def key(self, digest: str) -> str:
        """The object key of a digest. Raises `InvalidPath` for what is no SHA-256 in lower-case hexadecimal."""
        if _DIGEST.fullmatch(digest) is None:
            raise InvalidPath(f"{digest[:80]!r} is no SHA-256 digest.", param="sha256")
        return f"blobs/{self._tenant}/{digest[:2]}/{digest}"

    def put(self, data: bytes, *, ask: bool = True) -> Blob:
        """Store bytes, unless they are known to be. Of a few, it is not asked first: putting them again costs no more than asking.

        `ask`: without it, of many neither: they are hardly ever stored already.
        """
        digest = hashlib.sha256(data).hexdigest()
        known = self.has(digest) if ask and len(data) > SMALL_BYTES else self.knows(digest)
        if not known:
            self._store.put(self.key(digest), data)
            self._known.add(self.key(digest), FRESH_S)
        return Blob(digest, len(data), self.key(digest))

    def put_file(self, source: BinaryIO, check: Check = never) -> Blob:
        """Store a seekable file from its current position to its end, unless its bytes are stored; never held in memory.

        It is read once to be hashed, and again to be stored.

        Raises:
            SourceChanged: it changed between the two.
            Cancelled: `check` says so, which is asked between two pieces of it.
        """
        digest, size = digest_of(source, check)
        if not self.has(digest):
            self._store.put(self.key(digest), cast("BinaryIO", _Verifying(source, digest, check)))
            self._known.add(self.key(digest), FRESH_S)
        return Blob(digest, size, self.key(digest))

    def has(self, digest: str) -> bool:
        """Whether a blob is stored and will stay: put lately, or named by something recorded. A yes is remembered.

        One that is old and may be named by nothing may be deleted at any moment as garbage: the caller has to put it again.
        """
        key = self.key(digest)
        if key in self._known:
            return True
        found = self._store.head(key)
        if found is None:
            return False
        fresh_s = FRESH_S - (datetime.now(UTC) - found.modified_at).total_seconds()
        if fresh_s <= 0:
            return False
        self._known.add(key, fresh_s)
        return True

    def knows(self, digest: str) -> bool:
        """As `has`, without asking the store: no means that this process has not learnt of it."""
        return self.key(digest) in self._known

    def remember(self, digests: Iterable[str]) -> None:
        """Take it that these are stored and stay, because a recorded snapshot names them."""
        for digest in digests:
            self._known.add(self.key(digest), math.inf)

    def get(self, digest: str) -> bytes:
        """All bytes. Raises `ObjectMissing`, `BlobCorrupt`."""
        data = self._store.get(self.key(digest))
        if hashlib.sha256(data).hexdigest() != digest:
            raise _corrupt(digest)
        return data

    def part(self, digest: str, *, start: int, size: int) -> bytes:
        """Some bytes, fewer where the blob ends before. They can't be checked here: the caller must. Raises `ObjectMissing`."""
        return self._store.part(self.key(digest), start=start, size=size) if size else b""

    def stream(self, digest: str) -> Iterator[bytes]:
        """The bytes in chunks; whoever takes them must not act on them before the end, where they are checked.

        Raises:
            ObjectMissing: before the first chunk.
            BlobCorrupt: after the last.
        """
        chunks = self._store.stream(self.key(digest))

        def verified() -> Iterator[bytes]:
            hashing = hashlib.sha256()
            for chunk in chunks:
                hashing.update(chunk)
                yield chunk
            if hashing.hexdigest() != digest:
                raise _corrupt(digest)

        return verified()


def _corrupt(digest: str) -> BlobCorrupt:
    return BlobCorrupt(f"The object store's copy of blob {digest} is damaged: restore it from a backup.")


class _Verifying(io.RawIOBase):
    """Passes a source on, and fails at its end unless its bytes have the digest: stores then keep nothing."""

    def __init__(self, source: BinaryIO, digest: str, check: Check) -> None:
        self._check = check
        self._source = source
        self._digest = digest
        self._hashing = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, count: int = -1) -> bytes:
        self._check()
        chunk = read_up_to(self._source, count if count >= 0 else _CHUNK_BYTES)
        self._hashing.update(chunk)
        if (not chunk or len(chunk) < count) and self._hashing.hexdigest() != self._digest:
            raise SourceChanged("A file changed while it was being stored: try again.")
        return chunk


class _Known:
    """The least recently used are forgotten first. Thread-safe."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, float] = OrderedDict()  # until when, by the monotonic clock
        self._lock = threading.Lock()

    def __contains__(self, key: str) -> bool:
        with self._lock:
            if self._keys.get(key, -math.inf) < time.monotonic():
                return False
            self._keys.move_to_end(key)
            return True

    def add(self, key: str, for_s: float) -> None:
        """Know a key for some seconds more."""
        with self._lock:
            self._keys[key] = max(self._keys.get(key, -math.inf), time.monotonic() + for_s)
            self._keys.move_to_end(key)
            if len(self._keys) > KNOWN_BLOBS:
                self._keys.popitem(last=False)


_known: weakref.WeakKeyDictionary[ObjectStore, _Known] = weakref.WeakKeyDictionary()
_known_lock = threading.Lock()


def _known_of(store: ObjectStore) -> _Known:
    with _known_lock:
        known = _known.get(store)
        if known is None:
            known = _known[store] = _Known()
        return known
