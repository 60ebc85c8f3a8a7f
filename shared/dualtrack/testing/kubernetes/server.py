"""The API server of the cluster."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import ssl
import tempfile
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import trustme
import yaml

from dualtrack.settings import KubernetesSettings
from dualtrack.testing.kubernetes.exec_stream import accept_key, serve_exec
from dualtrack.testing.kubernetes.kubelet import Kubelet
from dualtrack.testing.kubernetes.store import Conflict, Store, Thing

TOKEN = "the-token-of-a-test"
NAMESPACE = "sandboxes"
_PATH = re.compile(rf"^/(?:api/v1|apis/[a-z.0-9]+/v1)/namespaces/{NAMESPACE}/([a-z]+)(?:/([a-z0-9.-]+))?(?:/(exec))?$")


class FakeCluster:
    """A context manager. `store` has its objects, `kubelet` its node; `requests` what was asked, as "POST pods".

    Set `minor` for its version, `denied` to verbs and kinds that its access control forbids ("POST networkpolicies") in the words of
    `refusal`, `faults` to statuses
    that the next requests get instead of an answer.
    """

    def __init__(self) -> None:
        self.store = Store()
        self.kubelet = Kubelet(self.store)
        self.requests: list[str] = []
        self.denied: set[str] = set()
        self.faults: deque[int] = deque()
        self.refusal = "forbidden: the test's access control"
        self.minor = "37"
        self._scratch = tempfile.TemporaryDirectory(prefix="dualtrack-cluster-")
        self._authority = trustme.CA()
        self.connections: set[socket.socket] = set()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert("127.0.0.1").configure_cert(context)
        self._server = _Server(self, context)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fake-cluster", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.kubelet.close()
        self._scratch.cleanup()

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}"

    def settings(self, **others: Any) -> KubernetesSettings:
        """What an executor needs to use it."""
        return KubernetesSettings(namespace=NAMESPACE, kubeconfig=self.kubeconfig(), **others)

    def kubeconfig(self, token: str = TOKEN) -> Path:
        """A new file with the way to it."""
        authority = base64.b64encode(self._authority.cert_pem.bytes()).decode()
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": self.address, "certificate-authority-data": authority}}],
            "users": [{"name": "executor", "user": {"token": token}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "executor"}}],
            "current-context": "fake",
        }
        path = Path(self._scratch.name) / f"kubeconfig-{len(list(Path(self._scratch.name).iterdir()))}"
        path.write_text(yaml.safe_dump(content))
        return path

    def names(self, kind: str) -> list[str]:
        return [thing["metadata"]["name"] for thing in self.store.select(kind)]

    def break_connections(self) -> None:
        """Cut every exec, as a restarted API server does."""
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def delete(self, kind: str, name: str) -> Thing | None:
        """As the API does, with what it owns."""
        thing = self.store.get(kind, name)
        if thing is None:
            return None
        if kind == "pods":
            self.store.change(kind, name, lambda pod: pod["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
            threading.Thread(target=self.kubelet.remove, args=(name,), name="fake-deletion").start()
        else:
            self.store.remove(kind, name)
            for of, owned in self.store.owned(thing["metadata"]["uid"]):
                self.delete(of, owned)
        return thing


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, cluster: FakeCluster, context: ssl.SSLContext) -> None:
        self.cluster = cluster
        self._context = context
        super().__init__(("127.0.0.1", 0), _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        with contextlib.suppress(OSError), self._context.wrap_socket(request, server_side=True) as wrapped:
            wrapped.settimeout(60)
            super().finish_request(wrapped, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Nothing is printed."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        cluster = self.server.cluster
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        address = urlsplit(self.path)
        query = parse_qs(address.query)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._refuse(401, "Unauthorized")
            return
        if address.path == "/version":
            self._answer(200, {"major": "1", "minor": cluster.minor, "gitVersion": f"v1.{cluster.minor}.0"})
            return
        found = _PATH.match(address.path)
        if found is None:
            self._refuse(404, "no such path")
            return
        kind, name, exec_ = found.groups()
        asked = f"{self.command} {kind}{'/exec' if exec_ else ''}"
        cluster.requests.append(asked)
        if cluster.faults:
            self._refuse(cluster.faults.popleft(), "a fault of the test")
        elif asked in cluster.denied:
            self._refuse(403, cluster.refusal)
        elif exec_:
            self._exec(name, query)
        else:
            self._object(kind, name, query, body)

    def _object(self, kind: str, name: str | None, query: dict[str, list[str]], body: Thing) -> None:
        cluster, store = self.server.cluster, self.server.cluster.store
        try:
            if self.command == "POST":
                made = store.create(kind, body)
                if kind == "pods":
                    cluster.kubelet.start(made)
                self._answer(201, made)
            elif name is None:
                limit, at = int(query.get("limit", ["500"])[0]), int(query.get("continue", ["0"])[0])
                items = store.select(kind, query.get("labelSelector", [""])[0])
                more = str(at + limit) if at + limit < len(items) else ""
                self._answer(200, {"items": items[at : at + limit], "metadata": {"continue": more}})
            else:
                done = {"GET": lambda: store.get(kind, name), "PUT": lambda: store.replace(kind, name, body)}.get(
                    self.command, lambda: cluster.delete(kind, name)
                )()
                if done is None:
                    self._refuse(404, f'{kind} "{name}" not found')
                else:
                    self._answer(200, done)
        except Conflict:
            self._refuse(409, f"{kind}: conflict")

    def _exec(self, name: str, query: dict[str, list[str]]) -> None:
        cluster = self.server.cluster
        started = cluster.kubelet.execute(name, query["command"])
        if started is None:
            self._refuse(500, "container not found")
            return
        offered = [word.strip() for word in (self.headers.get("Sec-WebSocket-Protocol") or "").split(",")]
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept_key(self.headers["Sec-WebSocket-Key"]))
        self.send_header("Sec-WebSocket-Protocol", offered[0])
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        cluster.connections.add(self.connection)
        try:
            serve_exec(self.connection, started, lambda: cluster.kubelet.check_memory(name))
        finally:
            cluster.connections.discard(self.connection)

    def _refuse(self, status: int, message: str) -> None:
        self._answer(status, {"kind": "Status", "status": "Failure", "message": message, "code": status})

    def _answer(self, status: int, body: Thing) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status == 429:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(content)
