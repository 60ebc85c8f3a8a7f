"""Copying what a job did up to a step into a new one. What is copied never changes again where it is, so nothing there is locked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ARRAY, Text, case, cast, false, func, insert, literal, select, text
from sqlalchemy.dialects.postgresql import JSONB

from dualtrack.db.engine import Transaction
from dualtrack.db.tables import USAGE_COLUMNS, artifacts, calls, events, steps
from dualtrack.domain.events import EventType
from dualtrack.domain.forking import CopiedEnd
from dualtrack.domain.ids import new_id
from dualtrack.domain.lifecycle import CallStatus
from dualtrack.domain.tool import PLAN_TOOL

_COLLAPSED: Final = text(
    """SELECT data FROM events WHERE job_id = :job AND type IN (:compacted, :forked) AND seq < coalesce(
        (SELECT min(seq) FROM events WHERE job_id = :job AND type IN (:decided, :malformed) AND (data->>'step')::int = :next),
        9223372036854775807)
    ORDER BY seq DESC LIMIT 1"""
)


def copy_steps(tx: Transaction, source_id: str, job_id: str, through: int, ends: Mapping[str, CopiedEnd]) -> None:
    """Give a new job the steps of another one up to `through`, with their calls and artifacts under new ids; they have cost it nothing.

    `ends`: how those of the calls end there that were cancelled.
    """
    kept = [column.name for column in steps.c if column.name not in {"job_id", *USAGE_COLUMNS}]
    rows = select(literal(job_id), *(steps.c[name] for name in kept)).where(steps.c.job_id == source_id, steps.c.number <= through)
    tx.connection.execute(insert(steps).from_select(["job_id", *kept], rows))
    of_source = (calls.c.job_id == source_id) & (calls.c.step <= through)
    old = list(tx.connection.execute(select(calls.c.id).where(of_source).order_by(calls.c.step, calls.c.position)).scalars())
    told = {call_id: (end.preview, json.dumps(dict(end.details))) for call_id, end in ends.items()}
    previews, details = ([told.get(call_id, (None, None))[n] for call_id in old] for n in range(2))
    new = _table({"old": old, "new": [new_id("call") for _ in old], "preview": previews, "details": details})
    # Claims, leases and traces stay with the call that was made.
    fresh = {"id", "job_id", "traceparent", "attempt", "tries", "failures", "owner", "lease_until", "due_at", "not_before", "rings"}
    kept = [column.name for column in calls.c if column.name not in fresh]
    failed = new.c.preview.is_not(None)
    ended = {
        "status": case((failed, CallStatus.FAILED.value), else_=calls.c.status),
        "ok": case((failed, false()), else_=calls.c.ok),
        "preview": func.coalesce(new.c.preview, calls.c.preview),
        "details": func.coalesce(cast(new.c.details, JSONB), calls.c.details),
    }
    rows = select(new.c.new, literal(job_id), *(ended.get(name, calls.c[name]) for name in kept)).join(new, new.c.old == calls.c.id)
    tx.connection.execute(insert(calls).from_select(["id", "job_id", *kept], rows))
    saved = select(artifacts.c.id).where(artifacts.c.job_id == source_id, artifacts.c.call_id.in_(select(calls.c.id).where(of_source)))
    found = list(tx.connection.execute(saved.order_by(artifacts.c.id)).scalars())
    if found:
        ids = _table({"old": found, "new": [new_id("art") for _ in found]})
        kept = [column.name for column in artifacts.c if column.name not in {"id", "job_id", "call_id"}]
        rows = select(ids.c.new, literal(job_id), new.c.new, *(artifacts.c[name] for name in kept))
        rows = rows.join(ids, ids.c.old == artifacts.c.id).join(new, new.c.old == artifacts.c.call_id)
        tx.connection.execute(insert(artifacts).from_select(["id", "job_id", "call_id", *kept], rows))


def _table(columns: Mapping[str, Sequence[str | None]]) -> Any:  # noqa: ANN401 - SQLAlchemy has no narrower name for it
    """Lists of one length as a table of the statement."""
    values = [literal(list(values), ARRAY(Text)) for values in columns.values()]
    return func.unnest(*values).table_valued(*columns).render_derived()


def workspace(tx: Transaction, job_id: str, *, after: int, through: int) -> tuple[bool, str | None]:
    """Whether a call of the steps from `after` (without it) to `through` recorded the workspace that it left, and what was recorded last.

    Children of one step end in any order, each with the files of those before it: only the events tell which was the last.
    Calls that were refused, denied or cancelled recorded none.
    """
    statement = (
        select(events.c.data["workspace"].astext)
        .select_from(events.join(calls, calls.c.id == events.c.data["call_id"].astext))
        .where(events.c.job_id == job_id, events.c.type == EventType.CALL_FINISHED, events.c.data.has_key("workspace"))
        .where(calls.c.step > after, calls.c.step <= through)
        .order_by(events.c.seq.desc())
        .limit(1)
    )
    row = tx.connection.execute(statement).one_or_none()
    return (False, None) if row is None else (True, row[0])


def plan(tx: Transaction, job_id: str, through: int) -> list[Any]:
    """The agent's plan as it stood after a step."""
    updated = (calls.c.job_id == job_id) & (calls.c.step <= through) & (calls.c.tool == PLAN_TOOL) & calls.c.ok.is_(True)
    last = select(calls.c.arguments["steps"]).where(updated).order_by(calls.c.step.desc(), calls.c.position.desc()).limit(1)
    return tx.connection.execute(last).scalar_one_or_none() or []


def summary(tx: Transaction, job_id: str, through: int) -> tuple[int, str]:
    """What stood for a job's older steps in its context when it decided the step after `through`: the last of them, and the text.

    Nothing of this job's log tells of what was before a fork: for a step that it was given, ask the job it was forked from.
    """
    kinds = {
        "compacted": EventType.CONTEXT_COMPACTED.value,
        "forked": EventType.JOB_FORKED.value,
        "decided": EventType.STEP_DECIDED.value,
        "malformed": EventType.STEP_MALFORMED.value,
    }
    data = tx.connection.execute(_COLLAPSED, {"job": job_id, "next": through + 1, **kinds}).scalar_one_or_none()
    if data is None or not data.get("summary"):
        return 0, ""
    return int(data["through_step"]), str(data["summary"])
