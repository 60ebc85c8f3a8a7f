"""A scripted model as an OpenAI-compatible HTTP server in a process of its own, for tests that go through the real gateway.

    python -m dualtrack.testing.model_server --port 0 [--script FILE] [--delay-s 0] [--chunk-delay-s 0]

Prints one JSON line, `{"url": "http://127.0.0.1:PORT", "base_url": ".../v1"}`, once it listens. Serves `/v1/chat/completions` (plain, and
streamed with usage), `/v1/models`, `/health` and `/stats` (requests answered so far). Any key and any model name will do.

An answer is a script's step (see `dualtrack.testing.model_script`): the script in a fenced block of a user message, else the one in
FILE, else an echo. The step's number is the count of assistant messages and of the steps that a summary says it stands for. A request
with `tools` is answered by native tool calls, one with a JSON schema as `response_format` by a JSON action (its first call), one for a
summary and any other by text.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn

from dualtrack.models.prompts import SUMMARY_ASK, SUMMARY_HEAD
from dualtrack.testing.model_script import Failure, Failures, Script, ScriptedStep, echo, script_in, summary_of, token_estimate
from dualtrack.testing.scripted_model import content_text

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_ASKS_SUMMARY: Final = SUMMARY_ASK.split("\n", 1)[0]
_SUMMARISED: Final = re.compile(re.escape(SUMMARY_HEAD).replace(r"\{steps\}", r"(\d+)"))

_STATUS: Final[dict[Failure, tuple[int, str, str]]] = {
    "rate_limited": (429, "rate_limit_exceeded", "Rate limit reached."),
    "server_error": (500, "server_error", "The server had an error."),
    "context_too_long": (400, "context_length_exceeded", "This model's maximum context length is 8192 tokens; your messages have more."),
    "refused": (400, "invalid_request", "The request is not acceptable."),
}


class _CutError(Exception):
    """Makes the HTTP server close the connection in the middle of an answer."""


@dataclass(frozen=True, slots=True)
class _Answer:
    message: dict[str, Any]
    finish_reason: str
    usage: dict[str, Any]
    delay_s: float = 0
    failure: Failure | None = None


class ModelServer:
    """The server as an ASGI application."""

    def __init__(self, script: Script | None = None, *, delay_s: float = 0, chunk_delay_s: float = 0) -> None:
        self._script = script
        self._delay_s = delay_s
        self._chunk_delay_s = chunk_delay_s
        self._failures = Failures()
        self._ids = itertools.count(1)
        self.requests = 0
        self.disconnects = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        route = (scope["method"], scope["path"])
        if route == ("POST", "/v1/chat/completions"):
            await self._chat(receive, send)
        elif route == ("GET", "/v1/models"):
            await _send_json(
                send, 200, {"object": "list", "data": [{"id": "scripted", "object": "model", "created": 0, "owned_by": "dualtrack"}]}
            )
        elif route == ("GET", "/health"):
            await _send_json(send, 200, {"status": "ok"})
        elif route == ("GET", "/stats"):
            await _send_json(send, 200, {"requests": self.requests, "disconnects": self.disconnects})
        else:
            await _send_error(send, 404, "not_found", f"There is nothing at {scope['path']}.")

    async def _chat(self, receive: Receive, send: Send) -> None:
        self.requests += 1
        try:
            body = json.loads(await _body(receive))
            answer = self._answer(body)
        except (ValueError, TypeError, AttributeError) as error:
            await _send_error(send, 400, "invalid_request", str(error))
            return
        delay = answer.delay_s + self._delay_s
        if delay:
            await asyncio.sleep(delay)
        if answer.failure == "hang":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.disconnects += 1
        elif answer.failure == "cut":
            await _cut(send, stream=bool(body.get("stream")))
        elif answer.failure is not None:
            status, code, text = _STATUS[answer.failure]
            await _send_error(send, status, code, text)
        elif body.get("stream"):
            await self._stream(body, answer, receive, send)
        else:
            head = self._head(body, "chat.completion")
            choice = {"index": 0, "message": answer.message, "finish_reason": answer.finish_reason, "logprobs": None}
            await _send_json(send, 200, head | {"choices": [choice], "usage": answer.usage})

    async def _stream(self, body: dict[str, Any], answer: _Answer, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        gone = asyncio.ensure_future(_disconnect(receive))
        try:
            async for chunk in self._chunks(body, answer):
                if gone.done():
                    self.disconnects += 1
                    return
                await send({"type": "http.response.body", "body": b"data: " + json.dumps(chunk).encode() + b"\n\n", "more_body": True})
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})
        finally:
            gone.cancel()

    async def _chunks(self, body: dict[str, Any], answer: _Answer) -> AsyncIterator[dict[str, Any]]:
        head = self._head(body, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
            return head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}]}

        yield chunk({"role": "assistant", "content": ""})
        for number, word in enumerate((answer.message["content"] or "").split(" ")):
            if self._chunk_delay_s:
                await asyncio.sleep(self._chunk_delay_s)
            yield chunk({"content": word if number == 0 else f" {word}"})
        for index, call in enumerate(answer.message.get("tool_calls", ())):
            yield chunk({"tool_calls": [{"index": index, **call}]})
        yield chunk({}, answer.finish_reason)
        if (body.get("stream_options") or {}).get("include_usage"):
            yield head | {"choices": [], "usage": answer.usage}

    def _head(self, body: dict[str, Any], kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{next(self._ids)}",
            "object": kind,
            "created": int(time.time()),
            "model": str(body.get("model", "scripted")),
        }

    def _answer(self, body: dict[str, Any]) -> _Answer:
        messages = body["messages"] if isinstance(body.get("messages"), list) else []
        if not messages:
            raise ValueError("`messages` must be a list with at least one message.")
        users = [content_text(message) for message in messages if message.get("role") == "user"]
        number = _summarised(users) + sum(message.get("role") == "assistant" for message in messages)
        summary = bool(users) and _ASKS_SUMMARY in users[-1]
        agent = bool(body.get("tools")) or _wants_json(body)
        script = script_in(users) or (self._script if agent else None)
        said = echo(users[-1] if users else "")
        if script is None:
            step = ScriptedStep.model_validate({"tool": "finish", "arguments": {"answer": said}} if agent else {"text": said})
        else:
            step = script.step(number)
        message, finish_reason = _said(summary_of(step, number)) if summary else self._message(body, step)
        written = token_estimate(json.dumps(message)) if step.output_tokens is None else step.output_tokens
        read = token_estimate(json.dumps(messages)) if step.input_tokens is None else step.input_tokens
        usage = {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        conversation = ("summary\n" if summary else "") + (users[0] if users else "")
        return _Answer(message, finish_reason, usage, step.delay_s, self._failures.due(step, conversation, number))

    def _message(self, body: dict[str, Any], step: ScriptedStep) -> tuple[dict[str, Any], str]:
        if not step.calls or not (body.get("tools") or _wants_json(body)):
            return _said(step.text if step.text is not None else step.thought)
        if _wants_json(body):
            call = step.calls[0]
            action = {"thought": step.thought, "tool": call.tool, "arguments": call.arguments}
            if "reflection" in json.dumps(body["response_format"]):
                action = {"reflection": step.reflection or "The last step failed; I go on differently."} | action
            return {"role": "assistant", "content": json.dumps(action)}, "stop"
        calls = [
            {
                "id": f"call_{next(self._ids)}",
                "type": "function",
                "function": {"name": call.tool, "arguments": json.dumps(call.arguments)},
            }
            for call in step.calls
        ]
        text = "\n\n".join(part for part in (step.reflection, step.thought) if part)
        return {"role": "assistant", "content": text or None, "tool_calls": calls}, "tool_calls"


def _said(text: str) -> tuple[dict[str, Any], str]:
    return {"role": "assistant", "content": text}, "stop"


def _summarised(users: Sequence[str]) -> int:
    found = [int(match[1]) for text in users for match in _SUMMARISED.finditer(text)]
    return max(found, default=0)


def _wants_json(body: dict[str, Any]) -> bool:
    return (body.get("response_format") or {}).get("type") == "json_schema"


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cut(send: Send, *, stream: bool) -> None:
    kind = b"text/event-stream" if stream else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind), (b"content-length", b"1000")]})
    await send({"type": "http.response.body", "body": b'data: {"cut' if stream else b'{"id": "cut', "more_body": True})
    raise _CutError


async def _send_json(send: Send, status: int, value: dict[str, Any]) -> None:
    data = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


async def _send_error(send: Send, status: int, code: str, message: str) -> None:
    kind = "invalid_request_error" if status < 500 else "server_error"
    await _send_json(send, status, {"error": {"message": message, "type": kind, "param": None, "code": code}})


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description="A scripted model as an OpenAI-compatible server.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path, help="JSON file with the script of conversations that bring none")
    parser.add_argument("--delay-s", type=float, default=0, help="seconds before every answer")
    parser.add_argument("--chunk-delay-s", type=float, default=0, help="seconds before every word of a streamed answer")
    options = parser.parse_args()
    script = Script.model_validate_json(options.script.read_bytes()) if options.script else None
    app = ModelServer(script, delay_s=options.delay_s, chunk_delay_s=options.chunk_delay_s)
    with socket.create_server((options.host, options.port), backlog=1024) as listener:
        url = f"http://{options.host}:{listener.getsockname()[1]}"
        print(json.dumps({"url": url, "base_url": f"{url}/v1"}), flush=True)  # noqa: T201 - the ready line is this program's output
        uvicorn.Server(uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off")).run(sockets=[listener])


if __name__ == "__main__":
    main()
