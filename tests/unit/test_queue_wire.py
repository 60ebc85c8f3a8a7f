"""Frames as py-amqp and the specification have them."""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from amqp.basic_message import Message
from amqp.exceptions import UnexpectedFrame
from amqp.serialization import dumps, loads

from dualtrack.queues.wire import Address, receive


class Transport:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._read_buffer = b""


class Connection:
    """What `receive` needs of py-amqp's connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.connected = True
        self.transport = Transport(sock)
        self.frames: list[tuple[int, int, bytes]] = []
        self.then: Callable[[], Any] = lambda: None

    def on_inbound_frame(self, frame: tuple[int, int, bytes]) -> None:
        self.frames.append(frame)
        self.then()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Connection]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield theirs, Connection(ours)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return bytes((kind,)) + channel.to_bytes(2) + len(payload).to_bytes(4) + payload + b"\xce"


def test_a_message_is_what_py_amqp_would_write() -> None:
    headers = {"task": "dualtrack.plan", "id": "é1"}
    body = b'[["row"], {}, {}]'
    found = Address("dualtrack", "dualtrack.plan").message(7, body, headers, 3)
    properties = Message(
        body, content_type="application/json", content_encoding="utf-8", application_headers=headers, delivery_mode=2, priority=3
    )._serialize_properties()  # type: ignore[attr-defined] # the stub leaves it out
    method = (60).to_bytes(2) + (40).to_bytes(2) + dumps("Bssbb", (0, "dualtrack", "dualtrack.plan", True, False))
    content = (60).to_bytes(2) + (0).to_bytes(2) + len(body).to_bytes(8) + properties
    assert found == frame(1, 7, method) + frame(2, 7, content) + frame(3, 7, body)
    assert loads("Bssbb", method, 4)[0] == [0, "dualtrack", "dualtrack.plan", True, False]


def test_all_that_has_come_is_acted_on_at_once_and_parts_are_kept(ends: tuple[socket.socket, Connection]) -> None:
    far, connection = ends
    wire = frame(1, 1, b"a" * 30) + frame(8, 0, b"") + frame(3, 2, b"b" * 500)
    for end in (len(wire) - 100, len(wire)):
        far.sendall(wire[:end] if end < len(wire) else wire[-100:])
        receive(connection, wait=False)
    assert connection.frames == [(1, 1, b"a" * 30), (8, 0, b""), (3, 2, b"b" * 500)]
    assert connection.transport._read_buffer == b""
    receive(connection, wait=False)  # nothing there: nothing happens


def test_a_callback_that_reads_by_itself_finds_the_rest(ends: tuple[socket.socket, Connection]) -> None:
    far, connection = ends
    far.sendall(frame(1, 1, b"first") + frame(1, 1, b"answer") + frame(1, 1, b"last"))

    def read_one() -> None:
        connection.then = lambda: None
        rest = connection.transport._read_buffer
        assert rest.startswith(frame(1, 1, b"answer"))
        connection.transport._read_buffer = rest[len(frame(1, 1, b"answer")) :]

    connection.then = read_one
    receive(connection, wait=True)
    assert [payload for _, _, payload in connection.frames] == [b"first", b"last"]


def test_what_is_left_after_a_callback_has_failed_is_not_lost(ends: tuple[socket.socket, Connection]) -> None:
    far, connection = ends
    far.sendall(frame(1, 1, b"first") + frame(1, 1, b"second"))
    connection.then = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        receive(connection, wait=True)
    connection.then = lambda: None
    far.sendall(frame(1, 1, b"third"))
    receive(connection, wait=True)
    assert [payload for _, _, payload in connection.frames] == [b"first", b"second", b"third"]


def test_the_end_of_the_connection_and_its_silence_are_errors(ends: tuple[socket.socket, Connection]) -> None:
    far, connection = ends
    connection.transport.sock.setblocking(False)
    with pytest.raises(TimeoutError):
        receive(connection, wait=True)
    far.close()
    with pytest.raises(ConnectionResetError):
        receive(connection, wait=False)


def test_what_is_no_frame_is_refused(ends: tuple[socket.socket, Connection]) -> None:
    far, connection = ends
    far.sendall(frame(1, 1, b"x")[:-1] + b"?")
    with pytest.raises(UnexpectedFrame):
        receive(connection, wait=True)
