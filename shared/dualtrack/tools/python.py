"""`execute_python`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dualtrack.domain.tool import Effect, ToolSpec
from dualtrack.sandbox.sessions import PythonCell
from dualtrack.tools.port import ToolContext, ToolResult
from dualtrack.tools.rendering import command_result, limits_of
from dualtrack.tools.schema import TIMEOUT, schema

_SESSION: Final = {
    "enum": ["fresh", "persistent"],
    "description": "fresh (default): a new interpreter. persistent: variables and imports of earlier persistent calls are still there.",
}


class ExecutePython:
    """Runs a program with the workspace as its working directory, in a fresh interpreter or in the job's lasting one."""

    spec = ToolSpec(
        "execute_python",
        "Run a Python program in the workspace directory and return what it prints. Files are kept between calls; variables only with "
        "session=persistent. No network.",
        schema({"code": {"type": "string", "minLength": 1, "maxLength": 200_000}}, {"session": _SESSION, "timeout_s": TIMEOUT}),
        Effect.WORKSPACE,
    )

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """See `Tool.run`."""
        cell = PythonCell(arguments["code"], persistent=arguments.get("session") == "persistent")
        outcome = context.bench.python(cell, limits_of(arguments, context))
        return command_result(outcome, context.limits, no_output="(no output; use print() to see a value)")
