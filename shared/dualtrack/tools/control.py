"""`update_plan` and `finish`: what the planner itself carries out as it records a decision."""

from __future__ import annotations

from typing import Final

from dualtrack.domain.tool import FINISH_TOOL, PLAN_TOOL, Effect, ToolSpec
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
