"""What is kept of a command's output."""

from __future__ import annotations

from typing import Final

FLOOD_FACTOR: Final = 64
"""A command that writes more than this many times the output limit is killed: below, the rest is dropped and it may finish."""


class Stream:
    """The first `limit` bytes of a stream, and a count of the rest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """Take what was read."""
        self.total += len(data)
        self._kept += data[: max(0, self._limit - len(self._kept))]

    @property
    def kept(self) -> bytes:
        """The kept bytes."""
        return bytes(self._kept)

    @property
    def dropped(self) -> int:
        """How many bytes came after them."""
        return self.total - len(self._kept)
