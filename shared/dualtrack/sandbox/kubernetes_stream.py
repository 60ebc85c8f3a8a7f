"""Carries the agent's frames between two pipes of this process and an exec in a pod, in one thread, without ever blocking.

Each WebSocket message is a channel's number and its bytes (`v4.channel.k8s.io`, `v5.channel.k8s.io`). Both directions wait for their
reader, independently of each other, and hold little: who does not read is not read from. A connection that breaks is the end: the agent's
state of the protocol is lost with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import ssl
import time
from typing import Any, Final

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Message, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2
_STATUS: Final = 3
_CHUNK: Final = 32 * 1024
_HELD: Final = 256 * 1024
"""Bytes held in each direction, beyond which its source is not read."""
_SAID_BYTES: Final = 2000
_STATUS_BYTES: Final = 16 * 1024
_PING_S: Final = 15.0
_SILENT_S: Final = 90.0
"""A server that has not sent even a pong for so long is taken for lost."""
_LAST_S: Final = 2.0
"""For a reader to take what came before the end."""


class PodStream:
    """One exec. `run` in a thread; `stop` from any other."""

    def __init__(self, connection: socket.socket, source: int, target: int, stopping: int) -> None:
        """Takes an open exec and three descriptors that stay their owner's.

        Args:
            connection: after the handshake, not blocking; closed at the end.
            source: what is read from it goes to the command's stdin. At its end nothing more is sent.
            target: gets the command's stdout.
            stopping: becomes readable when it is to stop.
        """
        self._socket = connection
        self._source = source
        self._target = target
        self._stopping = stopping
        self._protocol = Connection(ConnectionType.CLIENT)
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._channel: int | None = None
        self._status = bytearray()
        self._stderr = bytearray()
        self._fed = True
        self._heard = self._pinged = time.monotonic()
        for descriptor in (source, target):
            os.set_blocking(descriptor, False)

    @property
    def said(self) -> str:
        """The end of what the command wrote to stderr, and what the server said of its end; bounded."""
        return "; ".join(part for part in (bytes(self._stderr).decode(errors="replace").strip(), self._status_text()) if part)

    def run(self) -> str:
        """Until the command ends, the connection breaks or it is stopped; why, in words, where it is no ordinary end."""
        problem = ""
        try:
            while not self._stopped(0):
                if not self._turn():
                    break
        except (OSError, LocalProtocolError, RemoteProtocolError) as error:
            problem = f"the connection to the pod broke: {error}"
        except TimeoutError as error:
            problem = str(error)
        finally:
            self._drain()
            self._socket.close()
        return problem

    def _turn(self) -> bool:
        """Move what can be moved, else wait until something can; False at the end."""
        moved, open_ = False, True
        if len(self._incoming) < _HELD:
            moved, open_ = self._receive()
        if self._incoming:
            moved = self._write_target() or moved
        if self._fed and len(self._outgoing) < _HELD:
            moved = self._read_source() or moved
        self._keep_alive()
        if self._outgoing:
            moved = self._send() or moved
        if open_ and not moved:
            self._wait()
        return open_

    def _receive(self) -> tuple[bool, bool]:
        """Whether something came, and whether more may."""
        try:
            data = self._socket.recv(_CHUNK)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False, True
        self._heard = time.monotonic()
        self._protocol.receive_data(data or None)
        for event in self._protocol.events():
            if isinstance(event, Message):
                self._take(event)
            elif isinstance(event, Ping):
                self._outgoing += self._protocol.send(event.response())
            elif isinstance(event, CloseConnection):
                with contextlib.suppress(LocalProtocolError):
                    self._outgoing += self._protocol.send(event.response())
                return True, False
        return True, bool(data)

    def _take(self, message: Message[Any]) -> None:
        """A message, or a part of one: the first byte of the whole is the channel."""
        data = message.data.encode() if isinstance(message, TextMessage) else bytes(message.data)
        if self._channel is None and data:
            self._channel, data = data[0], data[1:]
        if self._channel == _STDOUT:
            self._incoming += data
        elif self._channel == _STDERR:
            self._stderr = (self._stderr + data)[-_SAID_BYTES:]
        elif self._channel == _STATUS:
            self._status = (self._status + data)[:_STATUS_BYTES]
        if message.message_finished:
            self._channel = None

    def _write_target(self) -> bool:
        try:
            count = os.write(self._target, self._incoming[:_CHUNK])
        except BlockingIOError:
            return False
        del self._incoming[:count]
        return True

    def _read_source(self) -> bool:
        try:
            data = os.read(self._source, _CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._outgoing += self._protocol.send(BytesMessage(data=bytes((_STDIN,)) + data))
        else:
            self._fed = False
        return bool(data)

    def _send(self) -> bool:
        try:
            count = self._socket.send(memoryview(bytes(self._outgoing[:_CHUNK])))
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        del self._outgoing[:count]
        return count > 0

    def _keep_alive(self) -> None:
        now = time.monotonic()
        if len(self._incoming) >= _HELD:
            self._heard = now  # it is us who don't listen
        elif now - self._heard > _SILENT_S:
            raise TimeoutError(f"the Kubernetes API was silent for {_SILENT_S:g} s")
        if now - self._pinged > _PING_S and not self._outgoing:
            self._pinged = now
            self._outgoing += self._protocol.send(Ping())

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._stopping, select.POLLIN)
        wanted = (select.POLLIN if len(self._incoming) < _HELD else 0) | (select.POLLOUT if self._outgoing else 0)
        if wanted:  # else its end would wake us all the time, before anybody makes room
            poll.register(self._socket, wanted)
        if self._fed and len(self._outgoing) < _HELD:
            poll.register(self._source, select.POLLIN)
        if self._incoming:
            poll.register(self._target, select.POLLOUT)
        poll.poll(_PING_S * 1000)

    def _stopped(self, patience_s: float) -> bool:
        poll = select.poll()
        poll.register(self._stopping, select.POLLIN)
        return bool(poll.poll(patience_s * 1000))

    def _drain(self) -> None:
        """Let the reader have what came before the end."""
        deadline = time.monotonic() + _LAST_S
        poll = select.poll()
        poll.register(self._target, select.POLLOUT)
        poll.register(self._stopping, select.POLLIN)
        with contextlib.suppress(OSError):
            while self._incoming and time.monotonic() < deadline and not self._stopped(0):
                poll.poll(_LAST_S * 1000)
                self._write_target()
        with contextlib.suppress(OSError, LocalProtocolError):
            self._outgoing += self._protocol.send(CloseConnection(code=CloseReason.NORMAL_CLOSURE))
            self._send()

    def _status_text(self) -> str:
        with contextlib.suppress(ValueError):
            found = json.loads(self._status)
            if isinstance(found, dict) and found.get("status") != "Success":
                return str(found.get("message") or "")[:_SAID_BYTES]
        return ""
