"""`execute_python`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dualtrack.domain.tool import Effect, ToolSpec
from dualtrack.sandbox.port import Command
from dualtrack.tools.port import ToolContext, ToolResult
from dualtrack.tools.rendering import command_result, limits_of
from dualtrack.tools.schema import TIMEOUT, schema

# A file rather than `python3 -c`: tracebacks then show the lines at fault, and multiprocessing finds `__main__`.
_START: Final = "cat > /tmp/main.py && exec python3 /tmp/main.py < /dev/null"
_ENVIRONMENT: Final = {"PYTHONPATH": "/workspace", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "MPLBACKEND": "Agg"}
_MOUNTED_HOME: Final = {"MPLCONFIGDIR": "/tmp/matplotlib"}  # noqa: S108 - the sandbox's own


class ExecutePython:
    """Runs a program with the workspace as its working directory. Nothing but files lasts from call to call."""

    spec = ToolSpec(
        "execute_python",
        "Run a Python program in the workspace directory and return what it prints. Variables are not kept between calls; files are. "
        "No network.",
        schema({"code": {"type": "string", "minLength": 1, "maxLength": 200_000}}, {"timeout_s": TIMEOUT}),
        Effect.WORKSPACE,
    )

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """See `Tool.run`."""
        command = Command(("sh", "-c", _START), stdin=arguments["code"].encode(), env={**_ENVIRONMENT, **_MOUNTED_HOME})
        outcome = context.sandbox.run(command, context.workspace, limits_of(arguments, context), context.cancel)
        return command_result(outcome, context.limits, no_output="(no output; use print() to see a value)")
