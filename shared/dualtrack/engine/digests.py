"""Summaries of what is recorded, by rule: for models that write none themselves. Never longer than asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dualtrack.models.port import DecisionRequest, PastCall, PastStep

_HEAD: Final = "(From the platform's records.)"
_PLAN_HEAD: Final = "\n\nThe plan as it stood then:\n"
_THOUGHT_CHARS: Final = 300
_ARGUMENTS_CHARS: Final = 200
_NOTE_CHARS: Final = 60
"""Room for the note on what was left out."""


def cut(text: str, most: int) -> str:
    """`text`, with a note in place of its middle where it has more than `most` characters (at least 100)."""
    if len(text) <= most:
        return text
    note = f"\n[… {len(text) - most} characters left out …]\n"
    room = most - len(note)
    return text[: room - room // 3] + note + text[-(room // 3) :]


def with_plan(summary: str, plan: Sequence[Mapping[str, Any]], most: int) -> str:
    """A summary with the plan word for word after it, whatever the summary says of it; together at most `most` characters."""
    bare = summary.partition(_PLAN_HEAD)[0]
    if not plan:
        return cut(bare, most)
    lines = "\n".join(f"- [{item.get('status', '')}] {item.get('title', '')}" for item in plan)
    shown = _PLAN_HEAD + cut(lines, most // 4)
    return cut(bare, most - len(shown)) + shown


def digest(context: DecisionRequest, most: int) -> str:
    """What a context says besides the task, in at most `most` characters: its summary, then its steps; the middle is dropped first."""
    head = cut(context.summary.partition(_PLAN_HEAD)[0], most // 2 if context.steps else most)
    parts = [head] if head.startswith(_HEAD) else [_HEAD, head] if head else [_HEAD]
    steps = [_described(context.summarised + n, step) for n, step in enumerate(context.steps, 1)]
    room = most - sum(len(part) + 1 for part in parts)
    kept: list[str] = []
    while steps and len(steps[-1]) + 1 <= room - _NOTE_CHARS:
        kept.insert(0, steps.pop())
        room -= len(kept[0]) + 1
    if steps:
        kept.insert(0, f"[steps {context.summarised + 1} to {context.summarised + len(steps)} are left out]")
    return cut("\n".join(parts + kept), most)


def _described(number: int, step: PastStep) -> str:
    lines = [f"Step {number}: {cut(' '.join((step.reflection or step.thought).split()), _THOUGHT_CHARS)}"]
    lines += [f"  {_call(call)}" for call in step.calls]
    if step.note:
        lines.append(f"  {cut(step.note, _THOUGHT_CHARS)}")
    return "\n".join(lines)


def _call(call: PastCall) -> str:
    arguments = cut(json.dumps(call.arguments, ensure_ascii=False), _ARGUMENTS_CHARS)
    return f"{call.tool} {arguments} {'gave' if call.ok else 'FAILED'}: {call.observation}"
