"""`http_request` against a real server on this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dualtrack.domain.errors import AnswerBroken, UnknownTool
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.tool import Effect
from dualtrack.net.addresses import AllowList
from dualtrack.settings import ToolSettings
from dualtrack.testing.bench import FakeBench
from dualtrack.tools.factory import open_registry
from dualtrack.tools.http import HttpRequest
from dualtrack.tools.port import ToolContext


class Server(ThreadingHTTPServer):
    """Keeps what it was asked: (method, path, key, body)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, str, str | None, bytes]] = []
        self.release = threading.Event()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.seen.append((self.command, self.path, self.headers["idempotency-key"], body))
        if self.path == "/cut":
            self.close_connection = True
            self.connection.close()
            return
        if self.path == "/slow":
            self.server.release.wait(120)
        status = int(self.path[1:]) if self.path[1:].isdigit() else 200
        self.send_response(status)
        if status == 302:
            self.send_header("location", "/elsewhere")
        text = b"hello"
        self.send_header("content-type", "text/plain")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = answer  # noqa: N815 - names of the base class

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield found
    found.release.set()
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture
def tool(server: Server) -> HttpRequest:
    return HttpRequest([server.place, "*.example.com"], AllowList.parse([server.place]))


def context(cancel: threading.Event | None = None) -> ToolContext:
    return ToolContext(FakeBench(), PlatformLimits(), cancel or threading.Event(), str, "call_7")


def test_a_request_carries_the_calls_key(tool: HttpRequest, server: Server) -> None:
    arguments = {"url": f"http://{server.place}/orders", "method": "POST", "body": "{}", "headers": {"x-team": "a"}}
    result = tool.run(arguments, context())
    assert (result.observation.ok, result.observation.text) == (True, "HTTP 200, text/plain\nhello")
    assert server.seen == [("POST", "/orders", "call_7", b"{}")]
    assert tool.spec.effect is Effect.EXTERNAL


@pytest.mark.parametrize(("status", "ok"), [(201, True), (302, True), (404, False), (503, False)])
def test_every_answer_is_an_observation_and_no_redirect_is_followed(tool: HttpRequest, server: Server, status: int, *, ok: bool) -> None:
    result = tool.run({"url": f"http://{server.place}/{status}"}, context())
    assert result.observation.ok is ok
    assert result.details["status"] == status
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "url", ["http://127.0.0.2:1/", "http://127.0.0.1/", "http://other.example.org/", "ftp://127.0.0.1/", "http://a@b/"]
)
def test_only_the_hosts_that_were_named_are_called(tool: HttpRequest, server: Server, url: str) -> None:
    result = tool.run({"url": url, "method": "POST"}, context())
    assert result.observation.ok is False
    assert result.observation.text.startswith("Nothing was sent: ")
    assert server.seen == []


def test_a_named_host_at_a_private_address_is_refused_unless_the_operator_allows_it(server: Server) -> None:
    result = HttpRequest([server.place], AllowList.parse([])).run({"url": f"http://{server.place}/"}, context())
    assert "DUALTRACK_NET__ALLOW" in result.observation.text
    assert server.seen == []


@pytest.mark.parametrize("name", ["Idempotency-Key", "host", "Content-Length"])
def test_the_platforms_own_headers_can_not_be_set(tool: HttpRequest, server: Server, name: str) -> None:
    result = tool.run({"url": f"http://{server.place}/", "headers": {name: "1"}}, context())
    assert name in result.observation.text
    assert server.seen == []


def test_a_lost_answer_is_a_doubt_only_where_the_method_changes_something(tool: HttpRequest, server: Server) -> None:
    assert tool.run({"url": f"http://{server.place}/cut"}, context()).observation.ok is False
    with pytest.raises(AnswerBroken):
        tool.run({"url": f"http://{server.place}/cut", "method": "POST"}, context())


def test_a_call_that_is_stopped_does_not_wait_for_its_answer(tool: HttpRequest, server: Server) -> None:
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    started = time.monotonic()
    with pytest.raises(AnswerBroken, match="may have been carried out"):
        tool.run({"url": f"http://{server.place}/slow", "method": "POST"}, context(cancel))
    assert time.monotonic() - started < 60


def test_the_tool_exists_where_the_operator_names_hosts() -> None:
    allow = AllowList.parse([])
    assert open_registry(ToolSettings(http_hosts=["api.example.com"]), allow).spec("http_request").effect is Effect.EXTERNAL
    with pytest.raises(UnknownTool):
        open_registry(ToolSettings(), allow).spec("http_request")
