"""From the outcome of a command to the observation a model reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dualtrack.domain.limits import PlatformLimits, SandboxLimits
from dualtrack.domain.tool import Observation
from dualtrack.sandbox.port import Ended, Outcome
from dualtrack.tools.port import ToolContext, ToolResult

NO_OUTPUT = "(no output)"


def text_of(data: bytes) -> str:
    """Output as text: UTF-8, with a replacement character for what is not, and for NUL, which no database column takes."""
    return data.decode("utf-8", errors="replace").replace("\x00", "�")


def bounded(text: str, limits: PlatformLimits) -> str:
    """`text` within `observation_bytes`, without its middle where it is longer."""
    data = text.encode()
    if len(data) <= limits.observation_bytes:
        return text
    half = limits.observation_bytes // 2
    left_out = len(data) - 2 * half
    return f"{data[:half].decode(errors='ignore')}\n[… {left_out} bytes left out]\n{data[-half:].decode(errors='ignore')}"


def refusal(message: str) -> ToolResult:
    """A call that was not carried out, with the reason."""
    return ToolResult(Observation(ok=False, text=message))


def command_result(outcome: Outcome, limits: PlatformLimits, *, no_output: str = NO_OUTPUT) -> ToolResult:
    """What a command printed, how it ended where that was not status 0, and limits it reached. stderr comes last: its end counts."""
    parts = [
        part
        for part in (_stream("", outcome.stdout, outcome.stdout_dropped), _stream("stderr", outcome.stderr, outcome.stderr_dropped))
        if part
    ]
    if outcome.ended is Ended.EXITED and outcome.exit_code != 0:
        parts.append(f"[exit status {outcome.exit_code}]")
    if outcome.note:  # also of a command that exited: a limit it has reached, or Python's lost state
        parts.append(f"[{outcome.note}]")
    text = bounded("\n".join(parts) or no_output, limits)
    return ToolResult(Observation(ok=outcome.exit_code == 0, text=text), details=details_of(outcome))


def _stream(name: str, data: bytes, dropped: int) -> str:
    lines = [text_of(data).rstrip()] if data.strip() else []
    if lines and name:
        lines.insert(0, f"[{name}]")
    if dropped:
        lines.append(f"[{name or 'stdout'}: {dropped} more bytes dropped; print less, or write to a file]")
    return "\n".join(lines)


def details_of(outcome: Outcome) -> Mapping[str, Any]:
    """Facts for events and spans."""
    return {
        "exit_code": outcome.exit_code,
        "ended": outcome.ended.value,
        "signal": outcome.signal,
        "wall_s": round(outcome.wall_s, 3),
        "stdout_dropped": outcome.stdout_dropped,
        "stderr_dropped": outcome.stderr_dropped,
    }


def limits_of(arguments: Mapping[str, Any], context: ToolContext) -> SandboxLimits:
    """The sandbox's limits, with the call's own shorter `timeout_s`."""
    limits = context.limits.sandbox
    wall = min(float(arguments.get("timeout_s", limits.wall_time_s)), limits.wall_time_s)
    return limits.model_copy(update={"wall_time_s": wall})
