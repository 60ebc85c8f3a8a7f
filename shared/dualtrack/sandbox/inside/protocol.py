"""Frames between a host and the agent in its sandbox: `>BII` (kind, channel, length) and a payload. Used by both sides.

Control payloads are JSON objects. A request larger than a frame comes as PART frames before it. Channels are numbers the host gives to its
requests; whatever answers one carries its number. Each side takes what it reads for a stranger's: all of it is bounded and checked here.
"""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs as much as the rest of this module
    from typing import Any


VERSION = 1
HEADER = struct.Struct(">BII")
MAX_PAYLOAD = 64 * 1024
"""Bytes of one frame's payload."""
MAX_REQUEST = 4 * 1024 * 1024
"""Bytes of a request with its PART frames."""
STDIN_WINDOW = 256 * 1024
"""Bytes of stdin that may be on their way (sent by the host, and not yet reported by the agent as taken by the process)."""

# From the host.
START = 1  # configuration; answered by READY
PART = 2  # more of the request to come
EXEC = 3  # a command; answered by STDOUT, STDERR, TAKEN and at last EXIT or REFUSED
CELL = 4  # Python source; answered in the same way
STDIN = 5
STDIN_END = 6
SIGNAL = 7  # to the process group of a channel; no answer
PING = 8  # answered by PONG
FREEZE = 9  # answered by DONE
THAW = 10  # answered by DONE
LIST = 11  # answered by ENTRIES (each a JSON list) and DONE
GET = 12  # a file; answered by DATA and DONE, or REFUSED
PUT = 13  # a file or directory; DATA and DATA_END follow for a file; answered by DONE or REFUSED
DATA = 14  # both ways
DATA_END = 15
REMOVE = 16  # paths; answered by DONE

# From the agent.
READY = 64
STDOUT = 65
STDERR = 66
TAKEN = 67  # bytes of stdin the process has taken
EXIT = 68
REFUSED = 69  # a request that could not be carried out, and why
PONG = 70
DONE = 71
ENTRIES = 72

FROM_HOST = frozenset((START, PART, EXEC, CELL, STDIN, STDIN_END, SIGNAL, PING, FREEZE, THAW, LIST, GET, PUT, DATA, DATA_END, REMOVE))
FROM_AGENT = frozenset((READY, STDOUT, STDERR, TAKEN, EXIT, REFUSED, PONG, DONE, ENTRIES, DATA))


class ProtocolError(Exception):
    """The other side did not keep to the protocol."""


def frame(kind: int, channel: int, payload: bytes = b"") -> bytes:
    """One encoded frame; `payload` at most `MAX_PAYLOAD` bytes."""
    return HEADER.pack(kind, channel, len(payload)) + payload


def control(kind: int, channel: int, **fields: Any) -> bytes:
    """A control frame with the JSON object `fields`, as PART frames before it where it is large.

    Raises:
        ProtocolError: larger than `MAX_REQUEST`.
    """
    body = json.dumps(fields, separators=(",", ":")).encode()
    if len(body) > MAX_REQUEST:
        raise ProtocolError("a request of %d bytes is larger than %d" % (len(body), MAX_REQUEST))
    frames = [frame(PART, channel, body[at : at + MAX_PAYLOAD]) for at in range(0, len(body) - MAX_PAYLOAD, MAX_PAYLOAD)]
    return b"".join(frames) + frame(kind, channel, body[len(frames) * MAX_PAYLOAD :])


class Decoder:
    """Turns what was read into frames, whatever the pieces it came in; holds less than one frame between two calls."""

    def __init__(self, kinds: frozenset[int]) -> None:
        self._kinds = kinds
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """The frames (kind, channel, payload) that are complete now.

        Raises:
            ProtocolError: an unknown kind or a payload that is too large; nothing after it can be understood.
        """
        buffer = self._buffer
        buffer += data
        frames = []
        at = 0
        end = len(buffer)
        while end - at >= HEADER.size:
            kind, channel, length = HEADER.unpack_from(buffer, at)
            if kind not in self._kinds:
                raise ProtocolError("unknown frame kind %d" % kind)
            if length > MAX_PAYLOAD:
                raise ProtocolError("a frame of %d bytes is larger than %d" % (length, MAX_PAYLOAD))
            body = at + HEADER.size
            if end - body < length:
                break
            at = body + length
            frames.append((kind, channel, bytes(buffer[body:at])))
        del buffer[:at]
        return frames


class Fields:
    """A JSON object from the other side, read field by field."""

    def __init__(self, payload: bytes) -> None:
        """Raises `ProtocolError` unless `payload` is a JSON object."""
        try:
            found = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise ProtocolError("a control payload is not JSON") from error
        if not isinstance(found, dict):
            raise ProtocolError("a control payload is not a JSON object")
        self._found: dict[str, Any] = found

    def _get(self, name: str, kind: type) -> Any:
        value = self._found.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ProtocolError("field %r is not %s" % (name, kind.__name__))
        return value

    def has(self, name: str) -> bool:
        """Whether there is such a field, and not null."""
        return self._found.get(name) is not None

    def text(self, name: str) -> str:
        """A string."""
        value: str = self._get(name, str)
        return value

    def number(self, name: str, least: int = 0, most: int = 2**63 - 1) -> int:
        """An integer from `least` to `most`."""
        value: int = self._get(name, int)
        if not least <= value <= most:
            raise ProtocolError("field %r is out of range" % name)
        return value

    def flag(self, name: str) -> bool:
        """A boolean."""
        value: bool = self._get(name, bool)
        return value

    def texts(self, name: str) -> list[str]:
        """A list of strings."""
        value: list[str] = self._get(name, list)
        if not all(isinstance(item, str) for item in value):
            raise ProtocolError("field %r is not a list of strings" % name)
        return value

    def mapping(self, name: str) -> dict[str, str]:
        """An object of strings."""
        value: dict[str, str] = self._get(name, dict)
        if not all(isinstance(item, str) for item in value.values()):
            raise ProtocolError("field %r is not an object of strings" % name)
        return value

    def numbers(self, name: str) -> dict[str, int]:
        """An object of integers that are not negative."""
        value: dict[str, int] = self._get(name, dict)
        if not all(type(item) is int and item >= 0 for item in value.values()):
            raise ProtocolError("field %r is not an object of numbers" % name)
        return value
