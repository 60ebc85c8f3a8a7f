"""What the jobs of a chaos run do, and what must be left of it afterwards. Pure; a seed gives the same jobs."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

EXTERNAL_TOOL: Final = "http_request"
ASKED: Final = "-asked"
"""Effects whose name ends so need a person's consent first."""
POLICY: Final = {"tool": EXTERNAL_TOOL, "arguments": {"url": f"{ASKED}$"}, "action": "ask"}
LONG_LINES: Final = 1500
"""Lines of the observation that is too long for the context, so that it is uploaded."""
QUICK_S: Final = 0.15
"""Longest that the model thinks."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One job: its script, and what it leaves behind when everything happens exactly once."""

    token: str
    """Its idempotency key, and the beginning of the names of its effects."""
    script: tuple[dict[str, Any], ...]
    lines: tuple[str, ...]
    """What its file `log` holds at the end: each workspace effect once, in order."""
    effects: tuple[str, ...]
    """Names of its external effects, as the witness will hear of them."""
    webhook: str
    """Address that is told of its success."""

    @property
    def steps(self) -> int:
        """Decisions until its end."""
        return len(self.script)


def plan_jobs(
    seed: int, count: int, steps: tuple[int, int], *, witness_url: str, prefix: str = "job", most_delay_s: float = QUICK_S
) -> list[PlannedJob]:
    """Jobs of as many steps as the range says."""
    rng = random.Random(seed)
    return [_job(rng, f"{prefix}-{seed}-{n}", rng.randint(*steps), witness_url, most_delay_s) for n in range(count)]


def _job(rng: random.Random, token: str, steps: int, witness_url: str, most_delay_s: float) -> PlannedJob:
    script: list[dict[str, Any]] = []
    lines: list[str] = []
    effects: list[str] = []
    kinds = ["append", "append", "append", "read", "long", "external", ASKED]
    must = ["append", "external", "long", ASKED]
    for n in range(max(steps - 2, 1)):
        kind = must[n] if n < len(must) else rng.choice(kinds)
        if kind == "append":
            lines.append(str(n))
            step: dict[str, Any] = {"tool": "shell", "arguments": {"command": f"echo {n} >> log"}}
        elif kind == "read":
            step = {"calls": [{"tool": "list_files", "arguments": {}}, {"tool": "list_files", "arguments": {"path": "."}}]}
        elif kind == "long":
            lines.append(str(n))
            step = {"tool": "shell", "arguments": {"command": f"echo {n} >> log; seq {LONG_LINES}"}}
        else:
            effects.append(f"{token}-{n}{ASKED}" if kind == ASKED else f"{token}-{n}")
            step = {"tool": EXTERNAL_TOOL, "arguments": {"method": "POST", "url": f"{witness_url}/effects/{effects[-1]}"}}
        script.append(step | {"thought": f"Step {n}: {kind}.", "delay_s": round(rng.uniform(0, most_delay_s), 3)})
    script.append({"tool": "shell", "arguments": {"command": "cat log"}})
    script.append({"tool": "finish", "arguments": {"answer": token}})
    return PlannedJob(token, tuple(script), tuple(lines), tuple(effects), f"{witness_url}/hooks/{token}")
