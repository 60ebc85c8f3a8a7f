"""A job and its steps, to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

from cli.arguments import essential
from cli.output import Output
from cli.progress import checklist
from cli.text import duration, moment, money, preview

_WIDTH = 160
_LINES = 40


def status_line(job: Mapping[str, Any]) -> str:
    """The status, and why where there is a reason."""
    reason = job.get("reason")
    if not reason and (children := awaited_children(job)):
        reason = "waits for a child" if len(children) == 1 else f"waits for {len(children)} children"
    return f"{job.get('status')} ({reason})" if reason else str(job.get("status"))


def awaited_children(job: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The children that a job waits for, nothing of its own being at work."""
    waiting_for = job.get("waiting_for")
    children = waiting_for.get("children") if isinstance(waiting_for, Mapping) else None
    return [child for child in children if isinstance(child, Mapping)] if isinstance(children, list) else []


def timestamp(text: object) -> str:
    """A time as the API writes it, in UTC and to the second; empty for none."""
    found = moment(text)
    return "" if found is None else found.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def show_job(out: Output, job: Mapping[str, Any]) -> None:
    """All that a person wants to know of a job: the children it waits for and what its family used included."""
    usage = job.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    agent = job.get("agent")
    agent = agent if isinstance(agent, Mapping) else {}
    metadata = job.get("metadata")
    waiting = job.get("waiting")
    waiting = waiting if isinstance(waiting, Mapping) else {}
    out.fields(
        [
            ("job", job.get("id")),
            ("status", status_line(job)),
            ("message", job.get("message")),
            ("held", job.get("hold") if job.get("status") != "waiting" else None),
            ("waits until", timestamp(waiting.get("until"))),
            ("waits for", "\n".join(_child(child) for child in awaited_children(job))),
            ("forked from", f"step {job.get('forked_step')} of {job.get('forked_from')}" if job.get("forked_from") else None),
            ("model", agent.get("model")),
            ("step", job.get("step")),
            ("tokens", _tokens(usage)),
            ("cost", money(usage["cost_usd"]) if "cost_usd" in usage else None),
            ("family", _family(job.get("family"))),
            ("created", timestamp(job.get("created_at"))),
            ("started", timestamp(job.get("started_at"))),
            ("finished", timestamp(job.get("finished_at"))),
            ("deadline", timestamp(job.get("deadline_at"))),
            ("trace", job.get("trace_id")),
            ("metadata", "\n".join(f"{key}={value}" for key, value in metadata.items()) if isinstance(metadata, Mapping) else None),
            ("checks", "\n".join(str(item) for item in job.get("checks") or [])),
            ("outputs", "\n".join(str(item) for item in job.get("outputs") or [])),
            ("instructions", job.get("instructions")),
            ("plan", "\n".join(checklist(job.get("plan")))),
            ("answer", job.get("answer")),
        ]
    )


def _child(child: Mapping[str, Any]) -> str:
    message = child.get("message")
    return f"child {child.get('id')}, {status_line(child)}{f': {message}' if message else ''}"


def _tokens(usage: Mapping[str, Any]) -> str:
    if not usage:
        return ""
    cached = usage.get("cached_tokens") or 0
    return f"{usage.get('input_tokens', 0):,} in ({cached:,} from cache), {usage.get('output_tokens', 0):,} out"


def _family(family: object) -> str:
    """The jobs below a job, and what it used with them; empty where there are none."""
    if not isinstance(family, Mapping) or not family.get("jobs"):
        return ""
    usage = family.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    least = "" if family.get("complete", True) else "at least "
    below = f"{least}{family['jobs']} below it, {family.get('live')} live, {family.get('waiting')} waiting for somebody"
    return f"{below}\nall together: {family.get('step')} steps, {_tokens(usage)}, {money(usage.get('cost_usd'))}"


def show_steps(out: Output, job_id: str, steps: Sequence[Any]) -> None:
    """Each step with its calls and what came back."""
    for step in steps:
        if not isinstance(step, Mapping):
            continue
        out.text(f"step {step.get('number')}  {step.get('model') or ''}")
        for name in ("reflection", "thought", "note"):
            _indented(out, 2, f"{name}: ", step.get(name))
        for call in step.get("calls") or []:
            if isinstance(call, Mapping):
                _call(out, job_id, call)


def _call(out: Output, job_id: str, call: Mapping[str, Any]) -> None:
    tool = str(call.get("tool"))
    started, finished = moment(call.get("started_at")), moment(call.get("finished_at"))
    took = f" in {duration((finished - started).total_seconds())}" if started and finished else ""
    out.text(f"  {call.get('status')} {tool} {essential(tool, call.get('arguments'))}{took}  {call.get('id')}")
    _indented(out, 6, "", call.get("observation"))
    if call.get("truncated"):
        out.text(f"      (shortened; all of it: dualtrack jobs observation {job_id} {call.get('id')})")


def _indented(out: Output, indent: int, label: str, text: object) -> None:
    if text:
        out.text("\n".join(" " * indent + line for line in preview(f"{label}{text}", lines=_LINES, width=_WIDTH)))
