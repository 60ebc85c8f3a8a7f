"""A small web site for tests of what goes out: it remembers what came and answers by path, over TLS or not."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import zlib
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Visit:
    """One request; names of headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    lines: tuple[str, ...]
    body: bytes


class Website:
    """Serves until the end of the block.

    Paths: `/echo` gives headers and body back as JSON, `/gzip` the same compressed whatever was asked for, `/drip` the header Authorization
    a byte at a time, `/bytes/N` as many, `/redirect?URL` leads there, `/status/N`, `/upgrade` switches protocols, `/early` refuses a body
    before it came. Anything else says `hello`.

    Attributes:
        visits: all requests that came, in order.
        port: on 127.0.0.1.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.visits: list[Visit] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                with contextlib.suppress(OSError):
                    super().handle_one_request()
                    return
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                return

            def do_GET(self) -> None:
                site._serve(self)

            do_POST = do_PUT = do_HEAD = do_OPTIONS = do_DELETE = do_GET  # noqa: N815 - names that the base class looks for

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                return

            def finish_request(self, request: Any, client_address: Any) -> None:
                if context is not None:
                    request = context.wrap_socket(request, server_side=True)
                try:
                    super().finish_request(request, client_address)
                finally:
                    if context is not None:
                        with contextlib.suppress(OSError):
                            request.shutdown(socket.SHUT_RDWR)
                        request.close()

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path if handler.path.startswith("/redirect?") else handler.path.partition("?")[0]
        if path == "/early":
            self._note(handler, b"")
            handler.close_connection = True
            _answer(handler, 413, b"too much", {"Connection": "close"})
            handler.wfile.flush()
            _drop_the_rest(handler)
            return
        body = self._note(handler, _body(handler))
        told = json.dumps({"headers": dict(handler.headers.items()), "body": body.decode(errors="replace")}).encode()
        if path == "/echo":
            _answer(handler, 200, told, {"X-Seen": handler.headers.get("Authorization", "none")})
        elif path == "/gzip":
            packer = zlib.compressobj(wbits=31)
            _answer(handler, 200, packer.compress(told) + packer.flush(), {"Content-Encoding": "gzip"})
        elif path == "/drip":
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            for mark in handler.headers.get("Authorization", "").encode():
                handler.wfile.write(b"1\r\n" + bytes([mark]) + b"\r\n")
            handler.wfile.write(b"0\r\n\r\n")
        elif path.startswith("/bytes/"):
            _answer(handler, 200, b"x" * int(path.removeprefix("/bytes/")), {})
        elif path.startswith("/redirect?"):
            _answer(handler, 302, b"", {"Location": path.removeprefix("/redirect?")})
        elif path.startswith("/status/"):
            _answer(handler, int(path.removeprefix("/status/")), b"", {})
        elif path == "/upgrade":
            handler.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nframes")
            handler.close_connection = True
        else:
            _answer(handler, 200, b"hello", {})

    def _note(self, handler: BaseHTTPRequestHandler, body: bytes) -> bytes:
        headers = {name.lower(): value for name, value in handler.headers.items()}
        lines = tuple(f"{name}: {value}" for name, value in handler.headers.items())
        self.visits.append(Visit(handler.command, handler.path, headers, lines, body))
        return body


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.headers.get("transfer-encoding") != "chunked":
        return handler.rfile.read(int(handler.headers.get("content-length", "0")))
    parts = []
    while size := int(handler.rfile.readline(), 16):
        parts.append(handler.rfile.read(size))
        handler.rfile.readline()
    handler.rfile.readline()
    return b"".join(parts)


def _drop_the_rest(handler: BaseHTTPRequestHandler) -> None:
    """Say the end and read on to the client's: closing a socket with unread bytes resets it, and the answer might be lost."""
    with contextlib.suppress(OSError):
        handler.connection.shutdown(socket.SHUT_WR)
        while handler.rfile.read1(65536):
            pass


def _answer(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    if status not in {204, 304}:
        handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD" and status not in {204, 304}:
        handler.wfile.write(body)
