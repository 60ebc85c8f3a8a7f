"""The way from a sandbox's own loopback to its egress proxy: every connection to a TCP port is carried to a unix socket.

Runs inside the sandbox, in a process of its own, as the sandbox's user: standard library only, Python 3.9, nothing of ours imported.
It decides nothing and hides nothing: what a sandbox may reach is the proxy's business, which is outside.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket

PROXY_SOCKET = "/run/egress/proxy.sock"
CONNECTIONS = 64
"""At once; further ones wait."""
CHUNK = 64 * 1024
_BACKLOG = 128
_DESCRIPTORS = 4096
"""More than any process of a sandbox may have."""


def listen(port: int) -> socket.socket:
    """A listener on the loopback; a call returns once connections are taken. Raises `OSError`."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def start(port: int, path: str = PROXY_SOCKET) -> int:
    """Serve in a child process that holds nothing of this one but the listener; the child's id. Connections are taken once it returns.

    Raises:
        OSError: the port is taken, or there can be no further process.
    """
    listener = listen(port)
    try:
        child = os.fork()
        if child == 0:  # pragma: no cover - the child is not measured
            _alone(listener, path)
    finally:
        listener.close()
    return child


def _alone(listener: socket.socket, path: str) -> None:
    """The child's life: it never returns to the code that it was forked from."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        kept = listener.fileno()
        os.closerange(3, kept)
        os.closerange(kept + 1, max(_DESCRIPTORS, kept + 2))
        serve(listener, path)
    finally:
        os._exit(1)


def serve(listener: socket.socket, path: str = PROXY_SOCKET) -> None:
    """Carry connections until the listener is shut down or the process ended."""
    Relay(listener, path).run()


class _End:
    """One socket of a pair, and what waits to be sent to it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        self.socket = sock
        self.other = self
        self.pending = b""
        self.ended = False
        """It has said all."""
        self.finished = False
        """It was told that the other has."""


class Relay:
    """A single-threaded loop over all connections. Holds at most one chunk for each direction of each."""

    def __init__(self, listener: socket.socket, path: str) -> None:
        self._listener = listener
        self._path = path
        self._selector = selectors.DefaultSelector()
        self._ends: set[_End] = set()
        self._listening = True

    def run(self) -> None:
        """Carry connections until the listener is shut down."""
        self._listener.settimeout(0)
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while self._listening:
                for key, events in self._selector.select():
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.data in self._ends:  # it may have been closed by an event before this one
                        self._move(key.data, events)
        finally:
            for end in self._ends:
                end.socket.close()
            self._selector.close()
            self._listener.close()

    def _accept(self) -> None:
        try:
            inside, _ = self._listener.accept()
        except OSError as error:
            self._listening = error.errno not in {errno.EINVAL, errno.EBADF}
            return
        outside = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            outside.connect(self._path)
        except OSError:
            inside.close()
            outside.close()
            return
        with contextlib.suppress(OSError):
            inside.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        here, there = _End(inside), _End(outside)
        here.other, there.other = there, here
        for end in (here, there):
            self._selector.register(end.socket, selectors.EVENT_READ, end)
        self._ends |= {here, there}
        if len(self._ends) >= 2 * CONNECTIONS:
            self._selector.unregister(self._listener)

    def _move(self, end: _End, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._send(end)
        if events & selectors.EVENT_READ and not end.ended and not end.other.pending:
            try:
                data = end.socket.recv(CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            end.ended = not data
            end.other.pending = data
            self._send(end.other)
        if end.finished and end.other.finished:
            self._close(end)
        else:
            self._watch(end)
            self._watch(end.other)

    @staticmethod
    def _send(end: _End) -> None:
        """Send what waits, and the end after it. Who listens no more may still be speaking: a refusal comes before all was said."""
        try:
            if end.pending:
                end.pending = end.pending[end.socket.send(end.pending) :]
            if end.other.ended and not end.pending and not end.finished:
                end.finished = True
                end.socket.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError:
            end.pending = b""
            end.finished = end.other.ended = True

    def _watch(self, end: _End) -> None:
        """Wait for what it can do next, and for nothing else."""
        events = (selectors.EVENT_WRITE if end.pending else 0) | (0 if end.ended or end.other.pending else selectors.EVENT_READ)
        registered = end.socket in self._selector.get_map()
        if events and registered:
            self._selector.modify(end.socket, events, end)
        elif events:
            self._selector.register(end.socket, events, end)
        elif registered:
            self._selector.unregister(end.socket)

    def _close(self, end: _End) -> None:
        for one in (end, end.other):
            if one.socket in self._selector.get_map():
                self._selector.unregister(one.socket)
            one.socket.close()
            self._ends.discard(one)
        if self._listener not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ)
