"""The judge: from what clients, pages and the witness saw to the columns of the matrix. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from dualtrack.domain.tool import DELEGATE_TOOL
from dualtrack.testing.chaos.jobs import ASKED, PlannedJob
from dualtrack.testing.witness import Effect, hook

Event = dict[str, Any]
"""As the API shows it."""
_ENDED: Final = frozenset({"succeeded", "failed", "cancelled", "expired"})
_OVER: Final = frozenset({"call.finished", "call.cancelled"})


@dataclass(slots=True)
class Record:
    """One job as it was seen from outside."""

    plan: PlannedJob
    job_id: str | None = None
    """None: no submission was ever answered."""
    status: str | None = None
    """None: the platform knows no such job."""
    message: str | None = None
    events: list[Event] = field(default_factory=list)
    """By paging, at the end."""
    streamed: list[Event] | None = None
    """As a stream gave them, resumed wherever it broke off; None: nobody streamed."""
    children: list[Record] = field(default_factory=list)
    """The jobs that the platform lists as its children."""


@dataclass(slots=True)
class Verdict:
    """The columns, and a sentence for everything that is not zero."""

    jobs: int = 0
    lost: int = 0
    repeated: int = 0
    stuck: int = 0
    wrong_events: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """All zeros."""
        return not (self.lost or self.repeated or self.stuck or self.wrong_events)


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long a fault held up the job that it held up longest."""

    seconds: float = 0.0
    what: str = "no job was silent"


def judge(records: Sequence[Record], effects: Iterable[Effect]) -> Verdict:
    """The verdict on all jobs of a row, children among them."""
    everybody = [each for record in records for each in (record, *record.children)]
    verdict = Verdict(jobs=len(everybody))
    heard = Counter(effect.name for effect in effects)
    for record in everybody:
        _judge(record, heard, verdict)
    return verdict


def recovery(records: Iterable[Record], since: float) -> Recovery:
    """The longest silence of any job between two of its events after a moment (Unix time), or from that moment to its next event.

    A parent is not silent while a child of it is heard: the events of a family are one sequence in time.
    """
    longest = Recovery()
    for record in records:
        heard = [(_time(event) - since, member.job_id, event) for member in (record, *record.children) for event in member.events]
        heard.sort(key=lambda each: each[0])  # stable: events of the same time stay in order
        for (before, _, last), (after, job_id, following) in pairwise(heard):
            silence = after - max(before, 0.0)
            if silence > longest.seconds:
                what = f"{job_id}: {last['type']} ({last['seq']}), {silence:.2f} s, {following['type']}"
                longest = Recovery(silence, f"{what}; the second {after:.2f} s after the fault")
    return longest


def _time(event: Event) -> float:
    return datetime.fromisoformat(event["at"]).timestamp()


def _judge(record: Record, heard: Counter[str], verdict: Verdict) -> None:
    plan = record.plan

    def say(what: str) -> int:
        verdict.problems.append(f"{record.job_id or plan.token}: {what}")
        return 1

    if record.job_id is None or record.status is None:
        verdict.lost += say("lost: it was sent and is not there")
        return
    if record.status not in _ENDED:
        verdict.stuck += say(f"stuck: {record.status} after {record.events[-1]['type'] if record.events else 'nothing'}")
    elif record.status != "succeeded":
        verdict.lost += say(f"lost: {record.status}, {record.message}")
    else:
        verdict.lost += sum(say(f"lost: {what}") for what in _missing(record, heard))
    repeated = [line for line, times in Counter(_log(record)).items() if times > 1]
    repeated += [name for name in plan.effects if heard[name] > 1]
    repeated += [f"its child, {len(record.children)} times"] * (len(record.children) > 1)
    verdict.repeated += sum(say(f"repeated: {what}") for what in repeated)
    verdict.wrong_events += sum(say(f"wrong events: {what}") for what in _wrong(record))


