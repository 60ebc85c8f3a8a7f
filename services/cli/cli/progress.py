"""A job's events as lines to read. No IO: feed it events, print what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from cli.arguments import essential
from cli.text import clock, duration, moment, money, one_line, preview, size
from cli.told import TELLERS

_WIDTH: Final = 100
_PREVIEW_LINES: Final = 6
_INDENT: Final = " " * 11
_CONTROL: Final = frozenset({"update_plan", "finish"})
"""Calls that the planner carries out itself, as it records the decision."""
_MARKS: Final = {"done": "x", "completed": "x", "in_progress": ">", "active": ">", "failed": "!", "skipped": "-"}
_ENDS: Final = {"job.succeeded": "succeeded", "job.failed": "failed", "job.cancelled": "cancelled", "job.expired": "expired"}


@dataclass(frozen=True, slots=True)
class Line:
    """One line, free of control characters, and the style (of rich's names) a terminal may show it in."""

    text: str
    style: str = ""


@dataclass(slots=True)
class _Call:
    tool: str
    argument: str
    started: bool = False
    said: str = ""
    """The last line it has printed so far."""


class JobProgress:
    """What has happened in a job, told from its events. Feed them in order, from any point on.

    Args:
        details: several lines an event (plan as a checklist, what calls gave back); False: exactly one line for each
            event worth telling, as logs want it.
        started_at: when the job was accepted, for the elapsed time, where the first event fed is not the job's first.

    Attributes:
        step: the last decision seen.
        plan: the plan as it stands, titles and statuses.
        tokens: tokens of all model calls seen; cost: their price in US dollars.
        status: the job's final status once its last event was fed, else None.
        answer, reason, message: of the last event.
        artifacts: the data of all `artifact.saved` events.
        elapsed_s: seconds from the job's acceptance to the last event.
    """

    def __init__(self, *, details: bool = False, started_at: datetime | None = None) -> None:
        self._details = details
        self._started_at = started_at
        self._calls: dict[str, _Call] = {}
        self.step = 0
        self.plan: list[tuple[str, str]] = []
        self.tokens = 0
        self.cost = Decimal(0)
        self.status: str | None = None
        self.answer: str | None = None
        self.reason: str | None = None
        self.message: str | None = None
        self.artifacts: list[dict[str, Any]] = []
        self.elapsed_s = 0.0
        self._tellers: Final[dict[str, Callable[[Mapping[str, Any]], list[Line]]]] = {
            "job.queued": self._queued,
            "job.started": self._started,
            "step.decided": self._decided,
            "step.malformed": self._malformed,
            "step.retrying": self._retrying,
            "step.dropped": self._dropped,
            "plan.updated": self._planned,
            "context.compacted": self._compacted,
            "call.started": self._call_started,
            "call.output": self._call_output,
            "call.finished": self._call_finished,
            "call.retrying": self._retrying,
            "call.cancelled": self._call_cancelled,
            "artifact.saved": self._saved,
            "checks.started": self._checking,
            "checks.finished": self._checked,
            "job.stopping": self._stopping,
        }

    def feed(self, event: Mapping[str, Any]) -> list[str]:
        """The lines that `event` (as the API shows it) is worth; none for an event with nothing to tell."""
        return [line.text for line in self.lines(event)]

    def lines(self, event: Mapping[str, Any]) -> list[Line]:
        """`feed` with styles."""
        kind = str(event.get("type", ""))
        data = event.get("data")
        data = data if isinstance(data, Mapping) else {}
        self._clock(event.get("at"))
        if isinstance(data.get("step"), int):
            self.step = max(self.step, data["step"])
        if kind in _ENDS:
            return self._ended(_ENDS[kind], data)
        if kind in TELLERS:
            return [self._line(*TELLERS[kind](data))]
        tell = self._tellers.get(kind)
        # An event of a newer server is named rather than hidden.
        return [self._line(one_line(kind, 60))] if tell is None else tell(data)

    def running(self) -> str:
        """What is being done at this moment, in a few words."""
        if self.status is not None:
            return self.status
        started = [call for call in self._calls.values() if call.started]
        if len(started) > 1:
            return f"{len(started)} calls running"
        if started:
            said = f": {started[0].said}" if started[0].said else ""
            return one_line(f"{started[0].tool} {started[0].argument}", 60) + one_line(said, 60)
        return "waiting for a worker" if any(call.tool not in _CONTROL for call in self._calls.values()) else "deciding"

    def spent(self) -> str:
        """Tokens and price so far."""
        return f"{self.tokens:,} tokens, {money(format(self.cost.normalize(), 'f'))}"

    def _clock(self, at: object) -> None:
        now = moment(at)
        if now is None:
            return
        if self._started_at is None:
            self._started_at = now
        self.elapsed_s = max((now - self._started_at).total_seconds(), 0.0)

    def _line(self, text: str, style: str = "") -> Line:
        return Line(f"[{clock(self.elapsed_s):>8}] {text}".rstrip(), style)

    def _below(self, texts: list[str], style: str = "dim") -> list[Line]:
        return [Line(_INDENT + text, style) for text in texts] if self._details else []

    def _spend(self, usage: object, *, total: bool = False) -> None:
        if not isinstance(usage, Mapping):
            return
        tokens = sum(usage[name] for name in ("input_tokens", "output_tokens") if isinstance(usage.get(name), int))
        try:
            cost = Decimal(str(usage.get("cost_usd", "0")))
        except InvalidOperation:
            cost = Decimal(0)
        if not cost.is_finite():
            cost = Decimal(0)
        self.tokens, self.cost = (tokens, cost) if total else (self.tokens + tokens, self.cost + cost)

    def _queued(self, data: Mapping[str, Any]) -> list[Line]:
        inputs = data.get("inputs")
        count = len(inputs) if isinstance(inputs, list) else 0
        files = f" ({count} input {'file' if count == 1 else 'files'})" if count else ""
        return [self._line(f"queued{files}: {one_line(data.get('instructions', ''), _WIDTH - 20)}")]

    def _started(self, _: Mapping[str, Any]) -> list[Line]:
        return [self._line("started")]

    def _decided(self, data: Mapping[str, Any]) -> list[Line]:
        self._spend(data.get("usage"))
        calls = [call for call in _list(data.get("calls")) if isinstance(call, Mapping)]
        self._calls.clear()  # a decision is only made once all calls of the one before have ended
        for call in calls:
            self._calls[str(call.get("id"))] = _Call(
                one_line(call.get("tool", "?"), 40), essential(str(call.get("tool")), call.get("arguments"))
            )
        reflection, thought = str(data.get("reflection") or ""), str(data.get("thought") or "")
        say = one_line(thought or reflection, _WIDTH)
        names = ", ".join(one_line(call.get("tool", "?"), 40) for call in calls)
        took = data.get("latency_s")
        facts = ", ".join(
            part
            for part in (one_line(data.get("model") or "", 40), duration(took) if isinstance(took, int | float) else "", self.spent())
            if part
        )
        head = f"step {self.step}: {say or names or 'decided'}"
        if not self._details:
            return [self._line(f"{head}{f' -> {names}' if say and names else ''} ({facts})", "bold")]
        more = self._below([f"reflects: {one_line(reflection, _WIDTH)}"], "yellow") if reflection and thought else []
        return [self._line(head, "bold"), *more, *self._below([facts])]

    def _malformed(self, data: Mapping[str, Any]) -> list[Line]:
        self._spend(data.get("usage"))
        lines = [
            self._line(f"step {self.step}: the model's answer was no valid action: {one_line(data.get('error', ''), _WIDTH)}", "yellow")
        ]
        return lines + self._below(preview(data.get("raw", ""), lines=3, width=_WIDTH))

    def _retrying(self, data: Mapping[str, Any]) -> list[Line]:
        self._spend(data.get("usage"))
        what = f"step {self.step}"
        if data.get("call_id"):
            self._call(data).started = False
            what = self._call_text(data)
        wait = data.get("retry_in_s")
        again = f"again in {duration(wait)}" if isinstance(wait, int | float) else "trying again"
        return [self._line(f"{what}: {again}: {one_line(data.get('message') or data.get('code') or '', _WIDTH)}", "yellow")]

    def _planned(self, data: Mapping[str, Any]) -> list[Line]:
        self.plan = _plan(data.get("plan"))
        done = sum(_MARKS.get(status) == "x" for _, status in self.plan)
        now = next((title for title, status in self.plan if _MARKS.get(status) == ">"), "")
        head = f"plan: {done} of {len(self.plan)} done"
        if not self._details:
            return [self._line(f"{head}{f', now: {now}' if now else ''}", "cyan")]
        return [self._line(head, "cyan"), *self._below(checklist(data.get("plan")), "cyan")]

    def _compacted(self, data: Mapping[str, Any]) -> list[Line]:
        self._spend(data.get("usage"))
        return [self._line(f"context compacted: a summary stands for the steps up to {one_line(data.get('through_step', '?'), 10)}")]

    def _dropped(self, data: Mapping[str, Any]) -> list[Line]:
        self._spend(data.get("usage"))
        return [self._line(f"step {self.step}: an answer of the model came too late or can't be kept; it is paid for", "yellow")]

    def _call_started(self, data: Mapping[str, Any]) -> list[Line]:
        call = self._call(data)
        call.started = True
        attempt = data.get("attempt")
        again = f" (attempt {attempt})" if isinstance(attempt, int) and attempt > 1 else ""
        return [self._line(f"-> {self._call_text(data)}{again}")]

    def _call_output(self, data: Mapping[str, Any]) -> list[Line]:
        """No line of its own: it is in the observation again, and shown as what is being done until then."""
        lines = [line for line in str(data.get("text", "")).splitlines() if line.strip()]
        if lines:
            self._call(data).said = one_line(lines[-1], _WIDTH)
        return []

    def _call_finished(self, data: Mapping[str, Any]) -> list[Line]:
        text = self._call_text(data)
        self._calls.pop(str(data.get("call_id")), None)
        ok = data.get("ok") is True
        wall = data.get("wall_s")
        took = f" in {duration(wall)}" if isinstance(wall, int | float) else ""
        cut = " (shortened)" if data.get("truncated") and self._details else ""
        observation = data.get("observation") or ""
        head = f"{'ok    ' if ok else 'FAILED'} {text}{took}{cut}"
        style = "green" if ok else "red"
        if not self._details:
            first = one_line(observation, 80)
            return [self._line(f"{head}{f': {first}' if first else ''}", style)]
        return [self._line(head, style), *self._below(preview(observation, lines=_PREVIEW_LINES, width=_WIDTH))]

    def _call_cancelled(self, data: Mapping[str, Any]) -> list[Line]:
        text = self._call_text(data)
        self._calls.pop(str(data.get("call_id")), None)
        details = data.get("details")
        doubt = ": nobody knows whether it happened" if isinstance(details, dict) and details.get("outcome") == "unknown" else ""
        return [self._line(f"cancelled {text}{doubt}", "bold yellow" if doubt else "yellow")]

    def _saved(self, data: Mapping[str, Any]) -> list[Line]:
        self.artifacts.append(dict(data))
        return [self._line(f"saved {one_line(data.get('name', '?'), 80)} ({size(data.get('size'))})", "magenta")]

    def _checking(self, data: Mapping[str, Any]) -> list[Line]:
        counts = [(len(_list(data.get("checks"))), "command"), (len(_list(data.get("outputs"))), "output file")]
        what = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts if count)
        return [self._line(f"checking: {what}" if what else "checking")]

    def _checked(self, data: Mapping[str, Any]) -> list[Line]:
        if data.get("passed") is True:
            return [self._line("checks passed", "green")]
        failed = [one_line(command, _WIDTH) for command in _list(data.get("failed"))]
        if not self._details:
            return [self._line(f"checks FAILED: {'; '.join(failed)}", "red")]
        return [self._line("checks FAILED", "red"), *self._below(failed, "red")]

    def _stopping(self, data: Mapping[str, Any]) -> list[Line]:
        return [self._line(f"stopping: to be {one_line(data.get('target', 'stopped'), 20)}", "yellow")]

    def _ended(self, status: str, data: Mapping[str, Any]) -> list[Line]:
        self.status = status
        self._calls.clear()
        self._spend(data.get("usage"), total=True)
        self.answer, self.reason, self.message = (_text(data.get(name)) for name in ("answer", "reason", "message"))
        steps = data.get("steps", self.step)
        steps = steps if isinstance(steps, int) else self.step
        why = one_line(self.message or "", 300)
        code = f" ({one_line(self.reason, 60)})" if self.reason else ""
        facts = f"{steps} {'step' if steps == 1 else 'steps'}, {self.spent()}"
        return [
            self._line(f"{status}{code}: {f'{why} ({facts})' if why else facts}", "bold green" if status == "succeeded" else "bold red")
        ]

    def _call(self, data: Mapping[str, Any]) -> _Call:
        return self._calls.setdefault(str(data.get("call_id")), _Call(one_line(data.get("tool", "?"), 40), ""))

    def _call_text(self, data: Mapping[str, Any]) -> str:
        call = self._calls.get(str(data.get("call_id"))) or _Call(one_line(data.get("tool", "?"), 40), "")
        return f"{call.tool} {call.argument}".rstrip()


def checklist(plan: object) -> list[str]:
    """A plan, one item a line: `[x]` done, `[>]` at work, `[!]` failed, `[-]` skipped, `[ ]` to do."""
    return [f"[{_MARKS.get(status, ' ')}] {title}" for title, status in _plan(plan)]


def _plan(plan: object) -> list[tuple[str, str]]:
    return [(one_line(item.get("title", ""), 90), str(item.get("status", ""))) for item in _list(plan) if isinstance(item, Mapping)]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
