"""A witness of side effects: an HTTP server in a process of its own that writes down every call it gets, by its idempotency key.

    python -m dualtrack.testing.witness --log FILE [--port 0]

Prints one JSON line, `{"url": "http://127.0.0.1:PORT"}`, once it listens. A POST to /effects/NAME or /hooks/NAME appends one line to
FILE before it is answered. It stands outside of everything that is broken on purpose, so its log is what really happened.
"""

from __future__ import annotations

import argparse
import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

_MAX_BODY: Final = 65_536
EFFECTS: Final = "/effects/"
HOOKS: Final = "/hooks/"
"""Webhooks are written down as `hook:NAME`, with their message's id as the key."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One call that arrived."""

    name: str
    """What the job's script calls this effect; each is wanted once."""
    key: str
    """The idempotency key that came with it."""


def hook(name: str) -> str:
    """What a webhook to /hooks/NAME is written down as."""
    return f"hook:{name}"


def read(log: Path) -> list[Effect]:
    """All calls that a witness has written down, in order."""
    return [Effect(**json.loads(line)) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    log: Path
    lock = threading.Lock()

    def do_POST(self) -> None:
        self.rfile.read(min(int(self.headers.get("content-length") or 0), _MAX_BODY))
        if self.path.startswith(EFFECTS):
            name, key = self.path.removeprefix(EFFECTS), "idempotency-key"
        elif self.path.startswith(HOOKS):
            name, key = hook(self.path.removeprefix(HOOKS)), "webhook-id"
        else:
            self._answer(404, {"error": "POST to /effects/NAME or /hooks/NAME"})
            return
        line = json.dumps({"name": name, "key": self.headers.get(key, "")})
        with self.lock, self.log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._answer(200, {"done": True})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Say nothing: the log file is the record."""


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description="Writes down every side effect it is asked for.")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    _Handler.log = options.log
    with ThreadingHTTPServer(("127.0.0.1", options.port), _Handler) as server:
        print(json.dumps({"url": f"http://127.0.0.1:{server.server_address[1]}"}), flush=True)  # noqa: T201 - its ready line
        server.serve_forever()


if __name__ == "__main__":
    main()
