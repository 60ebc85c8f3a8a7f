"""Asking the in-sandbox helper (`tools.inside`) for one file operation."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any, Final

from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.tool import Observation
from dualtrack.sandbox.port import Command, Ended
from dualtrack.tools.inside import REFUSED
from dualtrack.tools.port import ToolContext, ToolResult
from dualtrack.tools.rendering import bounded, details_of, text_of

WALL_S: Final = 30.0
"""Most seconds a file operation takes: a FIFO or a regular expression that never ends must not hold a worker."""

_FOOTER_CHARS: Final = 160


def page_chars(context: ToolContext) -> int:
    """Characters of one page, so that page and footer stay in context uncut."""
    return max(1, context.limits.observation_chars - _FOOTER_CHARS)


def ask(context: ToolContext, operation: str, *, writable: bool = False, **request: Any) -> ToolResult:  # noqa: ANN401 - JSON
    """Carry out `operation` of `tools.inside` with the arguments `request`.

    Raises:
        SandboxFailed: the sandbox or the helper itself failed.
    """
    limits = context.limits.sandbox
    command = Command(
        ("python3", "-I", "-S", "-c", _source()), stdin=json.dumps({"operation": operation, **request}).encode(), writable=writable
    )
    bounds = limits.model_copy(update={"wall_time_s": min(WALL_S, limits.wall_time_s)})
    outcome = context.bench.run(command, bounds)
    if outcome.ended is not Ended.EXITED:
        return ToolResult(Observation(ok=False, text=f"[{outcome.note}]"), details=details_of(outcome))
    if outcome.exit_code not in {0, REFUSED}:
        raise SandboxFailed(f"The file helper broke off with status {outcome.exit_code}: {text_of(outcome.stderr)[-2000:]}")
    return ToolResult(
        Observation(ok=outcome.exit_code == 0, text=bounded(text_of(outcome.stdout), context.limits)), details=details_of(outcome)
    )


@cache
def _source() -> str:
    return resources.files("dualtrack.tools").joinpath("inside.py").read_text(encoding="utf-8")
