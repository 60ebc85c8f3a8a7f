"""The stored manifests of a tenant: read whatever release up to this one wrote them, written in the format that fits."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final
from weakref import WeakValueDictionary

from dualtrack.domain.errors import ObjectMissing
from dualtrack.objects import manifest_chunks, places
from dualtrack.objects.blobs import BlobCorrupt, BlobStore
from dualtrack.objects.manifest import EMPTY, Manifest
from dualtrack.objects.manifest_chunks import Chunk
from dualtrack.objects.parallel import in_parallel
from dualtrack.objects.places import Place, Span

CHUNKED_FROM: Final = 1024
"""Entries from which a manifest is stored in chunks; below, all of it is stored for each snapshot, unless it names packs."""
CACHED_MANIFESTS: Final = 64
CACHED_ENTRIES: Final = 250_000
"""Entries of the manifests that a process remembers, at about 400 bytes each, less where snapshots share them."""


class Manifests:
    """Thread-safe, and cheap to make: what a process remembers is shared by all."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def get(self, digest: str) -> Manifest:
        """What a snapshot holds, perhaps from memory. Raises `ObjectMissing`, `BlobCorrupt`, whose messages name neither tenant nor key."""
        if digest == EMPTY.digest:
            return EMPTY
        key = self._blobs.key(digest)
        found = _cache.get(key)
        if found is None:
            found = self.read(digest)
            _cache.put(key, found)
        return found

    def read(self, digest: str) -> Manifest:
        """What a snapshot holds, from the store; what it shares with a manifest that is in use in this process is not read again.

        Raises:
            ObjectMissing, BlobCorrupt: it or a part of it is; the messages name neither tenant nor key.
        """
        if digest == EMPTY.digest:
            return EMPTY
        try:
            data = self._blobs.get(digest)
            if manifest_chunks.is_chunked(data):
                return _shared(manifest_chunks.decode(data, digest, _chunks, self._fetch))
            return Manifest.decode(data)
        except ObjectMissing as error:
            raise ObjectMissing(f"The workspace {digest[:12]} is missing from the object store: restore it from a backup.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise BlobCorrupt(f"Blob {digest} is no workspace manifest of a release up to this one: {error}") from error

    def put(self, manifest: Manifest, before: Manifest = EMPTY) -> str:
        """Store a manifest, of which only what `before`, a recorded snapshot, has not; its id."""
        if len(manifest.entries) < CHUNKED_FROM and all(entry.pack is None for entry in manifest.entries):
            blob = self._blobs.put(manifest.encode())
        else:
            data, manifest = manifest_chunks.encode(manifest.entries, before.chunks)
            blob = self._blobs.put(data, ask=False)
            _shared(manifest)
        _cache.put(blob.key, manifest)
        return blob.sha256

    def _fetch(self, wanted: Sequence[Place]) -> Sequence[bytes]:
        """The bytes of these places, in their order."""

        def read(span: Span[Place]) -> list[tuple[Place, bytes]]:
            data = self._blobs.part(span.blob, start=span.start, size=span.size)
            return [(place, span.cut(data, place)) for place, _ in span.items]

        found = dict(pair for pairs in in_parallel(read, places.spans(wanted, lambda place: place)) for pair in pairs)
        return [found[place] for place in wanted]


_chunks: Final[WeakValueDictionary[str, Chunk]] = WeakValueDictionary()


def _shared(manifest: Manifest) -> Manifest:
    """The manifest itself, its chunks known for as long as it is."""
    for chunk in manifest.chunks:
        _chunks[chunk.sha256] = chunk
    return manifest


class _Cache:
    """The least recently used are forgotten first. Thread-safe."""

    def __init__(self) -> None:
        self._manifests: OrderedDict[str, Manifest] = OrderedDict()
        self._entries = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> Manifest | None:
        with self._lock:
            found = self._manifests.get(key)
            if found is not None:
                self._manifests.move_to_end(key)
            return found

    def put(self, key: str, manifest: Manifest) -> None:
        with self._lock:
            old = self._manifests.pop(key, EMPTY)
            self._manifests[key] = manifest
            self._entries += len(manifest.entries) - len(old.entries)
            while len(self._manifests) > CACHED_MANIFESTS or (self._entries > CACHED_ENTRIES and len(self._manifests) > 1):
                self._entries -= len(self._manifests.popitem(last=False)[1].entries)


_cache: Final = _Cache()
