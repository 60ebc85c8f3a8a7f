"""Logs: one JSON object a line with the trace they belong to, or plain lines for a person at a terminal."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from opentelemetry import trace

from dualtrack.settings import TelemetrySettings

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """`time level logger message service`, `trace_id` and `span_id` inside a span, `exception` where there is one, and every `extra`."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            line |= {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        return json.dumps(line, default=str, ensure_ascii=False)


def setup(service: str, settings: TelemetrySettings) -> None:
    """Log to stderr from now on, all loggers alike."""
    handler = logging.StreamHandler(sys.stderr)
    if settings.log_format == "json":
        handler.setFormatter(JsonFormatter(service))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    logging.captureWarnings(capture=True)
    for noisy in ("httpx", "httpcore", "botocore", "urllib3", "alembic", "LiteLLM", "opentelemetry", "amqp", "kombu", "uvicorn"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
