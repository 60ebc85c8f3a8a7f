"""What the jobs of a chaos run do, and what must be left of it afterwards. Pure; a seed gives the same jobs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dualtrack.domain.tool import DELEGATE_TOOL

EXTERNAL_TOOL: Final = "http_request"
ASKED: Final = "-asked"
"""Effects whose name ends so need a person's consent first."""
POLICY: Final = {"tool": EXTERNAL_TOOL, "arguments": {"url": f"{ASKED}$"}, "action": "ask"}
LONG_LINES: Final = 1500
"""Lines of the observation that is too long for the context, so that it is uploaded."""
QUICK_S: Final = 0.15
"""Longest that the model thinks."""
LOG: Final = "log"
"""The file that a job writes its workspace effects to."""
_PART: Final = "part"
"""The same of a child; its parent gets it back."""
_FAMILY_EVERY: Final = 3
"""One job in so many delegates a part of its work to a child."""
_UNTOLD_EVERY: Final = 3
"""One in so many has no webhook."""


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
    webhook: str | None
    """Address that is told of its success; None: nobody is."""
    child: PlannedJob | None = None
    """What it delegates; that job's lines are among its own, since the file comes back."""

    @property
    def steps(self) -> int:
        """Decisions until its end, its child's included."""
        return len(self.script) + (self.child.steps if self.child else 0)


def plan_jobs(
    seed: int, count: int, steps: tuple[int, int], *, witness_url: str, prefix: str = "job", most_delay_s: float = QUICK_S
) -> list[PlannedJob]:
    """Jobs of as many steps as the range says, not counting what some of them delegate."""
    rng = random.Random(seed)
    found = [_job(rng, f"{prefix}-{seed}-{n}", rng.randint(*steps), witness_url, most_delay_s) for n in range(count)]
    return [_varied(rng, n, job, witness_url, most_delay_s) for n, job in enumerate(found)]


def _varied(rng: random.Random, n: int, job: PlannedJob, witness_url: str, most_delay_s: float) -> PlannedJob:
    """Some delegate, and some tell nobody of their end, which is then written another way."""
    if n % _FAMILY_EVERY == 1:
        return _delegating(rng, job, witness_url, most_delay_s)
    return replace(job, webhook=None) if n % _UNTOLD_EVERY == 2 else job


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
            step: dict[str, Any] = {"tool": "shell", "arguments": {"command": f"echo {n} >> {LOG}"}}
        elif kind == "read":
            step = {"calls": [{"tool": "list_files", "arguments": {}}, {"tool": "list_files", "arguments": {"path": "."}}]}
        elif kind == "long":
            lines.append(str(n))
            step = {"tool": "shell", "arguments": {"command": f"echo {n} >> {LOG}; seq {LONG_LINES}"}}
        else:
            effects.append(f"{token}-{n}{ASKED}" if kind == ASKED else f"{token}-{n}")
            step = {"tool": EXTERNAL_TOOL, "arguments": {"method": "POST", "url": f"{witness_url}/effects/{effects[-1]}"}}
        script.append(step | {"thought": f"Step {n}: {kind}.", "delay_s": round(rng.uniform(0, most_delay_s), 3)})
    script.append({"tool": "shell", "arguments": {"command": f"cat {LOG}"}})
    script.append({"tool": "finish", "arguments": {"answer": token}})
    return PlannedJob(token, tuple(script), tuple(lines), tuple(effects), f"{witness_url}/hooks/{token}")


def _delegating(rng: random.Random, job: PlannedJob, witness_url: str, most_delay_s: float) -> PlannedJob:
    """The job, with a child started by its second decision; their effects and lines have names of their own."""
    token, line = f"{job.token}-child", "child"
    steps: list[dict[str, Any]] = [
        {"tool": EXTERNAL_TOOL, "arguments": {"method": "POST", "url": f"{witness_url}/effects/{token}"}},
        {"tool": "shell", "arguments": {"command": f"echo {line} >> {_PART}; cat {_PART}"}},
        {"tool": "finish", "arguments": {"answer": token}},
    ]
    script = tuple(step | {"delay_s": round(rng.uniform(0, most_delay_s), 3)} for step in steps)
    child = PlannedJob(token, script, (line,), (token,), webhook=None)
    delegate = {"tool": DELEGATE_TOOL, "arguments": {"instructions": instructions(script), "outputs": [_PART]}, "thought": "Delegate."}
    *work, show, finish = job.script
    show = show | {"arguments": {"command": f"cat {LOG} {_PART}"}}
    return replace(job, script=(work[0], delegate, *work[1:], show, finish), lines=(*job.lines, line), child=child)


def instructions(script: Sequence[dict[str, Any]]) -> str:
    """What the scripted model is asked to do."""
    return f"Follow the script.\n```script\n{json.dumps(list(script))}\n```"
