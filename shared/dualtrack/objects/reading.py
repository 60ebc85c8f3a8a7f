"""Reading from file-like objects that may give less than they were asked for."""

from __future__ import annotations

from typing import BinaryIO


def read_up_to(source: BinaryIO, count: int) -> bytes:
    """Exactly `count` bytes, or fewer at the end of `source` only."""
    data = source.read(count)
    if len(data) == count or not data:
        return data
    parts = [data]
    missing = count - len(data)
    while missing and (more := source.read(missing)):
        parts.append(more)
        missing -= len(more)
    return b"".join(parts)
