"""What both action formats share: finding JSON and calls in what a model said, and putting what came back into words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dualtrack.domain.tool import ProposedCall, ToolSpec
from dualtrack.models.port import DecisionRequest, SummaryRequest
from dualtrack.models.prompts import SUMMARY_ASK, SUMMARY_HEAD

FINISH: Final = "finish"


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(strict=False, parse_constant=_no_number)  # models put raw newlines into strings
_CHARS_PER_WORD: Final = 8
"""Longer than English prose has it: summaries are full of paths and figures."""
_TOOL_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")


class ActionUnreadable(ValueError):
    """The answer holds no action that can be read; the message tells the model how to do better."""


class Action(NamedTuple):
    """What an answer says: at least one call."""

    thought: str
    reflection: str
    calls: tuple[ProposedCall, ...]


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """The parts of a chat completion that an action is read from."""

    content: str
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """OpenAI's shape: `{"id", "function": {"name", "arguments"}}`."""
    reasoning: str = ""
    cut_off: bool = False
    """The answer ended at the token limit."""


def parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` is, or None. Raw control characters inside strings are let through."""
    try:
        value = _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def objects_in(text: str) -> Iterator[dict[str, Any]]:
    """The outermost JSON objects inside a text, in order."""
    position = text.find("{")
    while position >= 0:
        try:
            value, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            if isinstance(value, dict):
                yield value
        position = text.find("{", end)


def arguments_of(raw: object, tool: str) -> dict[str, Any]:
    """A call's arguments as an object; models send an object, its JSON text, or nothing.

    Raises:
        ActionUnreadable: they are something else.
    """
    if isinstance(raw, Mapping):
        return dict(raw)
    if raw is None or (isinstance(raw, str) and not raw.strip()):
        return {}
    value = parse_object(raw) if isinstance(raw, str) else None
    if value is None:
        raise ActionUnreadable(
            f"The arguments of {tool} are not a JSON object. Call it again with valid JSON; escape quotes and newlines in strings."
        )
    return value


def calls_in_text(text: str) -> tuple[ProposedCall, ...]:
    """Calls that a model wrote into plain text as `{"name": …, "arguments": {…}}` (or with `tool`, or `parameters`), fenced or not."""
    calls = []
    for value in objects_in(text):
        name = value.get("name", value.get("tool"))
        arguments = value.get("arguments", value.get("parameters"))
        if isinstance(name, str) and isinstance(arguments, Mapping):
            calls.append(ProposedCall(tool=name, arguments=dict(arguments)))
    return tuple(calls)


def finish_call(tools: Iterator[ToolSpec] | tuple[ToolSpec, ...], answer: str) -> ProposedCall:
    """A call of `finish` that gives `answer`: in the tool's required (else first) argument."""
    for tool in tools:
        if tool.name == FINISH:
            names = [*tool.parameters.get("required", ()), *tool.parameters.get("properties", {})]
            return ProposedCall(tool=FINISH, arguments={names[0]: answer} if names else {})
    return ProposedCall(tool=FINISH, arguments={"answer": answer})


def provider_name(tool: str) -> str:
    """A tool's name in the alphabet that all providers take."""
    return _TOOL_NAME.sub("_", tool)[:64] or "_"


def cut_off_error() -> ActionUnreadable:
    """For an answer that ended at the token limit."""
    return ActionUnreadable(
        "Your answer was cut off because it was too long. Do less in one step: shorter code, or a long file in several parts."
    )


def observation_text(*, tool: str, ok: bool, observation: str) -> str:
    """An observation as the model reads it."""
    return f"{'Result' if ok else 'FAILED:'} {'of ' if ok else ''}{tool}\n{observation}"


def user_message_text(text: str) -> str:
    """A message that the job's user sent while it ran, as the model reads it: told apart from what the platform itself says."""
    return f"Message from the user:\n{text}"


def opening_texts(request: DecisionRequest) -> list[str]:
    """What stands before the steps: the task, what the user wrote since, and the summary of the steps that are shown no more."""
    texts = [request.task, *map(user_message_text, request.messages)]
    if request.summary:
        texts.append(f"{SUMMARY_HEAD.format(steps=request.summarised)}\n{request.summary}")
    return texts


def summary_ask(request: SummaryRequest) -> str:
    """What a model is told to write its summary."""
    return SUMMARY_ASK.format(words=max(1, request.most_chars // _CHARS_PER_WORD))
