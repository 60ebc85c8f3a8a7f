"""`dualtrack chat`: what it asks, what it prints where, and what it remembers."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.outcome import Exit
from cli.session import Session

from .conftest import Router, Run, sse


def _chunk(content: str | None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]}


def test_chat_streams(router: Router, run: Run) -> None:
    router.on(
        "POST /v1/chat/completions", lambda _: sse(_chunk("Hel"), _chunk("lo\x1b[2J"), {"choices": []}, _chunk(None, "stop"), done=True)
    )
    result = run("chat", "Hi", "--system", "Be short", "--model", "qwen")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello\n", "")
    messages = [{"role": "system", "content": "Be short"}, {"role": "user", "content": "Hi"}]
    assert router.body() == {"model": "qwen", "messages": messages, "stream": True}


@pytest.mark.parametrize("arguments", [["chat"], ["chat", "-"]])
def test_chat_reads_standard_input(router: Router, run: Run, arguments: list[str]) -> None:
    router.on("POST /v1/chat/completions", lambda _: sse(_chunk("ok", "length"), done=True))
    result = run(*arguments, stdin="from a file\n")
    assert result.stdout == "ok\n"
    assert "output limit" in result.stderr
    assert router.body()["messages"] == [{"role": "user", "content": "from a file\n"}]


def test_chat_as_json_is_one_document(router: Router, run: Run) -> None:
    router.on("POST /v1/chat/completions", {"id": "chatcmpl_1", "choices": []})
    assert json.loads(run("chat", "Hi", "--json").stdout)["id"] == "chatcmpl_1"
    assert "stream" not in router.body()


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([_chunk("half")], "stream_cut"),
        ([_chunk("half"), {"error": {"message": "gone", "code": "model_unavailable"}}], "model_unavailable"),
    ],
)
def test_a_chat_that_breaks_off_is_an_error(router: Router, run: Run, events: list[Any], code: str) -> None:
    router.on("POST /v1/chat/completions", lambda _: sse(*events))
    result = run("chat", "Hi")
    assert (result.exit_code, result.stdout) == (Exit.API_ERROR, "half\n")
    assert code in result.stderr


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_talk_remembers_and_survives_an_error(router: Router, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cli import chat

    answers: Iterator[httpx.Response] = iter(
        [
            sse(_chunk("one"), done=True),
            httpx.Response(503, json={"error": {"message": "busy", "code": "model_unavailable"}}),
            sse(_chunk("two"), done=True),
            sse(_chunk("three"), done=True),
        ]
    )
    router.on("POST /v1/chat/completions", lambda _: next(answers))
    lines = iter(["a", "", "b", "c", "/clear", "d"])

    def typed(_: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr("sys.stdin", _Terminal())
    monkeypatch.setattr("cli.output.Output.to_terminal", True)
    session = Session(environ={"HOME": str(tmp_path), "DUALTRACK_API_KEY": "k"}, transport=httpx.MockTransport(router))
    chat.chat(session, None, model="fast", system="S")
    said = [[message["content"] for message in router.body(n)["messages"]] for n in range(4)]
    assert said == [["S", "a"], ["S", "a", "one", "b"], ["S", "a", "one", "c"], ["S", "d"]]
