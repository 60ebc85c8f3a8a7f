"""The server's side of an exec: standard streams as channels of WebSocket messages."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import select
import ssl
import threading
from collections.abc import Callable
from io import FileIO
from typing import Any

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from dualtrack.sandbox.rung import Launched

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CHUNK = 32 * 1024


def accept_key(key: str) -> str:
    """Of the handshake (RFC 6455, 4.2.2)."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()


def serve_exec(connection: ssl.SSLSocket, started: Launched, ended_for_memory: Callable[[], bool]) -> None:
    """Until the command or the connection ends. A kill for memory is looked for before anything of the command is passed on."""
    wire = _Wire(connection)
    # Descriptors of its own: a pod that is ended closes its sandbox's while they are used here, and soon their numbers are somebody else's.
    with os.fdopen(os.dup(started.input), "wb", 0) as stdin, os.fdopen(os.dup(started.output), "rb", 0) as stdout:
        for channel in (0, 1, 2, 3):
            wire.send(BytesMessage(data=bytes((channel,))))  # as kubelets do
        writer = threading.Thread(target=_output, args=(wire, started, stdout, ended_for_memory), name="fake-exec", daemon=True)
        writer.start()
        with contextlib.suppress(OSError, LocalProtocolError, RemoteProtocolError):
            for data in wire.messages():
                if data[:1] == b"\0" and len(data) > 1:
                    with contextlib.suppress(BrokenPipeError):  # the command has ended; what it said last is still to be read
                        _write(stdin.fileno(), data[1:])
        started.kill()
        writer.join()


def _output(wire: _Wire, started: Launched, stdout: FileIO, ended_for_memory: Callable[[], bool]) -> None:
    with contextlib.suppress(OSError, LocalProtocolError):
        while data := stdout.read(_CHUNK):
            if ended_for_memory():
                break
            wire.send(BytesMessage(data=b"\1" + data))
        ended_for_memory()
        if said := started.said():
            wire.send(BytesMessage(data=b"\2" + said.encode()))
        wire.send(BytesMessage(data=b"\3" + json.dumps({"status": "Failure", "message": "command terminated"}).encode()))
        wire.send(CloseConnection(code=1000))


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


class _Wire:
    """A TLS socket is not for two threads at once: one lock for reading and writing it."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._socket = connection
        self._lock = threading.Lock()
        self._protocol = Connection(ConnectionType.SERVER)

    def send(self, event: Event) -> None:
        with self._lock:
            self._socket.sendall(self._protocol.send(event))

    def messages(self) -> Any:
        """Whole messages, until the other side closes."""
        parts = bytearray()
        while True:
            if not self._socket.pending():
                select.select([self._socket], [], [])
            with self._lock:
                data = self._socket.recv(64 * 1024)
                self._protocol.receive_data(data or None)
                events = list(self._protocol.events())
                for event in events:
                    if isinstance(event, Ping):
                        self._socket.sendall(self._protocol.send(event.response()))
            for event in events:
                if isinstance(event, CloseConnection):
                    return
                if isinstance(event, Message):
                    parts += event.data
                    if event.message_finished:
                        yield bytes(parts)
                        parts.clear()
