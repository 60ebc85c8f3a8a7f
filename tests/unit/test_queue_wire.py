"""Frames as py-amqp and the specification have them."""

import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from amqp.basic_message import Message
from amqp.exceptions import RecoverableConnectionError, UnexpectedFrame
from amqp.serialization import dumps, loads

from dualtrack.queues.wire import Address, Deliveries, Delivery, receive

LOG = logging.getLogger(__name__)


class Transport:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._read_buffer = b""


class Connection:
    """What `receive` needs of py-amqp's connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.connected = True
        self.bytes_recv = 0
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


def delivered(
    body: bytes, tag: int = 1, *, redelivered: bool = False, consumer: str = "tag", task: str = "dualtrack.plan", **more: Any
) -> bytes:
    """The frames of a message as a consumer gets it."""
    message = Message(
        body,
        **{"content_type": "application/json", "content_encoding": "utf-8", "application_headers": {"lang": "py", "task": task}} | more,
    )
    method = (60).to_bytes(2) + (60).to_bytes(2) + dumps("sLbss", (consumer, tag, redelivered, "dualtrack", "dualtrack.plan"))
    properties: bytes = message._serialize_properties()  # type: ignore[attr-defined] # the stub leaves it out
    content = (60).to_bytes(2) + (0).to_bytes(2) + len(body).to_bytes(8) + properties
    return frame(1, 3, method) + frame(2, 3, content) + frame(3, 3, body)


class Channel:
    def __init__(self, *consumers: str) -> None:
        self.callbacks = dict.fromkeys(consumers)


@pytest.fixture
def taken(ends: tuple[socket.socket, Connection]) -> tuple[list[Delivery], Deliveries]:
    ends[1].channels = {3: Channel("tag")}  # type: ignore[attr-defined]
    found: list[Delivery] = []

    def take(delivery: Delivery) -> bool:
        if delivery.body != b"none of ours":
            found.append(delivery)
        return delivery.body != b"none of ours"

    return found, Deliveries("dualtrack.plan", take)


def test_messages_are_taken_straight_from_the_frames(
    ends: tuple[socket.socket, Connection], taken: tuple[list[Delivery], Deliveries]
) -> None:
    far, connection = ends
    found, deliveries = taken
    far.sendall(frame(8, 0, b"") + delivered(b"one") + delivered(b"two", 2**40, redelivered=True, priority=3, delivery_mode=2))
    receive(connection, wait=True, deliveries=deliveries)
    assert [(each.body, each.delivery_tag, each.delivery_info["redelivered"]) for each in found] == [
        (b"one", 1, False),
        (b"two", 2**40, True),
    ]
    assert connection.frames == [(8, 0, b"")]
    assert found[0].headers == {"lang": "py", "task": "dualtrack.plan"}


def test_headers_that_are_broken_are_left_to_py_amqp(
    ends: tuple[socket.socket, Connection], taken: tuple[list[Delivery], Deliveries]
) -> None:
    far, connection = ends
    found, deliveries = taken
    good = delivered(b"x")
    at = good.index(b"\x04lang")
    for broken in (good[: at - 1] + b"\xff" + good[at:], good[:at] + b"\xff" + good[at + 1 :], good.replace(b"lang", b"la\xffg")):
        connection.frames.clear()
        far.sendall(broken)
        receive(connection, wait=True, deliveries=deliveries)
        assert found == []
        assert len(connection.frames) == 3


@pytest.mark.parametrize(
    "wire",
    [
        delivered(b"x", consumer="cancelled"),
        delivered(b"x", task="somebody.elses"),
        delivered(b"x", content_type="application/x-python-serialize"),
        delivered(b"x", content_encoding=None),
        delivered(b"none of ours"),
        delivered(b"x", application_headers={"task": "dualtrack.plan", "x-delivery-count": 1}),
        delivered(b"x", application_headers={"task": "dualtrack.plan", "x-first-death-reason": "expired"}),
        delivered(b"x", application_headers={"task": ["dualtrack.plan"]}),
        delivered(b"x")[:-9] + frame(3, 3, b"") + frame(3, 3, b"x"),  # a body in two parts
        frame(1, 3, (60).to_bytes(2) + (80).to_bytes(2) + b"x" * 9),
    ],
)
def test_what_is_not_as_we_publish_goes_the_general_way(
    ends: tuple[socket.socket, Connection], taken: tuple[list[Delivery], Deliveries], wire: bytes
) -> None:
    far, connection = ends
    found, deliveries = taken
    far.sendall(wire + frame(8, 0, b""))
    receive(connection, wait=True, deliveries=deliveries)
    assert found == []
    assert b"".join(frame(*each) for each in connection.frames) == wire + frame(8, 0, b"")


def test_a_message_that_has_not_all_come_is_waited_for_by_py_amqp(
    ends: tuple[socket.socket, Connection], taken: tuple[list[Delivery], Deliveries]
) -> None:
    far, connection = ends
    found, deliveries = taken
    wire = delivered(b"in parts")
    for byte in wire:
        far.sendall(bytes((byte,)))
        receive(connection, wait=False, deliveries=deliveries)
    assert found == []
    assert b"".join(frame(*each) for each in connection.frames) == wire


def test_answers_are_frames_and_a_lost_connection_is_only_logged(ends: tuple[socket.socket, Connection]) -> None:
    _, connection = ends
    wire: list[bytes] = []
    connection.bytes_sent = 0  # type: ignore[attr-defined]
    connection.transport.write = wire.append  # type: ignore[attr-defined]
    delivery = Delivery(connection, 3, 2**33, {}, b"", redelivered=False)
    delivery.ack_log_error(LOG, (OSError,), multiple=True)
    delivery.reject_log_error(LOG, (OSError,))
    assert wire == [
        frame(1, 3, (60).to_bytes(2) + (80).to_bytes(2) + dumps("Lb", (2**33, True))),
        frame(1, 3, (60).to_bytes(2) + (90).to_bytes(2) + dumps("Lb", (2**33, False))),
    ]
    connection.connected = False
    delivery.ack_log_error(LOG, (OSError, RecoverableConnectionError))
    assert len(wire) == 2
