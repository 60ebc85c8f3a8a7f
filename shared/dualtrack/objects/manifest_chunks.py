"""Manifests of large workspaces: in chunks, of which a new snapshot stores only those that changed.

One object is one snapshot: a first line (`dualtrack-manifest 2` and the length of the header), the header (JSON: each chunk's digest
and where it lies) and the chunks that are new. Other chunks lie in the objects of earlier snapshots. A chunk is a run of entries in the
order of their paths, cut where a checksum of the path says so: adding a file changes one chunk, whatever comes behind it.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dualtrack.domain.errors import InvalidPath
from dualtrack.domain.paths import workspace_path
from dualtrack.objects.manifest import Entry, EntryKind, Manifest, Pack, as_json, from_json
from dualtrack.objects.places import Place

CHUNK_ENTRIES: Final = 96
"""Entries of a chunk on average, beyond the least, together about 20 KiB; what a snapshot with one change stores at least."""
MIN_CHUNK_ENTRIES: Final = 32
MAX_CHUNK_ENTRIES: Final = 1024
"""Names can be chosen so that they cut always, or never."""
MAX_BLOBS: Final = 16
"""Objects of earlier snapshots that one refers to; chunks of others are stored again, so that reading stays a matter of few requests."""
_MAGIC: Final = b"dualtrack-manifest 2 "
_LENGTH_DIGITS: Final = 10
_FIRST_LINE: Final = len(_MAGIC) + _LENGTH_DIGITS + 1

Fetch = Callable[[Sequence[Place]], Sequence[bytes]]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Chunk:
    """A stored run of entries."""

    sha256: str
    place: Place
    entries: tuple[Entry, ...]


def is_chunked(data: bytes) -> bool:
    """Whether these are the bytes of a manifest in chunks."""
    return data.startswith(_MAGIC)


def encode(entries: Sequence[Entry], before: Sequence[Chunk]) -> tuple[bytes, Manifest]:
    """The bytes to store and the manifest as it is once they are; chunks of `before`, which are stored, are used again."""
    runs = list(_runs(entries))
    reused = _reusable(runs, before)
    body = bytearray()
    header: list[dict[str, Any]] = []
    for run in runs:
        old = reused.get(run[0].path)
        if old is not None:
            header.append({"sha256": old.sha256, "blob": old.place.blob, "start": old.place.start, "size": old.place.size})
            continue
        data = _chunk_bytes(run)
        header.append({"sha256": hashlib.sha256(data).hexdigest(), "start": len(body), "size": len(data)})
        body += data
    head = _json({"chunks": header})
    whole = b"%s%0*d\n%s%s" % (_MAGIC, _LENGTH_DIGITS, len(head), head, bytes(body))
    digest = hashlib.sha256(whole).hexdigest()
    places = _places(header, digest, len(head))
    chunks = tuple(
        reused.get(run[0].path) or Chunk(item["sha256"], place, run) for run, item, place in zip(runs, header, places, strict=True)
    )
    return whole, Manifest(tuple(entries), chunks)


def decode(data: bytes, digest: str, known: Mapping[str, Chunk], fetch: Fetch) -> Manifest:
    """The manifest that `encode` wrote.

    Args:
        data: the object's bytes, checked.
        digest: their SHA-256.
        known: chunks by their digests that are read already.
        fetch: gives the bytes of places in other objects.

    Raises:
        InvalidPath, ValueError, KeyError, TypeError: it is no such manifest, or a chunk is not what the header says.
    """
    line_end = data.index(b"\n", 0, _FIRST_LINE)
    length = int(data[len(_MAGIC) : line_end])
    header = json.loads(data[_FIRST_LINE : _FIRST_LINE + length])["chunks"]
    places = _places(header, digest, length)
    missing = [place for item, place in zip(header, places, strict=True) if place.blob != digest and item["sha256"] not in known]
    fetched = dict(zip(missing, fetch(missing), strict=True))
    chunks = []
    for item, place in zip(header, places, strict=True):
        chunk = known.get(item["sha256"])
        if chunk is None:
            part = data[place.start : place.start + place.size] if place.blob == digest else fetched[place]
            chunk = Chunk(item["sha256"], place, _entries(part, item["sha256"]))
        # The same bytes may lie in several objects: this snapshot keeps alive those that it names.
        chunks.append(chunk if chunk.place == place else Chunk(chunk.sha256, place, chunk.entries))
    entries = tuple(entry for chunk in chunks for entry in chunk.entries)
    _check(entries)
    return Manifest(entries, tuple(chunks))


def _runs(entries: Sequence[Entry]) -> Iterator[tuple[Entry, ...]]:
    start = 0
    for end, entry in enumerate(entries, 1):
        length = end - start
        if (length >= MIN_CHUNK_ENTRIES and zlib.crc32(entry.path.encode()) % CHUNK_ENTRIES == 0) or length == MAX_CHUNK_ENTRIES:
            yield tuple(entries[start:end])
            start = end
    if start < len(entries):
        yield tuple(entries[start:])


def _reusable(runs: Sequence[tuple[Entry, ...]], before: Sequence[Chunk]) -> dict[str, Chunk]:
    """By first path: the chunks that are as they were, in no more than `MAX_BLOBS` objects, those that hold most of them."""
    first = {run[0].path: run for run in runs}
    same = [chunk for chunk in before if first.get(chunk.entries[0].path) == chunk.entries]
    held = Counter(chunk.place.blob for chunk in same)
    kept = {blob for blob, _ in held.most_common(MAX_BLOBS)}
    return {chunk.entries[0].path: chunk for chunk in same if chunk.place.blob in kept}


def _chunk_bytes(run: Sequence[Entry]) -> bytes:
    packs: dict[Pack, int] = {}
    items = []
    for entry in run:
        item = as_json(entry)
        if entry.pack is not None:
            item |= {"pack": packs.setdefault(entry.pack, len(packs)), "start": entry.start}
        items.append(item)
    return _json({"entries": items, "packs": [[pack.sha256, pack.size] for pack in packs]})


def _entries(data: bytes, digest: str) -> tuple[Entry, ...]:
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError("a part of the manifest is damaged")
    document = json.loads(data)
    packs = [Pack(sha256, size) for sha256, size in document["packs"]]
    entries = tuple(from_json(item, packs[item["pack"]] if "pack" in item else None) for item in document["entries"])
    for entry in entries:
        if entry.path == "." or workspace_path(entry.path) != entry.path:
            raise InvalidPath(f"{entry.path!r} is no normal workspace path.")
    return entries


def _check(entries: Sequence[Entry]) -> None:
    """Raises `InvalidPath` unless paths are in order and every one lies in a directory that is an entry."""
    directories = {""}
    last = ""
    for entry in entries:
        if entry.path <= last:
            raise InvalidPath(f"{entry.path!r} is not where it belongs in a workspace.")
        last = entry.path
        if entry.path.rpartition("/")[0] not in directories:
            raise InvalidPath(f"{entry.path!r} lies in no directory.")
        if entry.kind is EntryKind.DIRECTORY:
            directories.add(entry.path)


def _places(header: Sequence[Mapping[str, Any]], digest: str, length: int) -> list[Place]:
    """Where the chunks lie; those without an object's name lie in this one, behind its header."""
    behind = _FIRST_LINE + length
    return [
        Place(item["blob"], item["start"], item["size"]) if "blob" in item else Place(digest, behind + item["start"], item["size"])
        for item in header
    ]


def _json(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