def _missing(record: Record, heard: Counter[str]) -> list[str]:
    """Of a job that says it succeeded: what it was to do and did not."""
    there = set(_log(record))
    missing = [f"line {line} of its log" for line in record.plan.lines if line not in there]
    missing += [
        f"effect {name}, which it says was done" for name in record.plan.effects if not heard[name] and _told(record, name) == "done"
    ]
    if record.plan.child is not None and not record.children:
        missing.append("its child")
    if record.plan.webhook is not None and not heard[hook(record.plan.token)]:
        missing.append("the webhook of its success")
    return missing + [f"effect {name}: {told}" for name in record.plan.effects if (told := _told(record, name)) not in {"done", "unknown"}]


def _log(record: Record) -> list[str]:
    """The lines of the job's file `log`, as its last command showed them."""
    shown = [event["data"] for event in record.events if event["type"] == "call.finished" and event["data"]["tool"] == "shell"]
    return str(shown[-1]["observation"]).split() if record.status == "succeeded" and shown else []


def _told(record: Record, effect: str) -> str:
    """What the job was told of an external effect: done, unknown (it may have happened or not), or what was observed instead."""
    asked = {
        call["id"]
        for event in record.events
        if event["type"] == "step.decided"
        for call in event["data"]["calls"]
        if str(call["arguments"].get("url", "")).endswith(f"/{effect}")
    }
    for event in record.events:
        if event["type"] == "call.finished" and event["data"]["call_id"] in asked:
            if event["data"]["ok"]:
                return "done"
            return str(event["data"].get("details", {}).get("outcome") or event["data"]["observation"])
    return "never told of"


def _wrong(record: Record) -> list[str]:
    """What is wrong with a job's log of events."""
    found = []
    numbers = [event["seq"] for event in record.events]
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"its numbers have a gap or a repeat: {numbers}")
    if record.streamed is not None and record.streamed != record.events:
        found.append(f"the stream differs from the pages: {[event['seq'] for event in record.streamed]} and {numbers}")
    asked = Counter(call["id"] for event in record.events if event["type"] == "step.decided" for call in event["data"]["calls"])
    over = Counter(event["data"]["call_id"] for event in record.events if event["type"] in _OVER)
    found += [f"call {call} was asked for {times} times" for call, times in asked.items() if times > 1]
    found += [f"call {call} ended {times} times" for call, times in over.items() if times > 1]
    if record.status in _ENDED:
        found += [f"call {call} never ended" for call in asked if not over[call]]
    found += [f"call {call} began without consent" for call in _unconsented(record)]
    found += _strangers(record)
    decided = [event["data"]["step"] for event in record.events if event["type"] == "step.decided"]
    if decided != sorted(set(decided)):
        found.append(f"its steps are out of order: {decided}")
    ends = [event["type"] for event in record.events if event["type"].removeprefix("job.") in _ENDED]
    if record.status in _ENDED and (ends != [f"job.{record.status}"] or record.events[-1]["type"] != ends[0]):
        found.append(f"its end is told wrongly: {record.status}, {ends}")
    return found


def _strangers(record: Record) -> list[str]:
    """Children that the events and the list of them don't agree on, and ends of theirs that their parent was not told of."""
    children = {child.job_id for child in record.children}
    started = [event["data"]["job_id"] for event in record.events if event["type"] == "child.started"]
    found = [f"child {child} is told of {started.count(child)} times" for child in children if started.count(child) != 1]
    found += [f"child {child} is told of and not listed" for child in started if child not in children]
    told = [
        event["data"]["details"]["child_job_id"]
        for event in record.events
        if event["type"] == "call.finished" and event["data"]["tool"] == DELEGATE_TOOL and event["data"]["ok"]
    ]
    if record.status == "succeeded" and sorted(told) != sorted(map(str, children)):
        found.append(f"it was told that these children ended well: {told}")
    return found


def _unconsented(record: Record) -> list[str]:
    """Calls that began before a person had said yes to them, though one had to be asked."""
    guarded, found = set[str](), []
    for event in record.events:
        data = event["data"]
        if event["type"] == "step.decided":
            guarded |= {call["id"] for call in data["calls"] if str(call["arguments"].get("url", "")).endswith(ASKED)}
        elif event["type"] == "approval.decided" and data["status"] == "approved":
            guarded.discard(data["call_id"])
        elif event["type"] == "call.started" and data["call_id"] in guarded:
            found.append(data["call_id"])
    return found
