"""Where bytes lie inside larger objects, and how to read many of them with few requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

GAP_BYTES: Final = 128 * 1024
"""Unneeded bytes that are read along rather than asking once more: what a store sends in about the time of a request."""
SPAN_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one request, unless a single item has more; they are held in memory."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Place:
    """Some bytes of a blob."""

    blob: str
    """SHA-256 of the blob."""
    start: int
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Span(Generic[_T]):
    """A part of one blob that is read with one request, and what lies in it."""

    blob: str
    start: int
    size: int
    """Bytes."""
    items: tuple[tuple[Place, _T], ...]
    """In the order of the bytes."""

    def cut(self, data: bytes, place: Place) -> bytes:
        """The bytes of one of the items, out of those of the span; shorter where `data` is."""
        start = place.start - self.start
        return data[start : start + place.size]


def spans(items: Iterable[_T], place_of: Callable[[_T], Place]) -> list[Span[_T]]:
    """The requests that read these items, each once. Items may share bytes."""
    placed = sorted(((place_of(item), item) for item in items), key=lambda pair: (pair[0].blob, pair[0].start))
    found: list[Span[_T]] = []
    group: list[tuple[Place, _T]] = []
    end = 0
    for place, item in placed:
        if group:
            first = group[0][0]
            if place.blob != first.blob or place.start > end + GAP_BYTES or place.start + place.size > first.start + SPAN_BYTES:
                found.append(Span(first.blob, first.start, end - first.start, tuple(group)))
                group, end = [], 0
        group.append((place, item))
        end = max(end, place.start + place.size)
    if group:
        found.append(Span(group[0][0].blob, group[0][0].start, end - group[0][0].start, tuple(group)))
    return found
