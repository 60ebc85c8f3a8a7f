"""Actions as one JSON object per answer, held to a schema by the engine's grammar: for models without native tool calls.

    {"thought": "…", "tool": "execute_python", "arguments": {"code": "…"}}

with a `reflection` before the thought when one is asked for. One call per decision. The thought comes first and is short: it lets a
small model name its next step before it writes the arguments, and can't run away.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from dualtrack.domain.tool import ProposedCall, ToolSpec
from dualtrack.models.action_text import (
    Action,
    ActionUnreadable,
    ProviderAnswer,
    arguments_of,
    calls_in_text,
    cut_off_error,
    objects_in,
    observation_text,
    opening_texts,
    parse_object,
    summary_ask,
    user_message_text,
)
from dualtrack.models.port import DecisionRequest, PastCall, PastStep, SummaryRequest
from dualtrack.models.prompts import JSON_ACTION_RULES, JSON_EXAMPLE, JSON_EXAMPLE_TOOLS, JSON_GO_ON, JSON_REFLECT

THOUGHT_CHARS: Final = 320
REFLECTION_CHARS: Final = 400
_DROPPED_KEYWORDS: Final = frozenset(
    {"description", "default", "examples", "title", "pattern", "format", "minLength", "maxLength", "$schema"}
)
"""Of a tool's schema: what engines' grammars don't need, or compile slowly or not at all (llama.cpp repeats a rule per character)."""
_UNREADABLE: Final = 'Answer with one JSON object: {"thought": "...", "tool": "<name of a tool>", "arguments": {...}}.'


def request_body(request: DecisionRequest) -> dict[str, Any]:
    """`messages` and `response_format` for a decision. Roles alternate, which the templates of some models insist on."""
    opening = "\n\n".join(opening_texts(request))
    messages: list[dict[str, Any]] = [{"role": "system", "content": _system(request)}, {"role": "user", "content": opening}]
    for step in request.steps:
        if step.reflection:
            messages[-1] = _and(messages[-1], JSON_REFLECT)
        messages += [{"role": "assistant", "content": _said(step)}, {"role": "user", "content": _came_back(step)}]
    if request.reflect:
        messages[-1] = _and(messages[-1], JSON_REFLECT)
    schema = {"anyOf": [_action_schema(spec, reflect=request.reflect) for spec in request.tools]}
    return {"messages": messages, "response_format": {"type": "json_schema", "json_schema": {"name": "action", "schema": schema}}}


def summary_body(request: SummaryRequest) -> dict[str, Any]:
    """`messages` for a summary, which is plain text."""
    messages = request_body(request.context)["messages"]
    return {"messages": [*messages[:-1], _and(messages[-1], summary_ask(request))]}


def read_action(answer: ProviderAnswer, request: DecisionRequest) -> Action:
    """The one call of an answer.

    Raises:
        ActionUnreadable: the answer is no action.
    """
    value = parse_object(answer.content) or next(objects_in(answer.content), None)
    if value is None:
        raise cut_off_error() if answer.cut_off else ActionUnreadable(f"Your answer is no JSON object. {_UNREADABLE}")
    tool = value.get("tool")
    if not isinstance(tool, str) or not tool:
        calls = calls_in_text(answer.content)
        if not calls:
            raise ActionUnreadable(f"Your answer names no tool. {_UNREADABLE}")
        return Action(thought="", reflection="", calls=calls[:1])
    return Action(
        thought=str(value.get("thought") or ""),
        reflection=str(value.get("reflection") or "") if request.reflect else "",
        calls=(ProposedCall(tool=tool, arguments=arguments_of(value.get("arguments"), tool)),),
    )


def tool_docs(request: DecisionRequest) -> str:
    """The tools as the model reads them: one line each."""
    return "Tools:\n" + "\n".join(f"- {_signature(spec)}: {spec.description}" for spec in request.tools)


def _system(request: DecisionRequest) -> str:
    parts = [request.system, JSON_ACTION_RULES, tool_docs(request)]
    if {spec.name for spec in request.tools} >= JSON_EXAMPLE_TOOLS:
        parts.append(JSON_EXAMPLE)
    return "\n\n".join(parts)


def _signature(spec: ToolSpec) -> str:
    properties: Mapping[str, Any] = spec.parameters.get("properties", {})
    required = spec.parameters.get("required", ())
    return f"{spec.name}({', '.join(name if name in required else f'{name}?' for name in properties)})"


def _action_schema(spec: ToolSpec, *, reflect: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {"reflection": {"type": "string", "maxLength": REFLECTION_CHARS}} if reflect else {}
    properties |= {
        "thought": {"type": "string", "maxLength": THOUGHT_CHARS},
        "tool": {"const": spec.name},
        "arguments": _grammar_schema(spec.parameters),
    }
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _grammar_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without the keywords that only people or validators need; property names are kept whatever they are."""
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _DROPPED_KEYWORDS:
            continue
        if key in {"properties", "$defs"} and isinstance(value, Mapping):
            kept[key] = {name: _grammar_schema(inner) for name, inner in value.items()}
        elif isinstance(value, Mapping):
            kept[key] = _grammar_schema(value)
        elif isinstance(value, list):
            kept[key] = [_grammar_schema(item) if isinstance(item, Mapping) else item for item in value]
        else:
            kept[key] = value
    return kept


def _said(step: PastStep) -> str:
    if not step.calls:
        return step.thought or "(no action)"
    head = {"reflection": step.reflection} if step.reflection else {}
    lines = [
        json.dumps(head | {"thought": step.thought, "tool": call.tool, "arguments": dict(call.arguments)}, ensure_ascii=False)
        for call in step.calls
    ]
    return "\n".join(lines)


def _came_back(step: PastStep) -> str:
    parts = [_observed(call) for call in step.calls]
    if step.note:
        parts.append(step.note)
    if not step.note and all(call.ok for call in step.calls):
        parts.append(JSON_GO_ON)
    parts += map(user_message_text, step.messages)
    return "\n\n".join(parts)


def _observed(call: PastCall) -> str:
    return observation_text(tool=call.tool, ok=call.ok, observation=call.observation)


def _and(message: dict[str, Any], text: str) -> dict[str, Any]:
    return message | {"content": f"{message['content']}\n\n{text}"}
