"""What is kept for a model by rule when older steps give way to a summary: their records in short, and the plan word for word.

Small models write summaries that lack what matters most; some write none. Nothing here is ever longer than asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dualtrack.models.port import DecisionRequest, PastCall, PastStep

_RECORDS_HEAD: Final = "From the platform's records:\n"
_PLAN_HEAD: Final = "\n\nThe plan as it stood then:\n"
_THOUGHT_CHARS: Final = 300
_ARGUMENTS_CHARS: Final = 200


def cut(text: str, most: int) -> str:
    """`text`, with a note in place of its middle where it has more than `most` characters (at least 60)."""
    if len(text) <= most:
        return text
    note = f"\n[… {len(text) - most} characters left out …]\n"
    room = most - len(note)
    return text[: room - room // 3] + note + text[-(room // 3) :]


def composed(written: str, context: DecisionRequest, plan: Sequence[Mapping[str, Any]], most: int) -> str:
    """What will stand for the steps of `context`: what the model wrote (else the summary before it), their records, the plan.

    Together at most `most` characters (at least 500), of which a model's own words get half or more if they need it. Of the records the
    oldest are left out first.
    """
    end = _plan(plan, most // 4)
    room = most - len(end)
    words = written or context.summary.partition(_PLAN_HEAD)[0]
    if not context.steps:
        return cut(words, room) + end
    words = cut(words, room * 2 // 3 if written else room // 2)
    gap = "\n\n" if words else ""
    return words + gap + _records(context, room - len(words) - len(gap)) + end


def _plan(plan: Sequence[Mapping[str, Any]], most: int) -> str:
    if not plan:
        return ""
    lines = "\n".join(f"- [{item.get('status', '')}] {item.get('title', '')}" for item in plan)
    return _PLAN_HEAD + cut(lines, most - len(_PLAN_HEAD))


def _records(context: DecisionRequest, most: int) -> str:
    entries = [_described(context.summarised + n, step) for n, step in enumerate(context.steps, 1)]
    note = f"[steps {context.summarised + 1} to {context.summarised + len(entries)} are left out]\n"
    room = most - len(_RECORDS_HEAD)
    if sum(len(entry) + 1 for entry in entries) <= room:
        return _RECORDS_HEAD + "\n".join(entries)
    kept: list[str] = []
    room -= len(note)
    while entries and len(entries[-1]) + 1 <= room:
        kept.insert(0, entries.pop())
        room -= len(kept[0]) + 1
    return f"{_RECORDS_HEAD}[steps {context.summarised + 1} to {context.summarised + len(entries)} are left out]\n" + "\n".join(kept)


def _described(number: int, step: PastStep) -> str:
    lines = [f"Step {number}: {cut(' '.join((step.reflection or step.thought).split()), _THOUGHT_CHARS)}"]
    lines += [f"  {_call(call)}" for call in step.calls]
    if step.note:
        lines.append(f"  {cut(step.note, _THOUGHT_CHARS)}")
    return "\n".join(lines)


def _call(call: PastCall) -> str:
    arguments = cut(json.dumps(call.arguments, ensure_ascii=False), _ARGUMENTS_CHARS)
    return f"{call.tool} {arguments} {'gave' if call.ok else 'FAILED'}: {call.observation}"
