"""`shell`, and `check`, by which the engine runs a job's checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dualtrack.domain.tool import Effect, ToolSpec
from dualtrack.sandbox.port import Command
from dualtrack.tools.port import ToolContext, ToolResult
from dualtrack.tools.rendering import command_result, limits_of
from dualtrack.tools.schema import COMMAND_CHARS, TIMEOUT, schema

_COMMAND: Final = {"type": "string", "minLength": 1, "maxLength": COMMAND_CHARS}
_START: Final = 'if command -v bash >/dev/null; then exec bash -c "$1"; fi; exec sh -c "$1"'


class Shell:
    """Runs a command line, by bash where the sandbox has it."""

    spec = ToolSpec(
        "shell",
        "Run a shell command in the workspace directory and return its output. What it starts in the background (`server > log 2>&1 &`) "
        "goes on between calls. No network.",
        schema({"command": _COMMAND}, {"timeout_s": TIMEOUT}),
        Effect.WORKSPACE,
    )

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """See `Tool.run`."""
        command = Command(("sh", "-c", _START, "sh", arguments["command"]), env={"PYTHONDONTWRITEBYTECODE": "1"})
        return command_result(context.bench.run(command, limits_of(arguments, context)), context.limits)


class Check(Shell):
    """A job's check: a command that must end with status 0. Never offered to a model."""

    spec = ToolSpec(
        "check",
        "Run one of the job's checks.",
        schema({"command": _COMMAND}, {"timeout_s": TIMEOUT}),
        Effect.WORKSPACE,
    )
