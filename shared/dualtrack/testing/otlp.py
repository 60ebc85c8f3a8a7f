"""An OTLP/HTTP receiver that keeps what it is sent: the exported spans, as any collector would see them."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, slots=True)
class ExportedSpan:
    """A span as it was exported; ids in hexadecimal, `parent_id` empty for a root."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    service: str
    start_ns: int
    end_ns: int
    failed: bool
    attributes: dict[str, Any]


class OtlpReceiver:
    """Listens on a free port of 127.0.0.1 for the time of a `with` block; `spans()` gives what has come so far."""

    def __init__(self) -> None:
        self._spans: list[ExportedSpan] = []
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        found = []
        for resource in request.resource_spans:
            service = next((item.value.string_value for item in resource.resource.attributes if item.key == "service.name"), "")
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes = {
                        item.key: getattr(item.value, item.value.WhichOneof("value") or "string_value") for item in span.attributes
                    }
                    found.append(
                        ExportedSpan(
                            trace_id=span.trace_id.hex(),
                            span_id=span.span_id.hex(),
                            parent_id=span.parent_span_id.hex(),
                            name=span.name,
                            service=service,
                            start_ns=span.start_time_unix_nano,
                            end_ns=span.end_time_unix_nano,
                            failed=span.status.code == 2,
                            attributes=attributes,
                        )
                    )
        with self._lock:
            self._spans += found

    def spans(self) -> list[ExportedSpan]:
        with self._lock:
            return list(self._spans)
