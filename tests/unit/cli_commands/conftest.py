"""Commands against a router made of canned answers, in a folder of their own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from cli.session import Session

JOB: dict[str, Any] = {
    "id": "job_1",
    "object": "job",
    "status": "queued",
    "reason": None,
    "message": None,
    "answer": None,
    "plan": [{"title": "Read", "status": "done"}],
    "step": 0,
    "usage": {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0, "total_tokens": 0, "cost_usd": "0"},
    "instructions": "Summarise",
    "agent": {"name": "default", "model": "deep", "tools": ["finish"]},
    "inputs": [],
    "checks": [],
    "metadata": {"team": "x"},
    "last_seq": 3,
    "created_at": "2026-11-30T08:00:00Z",
}
REPORT = b"# Report\n\x1b[31mred\n"
ARTIFACT = {
    "id": "art_1",
    "name": "../report.md",
    "size": len(REPORT),
    "sha256": hashlib.sha256(REPORT).hexdigest(),
    "content_type": "text/markdown",
}


def sse(*events: Any, done: bool = False) -> httpx.Response:
    frames = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + ("data: [DONE]\n\n" if done else "")
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=frames)


def job_event(seq: int, kind: str, **data: Any) -> dict[str, Any]:
    return {"seq": seq, "type": kind, "at": f"2026-11-30T08:00:0{seq}Z", "job_id": "job_1", "data": data}


class Router:
    """Canned answers by method and path; remembers what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[httpx.Request], httpx.Response]] = {}
        self.asked: list[httpx.Request] = []
        self.on("GET /v1/jobs/job_1", JOB)

    def on(self, what: str, answer: Any, status: int = 200) -> None:
        self.answers[what] = answer if callable(answer) else lambda _: httpx.Response(status, json=answer)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.asked.append(request)
        answer = self.answers.get(f"{request.method} {request.url.path}")
        return answer(request) if answer else httpx.Response(404, json={"error": {"message": "Nothing here.", "code": "not_found"}})

    def body(self, position: int = -1) -> Any:
        return json.loads(self.asked[position].content)


@pytest.fixture
def router() -> Router:
    return Router()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(router: Router, tmp_path: Path) -> Callable[..., Result]:
    environ = {"HOME": str(tmp_path), "DUALTRACK_API_KEY": "dt_key"}

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        session = Session(environ=environ, transport=httpx.MockTransport(router))
        result = CliRunner().invoke(app, list(arguments), input=stdin, obj=session)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


Run = Callable[..., Result]
