"""A webhook's receiver: a small HTTP server that remembers what came and answers as it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from dualtrack.net.addresses import AllowList


@dataclass(frozen=True)
class Received:
    """One request; names of headers are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Serves from its start to `close`.

    Attributes:
        requests: all that came, in order.
        answer: called with each request, gives (status, body, headers); may take its time.
        allow: what lets the platform reach it.
    """

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.answer: Callable[[Received], tuple[int, bytes, dict[str, str]]] = lambda _: (200, b"thanks", {})
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                request = Received(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                receiver.requests.append(request)
                status, text, headers = receiver.answer(request)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(text)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as in the base class
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """A sender that went away is no failure of the receiver's."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self.allow = AllowList.parse([f"127.0.0.1:{self.port}"])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
