"""Decisions as provider messages, and answers as actions.

Two formats, chosen per model: `native` tool calling, and a JSON-schema-constrained `json` action for models without it. In both,
a step becomes exactly one assistant message followed by what came back, and the messages of a decision begin with all
messages of the decision before it, so that the provider's or engine's prefix cache is hit. Only a summary of older steps breaks that
chain, and begins a new one.
"""

from __future__ import annotations

from typing import Any, Literal

from dualtrack.models import json_actions, native_actions
from dualtrack.models.action_text import Action, ProviderAnswer
from dualtrack.models.port import DecisionRequest, SummaryRequest

ActionFormat = Literal["native", "json"]


def request_body(request: DecisionRequest, action_format: ActionFormat) -> dict[str, Any]:
    """`messages`, and `tools` or `response_format`, in OpenAI's shape, for a decision."""
    return json_actions.request_body(request) if action_format == "json" else native_actions.request_body(request)


def summary_body(request: SummaryRequest, action_format: ActionFormat) -> dict[str, Any]:
    """The same for a summary: the messages of the context's decision, then what is asked for."""
    return json_actions.summary_body(request) if action_format == "json" else native_actions.summary_body(request)


def read_action(answer: ProviderAnswer, request: DecisionRequest, action_format: ActionFormat) -> Action:
    """The action in an answer. Tool names are not checked here.

    Raises:
        ActionUnreadable: there is none.
    """
    return json_actions.read_action(answer, request) if action_format == "json" else native_actions.read_action(answer, request)
