"""Server-sent events from bytes (WHATWG HTML, "Server-sent events", 9.2.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
"""Largest event taken; a job's largest (its instructions, its answer) stay far below."""
_BOM: Final = b"\xef\xbb\xbf"


class StreamBroken(Exception):
    """The stream is no event stream, or one of its events is too large."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One dispatched event. `id` is the last one seen, as the standard has it."""

    type: str
    data: str
    id: str


class SSEParser:
    """Feed bytes as they come, cut anywhere; get the events they complete."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        """Pieces of the line that has not ended yet, joined once it does."""
        self._waiting = 0
        self._size = 0
        self._data: list[str] = []
        self._type = ""
        self._id = ""
        self._started = False
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that `chunk` completes, in order.

        Raises:
            StreamBroken: an event over `MAX_EVENT_BYTES`.
        """
        if not chunk:
            return []
        if self._after_cr:
            # A line end CR LF was cut in two: the line was already taken at the CR.
            chunk = chunk.removeprefix(b"\n")
        if not self._started:
            chunk = b"".join([*self._rest, chunk])
            self._rest, self._waiting = [], 0
            if len(chunk) >= len(_BOM):
                chunk = chunk.removeprefix(_BOM)
                self._started = True
        self._after_cr = chunk.endswith(b"\r")
        first, *others = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        lines: list[bytes] = []
        if others:
            lines = [b"".join([*self._rest, first]), *others[:-1]]
            self._rest, self._waiting = [], 0
        last = others[-1] if others else first
        self._rest.append(last)
        self._waiting += len(last)
        events = []
        for line in lines:
            self._size += len(line)
            event = self._line(line.decode("utf-8", "replace"))
            if event is not None:
                events.append(event)
        if self._size + self._waiting > MAX_EVENT_BYTES:
            raise StreamBroken(f"an event is larger than {MAX_EVENT_BYTES} bytes")
        return events

    def _line(self, line: str) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._type = value
        elif field == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> ServerEvent | None:
        data, kind = self._data, self._type
        self._data, self._type, self._size = [], "", 0
        return ServerEvent(kind or "message", "\n".join(data), self._id) if data else None
