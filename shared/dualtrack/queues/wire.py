"""AMQP 0-9-1 frames, many at a time, on connections that kombu and py-amqp have opened and look after.

py-amqp asks the kernel three times for each frame of a message, its event loop takes one method a turn, and it publishes one
message at a time; that was most of what a worker did. Frames: AMQP 0-9-1 specification, sections 2.3.5 and 4.2.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import Any, Final, NamedTuple

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
_ACK: Final = Struct(">HHQB")
_TAG: Final = Struct(">QB")
_CLASS_AND_METHOD: Final = Struct(">HH")
_BASIC = 60
_BASIC_PUBLISH, _BASIC_DELIVER, _BASIC_ACK, _BASIC_REJECT = 40, 60, 80, 90
_MANDATORY: Final = b"\x01"
_PERSISTENT: Final = 2
_TYPED: Final = 1 << 15 | 1 << 14 | 1 << 13
"""Content type, content encoding, headers."""
_TEXT: Final = ord("S")
_PROPERTIES: Final = 1 << 15 | 1 << 14 | 1 << 13 | 1 << 12 | 1 << 11
"""Content type, content encoding, headers, delivery mode, priority."""
_JSON: Final = b"\x10application/json\x05utf-8"


class Delivery:
    """A message as a consumer gets it, and its answer to the broker. For the thread that owns the connection."""

    __slots__ = ("_channel", "_connection", "body", "delivery_info", "delivery_tag", "headers")

    def __init__(
        self,
        connection: Any,  # noqa: ANN401 - py-amqp's
        channel: int,
        delivery_tag: int,
        headers: dict[str, str],
        body: bytes,
        *,
        redelivered: bool,
    ) -> None:
        self._connection = connection
        self._channel = channel
        self.delivery_tag = delivery_tag
        self.headers = headers
        self.body = body
        self.delivery_info = {"redelivered": redelivered}

    def ack_log_error(self, logger: logging.Logger, errors: tuple[type[Exception], ...], multiple: bool = False) -> None:  # noqa: FBT001, FBT002 - as kombu has it
        """Acknowledge it, and (`multiple`) all that came before it."""
        self._answer(_ACK.pack(_BASIC, _BASIC_ACK, self.delivery_tag, multiple), logger, errors)

    def reject_log_error(self, logger: logging.Logger, errors: tuple[type[Exception], ...]) -> None:
        """Refuse it: it goes to the dead letters."""
        self._answer(_ACK.pack(_BASIC, _BASIC_REJECT, self.delivery_tag, 0), logger, errors)

    def _answer(self, method: bytes, logger: logging.Logger, errors: tuple[type[Exception], ...]) -> None:
        try:
            if not self._connection.connected:
                raise RecoverableConnectionError("Socket was disconnected")
            self._connection.transport.write(_frame(_METHOD, self._channel, method))
            self._connection.bytes_sent += 1
        except errors as error:
            logger.critical("Couldn't answer for message %s, reason: %r", self.delivery_tag, error)


class Deliveries:
    """Takes the messages of one task straight from the frames."""

    def __init__(self, task: str, take: Callable[[Delivery], bool]) -> None:
        """`take` says whether it has taken a message; one that it has not goes the general way."""
        self._task = task
        self._take = take

    def taken(self, connection: Any, channel: int, buffer: bytes, end: int) -> int:  # noqa: ANN401 - py-amqp's
        """Where the frames of the message end whose method is the frame up to `end`; 0: it has to go the general way, or is not all there.

        Only what `Address.message` writes is known here, with one body frame.
        """
        if _CLASS_AND_METHOD.unpack_from(buffer, _FRAME.size) != (_BASIC, _BASIC_DELIVER) or len(buffer) < end + _OVERHEAD:
            return 0
        kind, its_channel, size = _FRAME.unpack_from(buffer, end)
        header_end = end + _OVERHEAD + size
        if len(buffer) < header_end + _OVERHEAD or (kind, its_channel) != (_HEADER, channel):
            return 0
        content = _content(buffer[end + _FRAME.size : header_end - 1])
        if content is None or content.headers.get("task") != self._task:
            return 0
        last = header_end + _OVERHEAD + content.length
        if len(buffer) < last or _FRAME.unpack_from(buffer, header_end) != (_BODY, channel, content.length):
            return 0
        whole = buffer[header_end - 1] == buffer[last - 1] == _FRAME_END
        at = _FRAME.size + _CLASS_AND_METHOD.size + 1
        after = at + buffer[at - 1]
        if not whole or buffer[at:after].decode() not in connection.channels[channel].callbacks:
            return 0
        tag, redelivered = _TAG.unpack_from(buffer, after)
        body = buffer[header_end + _FRAME.size : last - 1]
        return last if self._take(Delivery(connection, channel, tag, content.headers, body, redelivered=bool(redelivered))) else 0


def receive(connection: Any, *, wait: bool, deliveries: Deliveries | None = None) -> None:  # noqa: ANN401 - py-amqp's connection, which has no types
    """Act on all frames that have come: `deliveries` takes its messages, for others whatever py-amqp has registered is called.

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
    connection.bytes_recv += 1
    while len(transport._read_buffer) >= _OVERHEAD:  # noqa: SLF001 - as above
        buffer = transport._read_buffer  # noqa: SLF001 - as above
        kind, channel, size = _FRAME.unpack_from(buffer)
        end = _OVERHEAD + size
        if len(buffer) < end:
            break
        if buffer[end - 1] != _FRAME_END:
            raise UnexpectedFrame(f"Received frame_end {buffer[end - 1]:#04x} while expecting 0xce")
        if deliveries is not None and kind == _METHOD and (last := deliveries.taken(connection, channel, buffer, end)):
            transport._read_buffer = buffer[last:]  # noqa: SLF001 - as above
            continue
        transport._read_buffer = buffer[end:]  # noqa: SLF001 - as above
        connection.on_inbound_frame((kind, channel, buffer[_FRAME.size : end - 1]))


class _Content(NamedTuple):
    """What a header frame says of a message."""

    length: int
    """Bytes of its body."""
    headers: dict[str, str]


def _content(payload: bytes) -> _Content | None:
    """What a header frame says; None where there is anything in it that `Address.message` would not have written."""
    try:
        _, _, length, flags = _CONTENT.unpack_from(payload)
        at = _CONTENT.size + len(_JSON)
        if flags & _TYPED != _TYPED or not payload.startswith(_JSON, _CONTENT.size):
            return None
        at, end = at + _LONG.size, at + _LONG.size + _LONG.unpack_from(payload, at)[0]
        headers = {}
        while at < end:
            value = at + 1 + payload[at]
            name, begin = payload[at + 1 : value].decode(), value + 1 + _LONG.size
            if payload[value] != _TEXT or name.startswith("x-"):  # the broker's own: it has a history
                return None
            at = begin + _LONG.unpack_from(payload, value + 1)[0]
            headers[name] = payload[begin:at].decode()
    except (IndexError, UnicodeDecodeError, StructError):  # py-amqp says what is wrong with it
        return None
    return _Content(length, headers)


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
