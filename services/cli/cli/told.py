"""What events are worth a line of their own text, whatever else is shown: waits, people's decisions, children, doubts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from cli.arguments import essential
from cli.text import one_line

Told = tuple[str, str]
"""A line and its style."""
_YELLOW: Final = "yellow"


def _word(data: Mapping[str, Any], name: str, default: str = "?", most: int = 80) -> str:
    return one_line(data.get(name) if data.get(name) is not None else default, most)


def _waiting(data: Mapping[str, Any]) -> Told:
    return f"waiting ({_word(data, 'reason')}): {_word(data, 'message', '', 300)}".rstrip(": "), "bold yellow"


def _asked(data: Mapping[str, Any]) -> Told:
    kind = data.get("kind")
    asked = _word(data, "approval_id")
    if kind == "question":
        return f"asks: {_word(data, 'message', '', 300)} · dualtrack approvals answer {asked} TEXT", "bold yellow"
    tool = _word(data, "tool")
    call = f"{tool} {essential(tool, data.get('arguments'))}".rstrip()
    if kind == "unknown":
        return f"{call}: may have happened or not · dualtrack approvals resolve {asked} OUTCOME", "bold yellow"
    why = f" ({_word(data, 'message', '', 200)})" if data.get("message") else ""
    return f"needs approval{why}: {call} · dualtrack approvals show|approve|deny {asked}", "bold yellow"


def _decided(data: Mapping[str, Any]) -> Told:
    note = f": {_word(data, 'note', most=200)}" if data.get("note") else ""
    return f"{_word(data, 'status', 'decided')} by {_word(data, 'by_name' if data.get('by_name') else 'by', 'the platform')}{note}", "cyan"


def _message(data: Mapping[str, Any]) -> Told:
    return f"message {_word(data, 'number')} from {_word(data, 'by')}: {_word(data, 'content', '', 200)}".rstrip(": "), "cyan"


def _network(data: Mapping[str, Any]) -> Told:
    place = f"{_word(data, 'host', most=100)}:{_word(data, 'port')}"
    count = data.get("requests")
    times = f" ({count} requests)" if isinstance(count, int) and count > 1 else ""
    if data.get("decision") == "refused":
        return f"network: refused {place}{times}: {_word(data, 'reason')}", _YELLOW
    facts = [_word(data, name) for name in ("method", "status", "reason") if data.get(name)]
    return f"network: {' '.join([place, *facts])}{times}", "dim"


TELLERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Told]]] = {
    "job.waiting": _waiting,
    "job.resumed": lambda data: (f"goes on after waiting for {_word(data, 'reason')}", "cyan"),
    "job.pausing": lambda data: (f"to be held ({_word(data, 'hold')}) as soon as nothing runs", _YELLOW),
    "job.extended": lambda data: (f"limits raised by {_word(data, 'by')}", "cyan"),
    "job.forked": lambda data: (f"goes on from step {_word(data, 'step')} of {_word(data, 'job_id')}", "cyan"),
    "message.added": _message,
    "message.taken": lambda _: ("the message is shown to the model from now on", "cyan"),
    "approval.requested": _asked,
    "approval.decided": _decided,
    "call.in_doubt": lambda data: (f"{_word(data, 'tool')}: nobody knows whether it happened", "bold yellow"),
    "egress.request": _network,
    "child.started": lambda data: (f"child job {_word(data, 'job_id')} started", ""),
}
"""The line of each such event, from its data."""
