"""Actions by the provider's own tool calling.

A plain text answer without a call is the final answer, as in every agent loop over native calls: it becomes `finish` with that
text. Not so when a reflection was asked for: then text alone is the reflection, and the call is missing.
"""

from __future__ import annotations

import json
from typing import Any, Final

from dualtrack.domain.tool import ProposedCall, ToolSpec
from dualtrack.models.action_text import (
    Action,
    ActionUnreadable,
    ProviderAnswer,
    arguments_of,
    calls_in_text,
    cut_off_error,
    finish_call,
    observation_text,
    opening_texts,
    provider_name,
    summary_ask,
    user_message_text,
)
from dualtrack.models.port import DecisionRequest, PastStep, SummaryRequest

REFLECT: Final = (
    "Before you go on: begin your answer with two or three sentences on what went wrong in the last step, why, and what you do "
    "differently now. Then call the tool of your next step in the same answer."
)
_NO_CALL: Final = "You reflected but called no tool. Call the tool of your next step, or `finish` if the work is done."
_EMPTY: Final = "Your answer was empty. Call a tool, or `finish` if the work is done."


def request_body(request: DecisionRequest) -> dict[str, Any]:
    """`messages` and `tools` for a decision."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": request.system}]
    messages += [{"role": "user", "content": text} for text in opening_texts(request)]
    for number, step in enumerate(request.steps):
        messages += _step_messages(number, step)
    if request.reflect:
        messages.append({"role": "user", "content": REFLECT})
    return {"messages": messages, "tools": [_tool(spec) for spec in request.tools]}


def summary_body(request: SummaryRequest) -> dict[str, Any]:
    """`messages` and `tools` for a summary: those of the decision, for the cache's sake, but no tool may be called."""
    body = request_body(request.context)
    return body | {"messages": [*body["messages"], {"role": "user", "content": summary_ask(request)}], "tool_choice": "none"}


def read_action(answer: ProviderAnswer, request: DecisionRequest) -> Action:
    """The calls of an answer; thought and reflection are its text.

    Raises:
        ActionUnreadable: no call where one is needed, or arguments that are no JSON object.
    """
    text = answer.content.strip()
    names = {provider_name(spec.name): spec.name for spec in request.tools}
    calls = []
    for call in answer.tool_calls:
        function = call.get("function") or {}
        said = str(function.get("name") or "")
        tool = names.get(said, said)
        try:
            arguments = arguments_of(function.get("arguments"), tool)
        except ActionUnreadable as error:
            raise (cut_off_error() if answer.cut_off else error) from error
        calls.append(ProposedCall(tool=tool, arguments=arguments, provider_id=call.get("id")))
    if not calls:
        calls = list(calls_in_text(text))
    if calls:
        thought = text or answer.reasoning.strip()
        return Action(thought="", reflection=text, calls=tuple(calls)) if request.reflect and text else Action(thought, "", tuple(calls))
    if answer.cut_off:
        raise cut_off_error()
    if not text:
        raise ActionUnreadable(_EMPTY)
    if request.reflect:
        raise ActionUnreadable(_NO_CALL)
    return Action(thought="", reflection="", calls=(finish_call(tuple(request.tools), text),))


def _tool(spec: ToolSpec) -> dict[str, Any]:
    function = {"name": provider_name(spec.name), "description": spec.description, "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}


def _step_messages(number: int, step: PastStep) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if step.reflection:
        messages.append({"role": "user", "content": REFLECT})
    text = "\n\n".join(part for part in (step.reflection, step.thought) if part)
    said: dict[str, Any] = {"role": "assistant", "content": text or ("" if step.calls else "(no action)")}
    if step.calls:
        said["tool_calls"] = [
            {
                "id": _call_id(number, position),
                "type": "function",
                "function": {"name": provider_name(call.tool), "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for position, call in enumerate(step.calls)
        ]
    messages.append(said)
    messages += [
        {
            "role": "tool",
            "tool_call_id": _call_id(number, position),
            "content": call.observation if call.ok else observation_text(tool=call.tool, ok=False, observation=call.observation),
        }
        for position, call in enumerate(step.calls)
    ]
    if step.note:
        messages.append({"role": "user", "content": step.note})
    messages += [{"role": "user", "content": user_message_text(text)} for text in step.messages]
    return messages


def _call_id(step: int, position: int) -> str:
    """The same id on every rendering; nine letters and digits, which is what Mistral insists on."""
    return f"c{step % 100_000:05d}{position % 1000:03d}"
