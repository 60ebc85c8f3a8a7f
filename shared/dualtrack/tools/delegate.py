"""`delegate`: a part of the work as a job of its own. No executor runs it: the engine starts the child, whose end is the call's outcome."""

from __future__ import annotations

from typing import Any, Final

from dualtrack.domain.tool import DELEGATE_TOOL, Effect, ToolSpec
from dualtrack.tools.schema import PATH, schema

_PATHS: Final = {"type": "array", "maxItems": 50, "items": PATH}
_LIMITS: Final[dict[str, Any]] = {
    "steps": {"type": "integer", "minimum": 1},
    "tokens": {"type": "integer", "minimum": 1},
    "cost_usd": {"type": "number", "minimum": 0},
    "wall_time_s": {"type": "integer", "minimum": 1},
}

DELEGATE: Final = ToolSpec(
    DELEGATE_TOOL,
    "Give a self-contained part of the work to a helper, who starts from a copy of the workspace and knows nothing of this conversation. "
    "Several calls in one step work side by side. You get the answer, and the files named in outputs.",
    schema(
        {"instructions": {"type": "string", "minLength": 1, "maxLength": 50_000, "pattern": r"\S"}},
        {
            "inputs": {**_PATHS, "description": "workspace files to look at"},
            "outputs": {**_PATHS, "description": "files wanted back"},
            "tools": {"type": "array", "minItems": 1, "maxItems": 64, "items": {"type": "string"}, "description": "fewer of your tools"},
            "limits": schema({}, _LIMITS),
        },
    ),
    Effect.WORKSPACE,
)
