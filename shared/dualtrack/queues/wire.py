"""AMQP 0-9-1 frames, many at a time, on connections that kombu and py-amqp have opened and look after.

py-amqp asks the kernel three times for each frame of a message, its event loop takes one method a turn, and it publishes one
message at a time; that was most of what a worker did. Frames: AMQP 0-9-1 specification, sections 2.3.5 and 4.2.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from amqp.exceptions import RecoverableConnectionError, UnexpectedFrame

_BYTES: Final = 65_536
_FRAME: Final = Struct(">BHI")
_FRAME_END: Final = 0xCE
_END: Final = bytes([_FRAME_END])
_OVERHEAD: Final = _FRAME.size + len(_END)
_METHOD, _HEADER, _BODY = 1, 2, 3
_PUBLISH: Final = Struct(">HHH")
_CONTENT: Final = Struct(">HHQH")
_LONG: Final = Struct(">I")
_BASIC, _BASIC_PUBLISH = 60, 40
_MANDATORY: Final = b"\x01"
_PERSISTENT: Final = 2
_PROPERTIES: Final = 1 << 15 | 1 << 14 | 1 << 13 | 1 << 12 | 1 << 11
"""Content type, content encoding, headers, delivery mode, priority."""
_JSON: Final = b"\x10application/json\x05utf-8"


def receive(connection: Any, *, wait: bool) -> None:  # noqa: ANN401 - py-amqp's connection, which has no types
    """Act on all frames that have come: whatever py-amqp has registered for them is called.

    `wait`: for at least some bytes, as long as the connection's `read_timeout` allows. What is no whole frame yet is left
    where py-amqp's own reading finds it.

    Raises:
        OSError: the connection is gone, or (`wait`) nothing came in time.
        AMQPError: what the broker, or a callback, objects to.
    """
    if not connection.connected:
        raise RecoverableConnectionError("Socket was disconnected")
    transport = connection.transport
    try:
        data = transport.sock.recv(_BYTES, 0 if wait else socket.MSG_DONTWAIT)
    except BlockingIOError as error:
        if wait:
            raise TimeoutError("nothing came from the broker in time") from error
        return
    if not data:
        raise ConnectionResetError("Server unexpectedly closed connection")
    transport._read_buffer += data  # noqa: SLF001 - a callback may read by itself
    while len(transport._read_buffer) >= _OVERHEAD:  # noqa: SLF001 - as above
        buffer = transport._read_buffer  # noqa: SLF001 - as above
        kind, channel, size = _FRAME.unpack_from(buffer)
        end = _OVERHEAD + size
        if len(buffer) < end:
            break
        if buffer[end - 1] != _FRAME_END:
            raise UnexpectedFrame(f"Received frame_end {buffer[end - 1]:#04x} while expecting 0xce")
        transport._read_buffer = buffer[end:]  # noqa: SLF001 - as above
        connection.on_inbound_frame((kind, channel, buffer[_FRAME.size : end - 1]))


class Address:
    """Where messages are published to, on any channel."""

    def __init__(self, exchange: str, routing_key: str) -> None:
        self._method = _PUBLISH.pack(_BASIC, _BASIC_PUBLISH, 0) + _short(exchange) + _short(routing_key) + _MANDATORY

    def message(self, channel: int, body: bytes, headers: Mapping[str, str], priority: int) -> bytes:
        """The frames that publish a persistent JSON message, `mandatory`. Body and headers have to fit a frame (at least 4 KB)."""
        table = b"".join(_short(name) + b"S" + _long(value.encode()) for name, value in headers.items())
        content = _CONTENT.pack(_BASIC, 0, len(body), _PROPERTIES) + _JSON + _long(table) + bytes((_PERSISTENT, priority))
        return _frame(_METHOD, channel, self._method) + _frame(_HEADER, channel, content) + _frame(_BODY, channel, body)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + _END


def _short(text: str) -> bytes:
    raw = text.encode()
    return bytes((len(raw),)) + raw


def _long(raw: bytes) -> bytes:
    return _LONG.pack(len(raw)) + raw
