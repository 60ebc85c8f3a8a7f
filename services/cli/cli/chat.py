"""`dualtrack chat`: the fast track."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from cli.local_file import utf8
from cli.outcome import ApiError, CliError, UsageProblem
from cli.session import Session, command, read_stdin

_MAX_STDIN_BYTES: Final = 8 * 1024 * 1024
Message = dict[str, str]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "chat")(chat)


def chat(
    session: Session,
    message: Annotated[str | None, typer.Argument(help="What to say; '-' or nothing: read standard input, or talk at a terminal.")] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="Track or model that answers.")] = "fast",
    system: Annotated[str | None, typer.Option("--system", "-s", help="Standing orders for the model.")] = None,
) -> None:
    """Ask the fast model and print its answer as it comes."""
    history: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    if message is None and sys.stdin.isatty() and session.out.to_terminal and not session.as_json:
        _talk(session, model, history)
        return
    text = read_stdin(_MAX_STDIN_BYTES, "the message") if message in (None, "-") else str(message)
    if not text.strip():
        raise UsageProblem("Say something: dualtrack chat 'What is a quorum queue?'")
    history.append({"role": "user", "content": text})
    if session.as_json:
        session.out.document(session.client.post("/v1/chat/completions", {"model": model, "messages": history}, slow=True))
        return
    _answer(session, model, history)


def _talk(session: Session, model: str, history: list[Message]) -> None:
    """Question and answer until end of input; a failed or interrupted question is dropped and the talk goes on."""
    session.out.say(f"Talking to {model}. Ctrl-D ends, Ctrl-C stops an answer, /clear starts over.", "dim")
    with contextlib.suppress(ImportError):  # a Python without it reads lines all the same
        import readline  # noqa: F401 - gives `input` its line editing and history
    opening = list(history)
    while True:
        try:
            text = utf8(input("> ")).strip()
        except EOFError:
            session.out.say("")
            return
        except UnicodeError:
            session.out.say("That was no valid UTF-8 text: type it again.", "yellow")
            continue
        if text == "/clear":
            history[:] = opening
        if not text or text == "/clear":
            continue
        asked = len(history)
        history.append({"role": "user", "content": text})
        try:
            history.append({"role": "assistant", "content": _answer(session, model, history)})
        except KeyboardInterrupt:
            session.out.say("\nStopped.", "yellow")
            del history[asked:]
        except CliError as error:
            session.out.error(error)
            del history[asked:]


def _answer(session: Session, model: str, messages: list[Message]) -> str:
    """Stream one answer to standard output; the whole of it."""
    from cli.client import CHAT_SILENCE_S

    body = {"model": model, "messages": messages, "stream": True}
    parts: list[str] = []
    with session.client.stream("POST", "/v1/chat/completions", body=body, silence_s=CHAT_SILENCE_S) as events:
        try:
            for part in _parts(session, (event.data for event in events)):
                parts.append(part)
                session.out.text(part, end="")
        finally:
            if parts and not parts[-1].endswith("\n"):
                session.out.text("")
    return "".join(parts)


def _parts(session: Session, stream: Iterator[str]) -> Iterator[str]:
    for data in stream:
        if data.strip() == "[DONE]":
            return
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ApiError("The stream holds something that is no JSON.", status=0, code="bad_answer") from error
        if not isinstance(chunk, dict):
            continue
        if isinstance(chunk.get("error"), dict):
            found = chunk["error"]
            raise ApiError(str(found.get("message") or "The model failed."), status=0, code=str(found.get("code") or "model_error"))
        yield from _content(session, chunk)
    raise ApiError("The answer broke off: the server closed the stream before its end.", status=0, code="stream_cut")


def _content(session: Session, chunk: dict[str, Any]) -> Iterator[str]:
    for choice in chunk.get("choices") or []:
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta")
        content = delta.get("content") if isinstance(delta, dict) else None
        if isinstance(content, str) and content:
            yield content
        if choice.get("finish_reason") == "length":
            session.out.say("\n(cut: the model's output limit was reached)", "yellow")
