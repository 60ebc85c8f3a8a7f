"""`update_plan`, `finish` and `ask_human`: no executor runs them. The first two are done as the decision is recorded, a question waits."""

from __future__ import annotations

from typing import Final

from dualtrack.domain.tool import ASK_TOOL, FINISH_TOOL, PLAN_TOOL, Effect, ToolSpec
from dualtrack.tools.schema import schema

PLAN_STATUSES: Final = ("pending", "in_progress", "done", "skipped")

UPDATE_PLAN: Final = ToolSpec(
    PLAN_TOOL,
    "Replace your plan: all steps, with their status.",
    schema(
        {
            "steps": {
                "type": "array",
                "minItems": 1,
                "maxItems": 50,
                "items": schema({"title": {"type": "string", "minLength": 1, "maxLength": 300}, "status": {"enum": list(PLAN_STATUSES)}}),
            }
        }
    ),
    Effect.CONTROL,
)

FINISH: Final = ToolSpec(
    FINISH_TOOL,
    "End the job with the final answer to the user. Set success to false if the task could not be done.",
    schema({"answer": {"type": "string", "minLength": 1, "maxLength": 100_000}}, {"success": {"type": "boolean"}}),
    Effect.CONTROL,
)

ASK_HUMAN: Final = ToolSpec(
    ASK_TOOL,
    "Ask the user a question and wait for the answer, which may take hours. Only for what you can't find out or decide yourself.",
    schema(
        {"question": {"type": "string", "minLength": 1, "maxLength": 4000}},
        {"options": {"type": "array", "minItems": 2, "maxItems": 10, "items": {"type": "string", "minLength": 1, "maxLength": 200}}},
    ),
    Effect.CONTROL,
)
