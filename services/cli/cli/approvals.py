"""`dualtrack approvals`: what waits for a person."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from cli.arguments import essential
from cli.job_view import timestamp
from cli.outcome import UsageProblem
from cli.request import own_key, path_of
from cli.session import Session, command, read_stdin
from cli.text import one_line, to_json

_SHOWN_CHARS: Final = 80
_MOST_BYTES: Final = 1024 * 1024
"""Of standard input; the server says what is too much."""

ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="Id of the approval.")]


class Status(StrEnum):
    """Statuses to list by."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    ANSWERED = "answered"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


class Outcome(StrEnum):
    """What may have become of a call in doubt."""

    HAPPENED = "happened"
    NOT_HAPPENED = "not_happened"
    RETRY = "retry"
    FAIL = "fail"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Calls that need your consent, questions of agents, calls in doubt.")
    command(group, "list")(list_approvals)
    command(group, "show")(show)
    command(group, "approve")(approve)
    command(group, "deny")(deny)
    command(group, "answer")(answer)
    command(group, "resolve")(resolve)
    app.add_typer(group, name="approvals")


def list_approvals(
    session: Session,
    *,
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="Only those of this job.")] = None,
    status: Annotated[
        list[Status] | None, typer.Option("--status", help="Only these instead of what waits; again for more. See --any.")
    ] = None,
    decided_too: Annotated[bool, typer.Option("--any", help="Of every status.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most rows.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """List what waits for a person, newest first."""
    wanted = [] if decided_too else [item.value for item in status or [Status.PENDING]]
    params = [("status", item) for item in wanted] + ([("job_id", job)] if job is not None else [])
    found = session.client.pages("/v1/approvals", params, limit=None if everything else limit)
    if session.as_json:
        session.out.document(found)
        return
    rows = [
        [row.get("id"), row.get("kind"), row.get("status"), timestamp(row.get("expires_at")), row.get("job_id"), _what(row)]
        for row in found["data"]
    ]
    session.out.table(["ID", "KIND", "STATUS", "UNTIL", "JOB", "WHAT"], rows)


def show(session: Session, approval_id: ApprovalId) -> None:
    """Show what is asked, and what was decided."""
    approval = session.client.get(path_of("approvals", approval_id))
    if session.as_json:
        session.out.document(approval)
        return
    edited = approval.get("edited_arguments")
    by = approval.get("decided_by")
    by = by if isinstance(by, Mapping) else {}
    session.out.fields(
        [
            ("approval", approval.get("id")),
            ("kind", approval.get("kind")),
            ("status", approval.get("status")),
            ("job", approval.get("job_id")),
            ("call", approval.get("call_id")),
            ("why", approval.get("message")),
            ("tool", approval.get("tool")),
            ("arguments", to_json(approval.get("arguments"), indent=2)),
            ("sha256", approval.get("arguments_sha256")),
            ("edited", to_json(edited, indent=2) if edited is not None else None),
            ("until", timestamp(approval.get("expires_at"))),
            ("decided", timestamp(approval.get("decided_at"))),
            ("by", by.get("name") or by.get("id")),
            ("outcome", approval.get("outcome")),
            ("note", approval.get("note")),
        ]
    )


def approve(
    session: Session,
    approval_id: ApprovalId,
    *,
    sha256: Annotated[
        str | None, typer.Option("--sha256", metavar="HEX", help="Hash of the arguments you looked at: refused where they are others.")
    ] = None,
    arguments: Annotated[
        str | None, typer.Option("--arguments", metavar="JSON", help="Run it with these instead; '-': read them from standard input.")
    ] = None,
    note: Annotated[str | None, typer.Option("--note", help="For the record; the agent does not see it.")] = None,
) -> None:
    """Let exactly this call run, once."""
    body = {"arguments_sha256": sha256, "note": note, "arguments": None if arguments is None else _arguments(arguments)}
    _decide(session, approval_id, "approve", {name: value for name, value in body.items() if value is not None})


def deny(
    session: Session, approval_id: ApprovalId, reason: Annotated[str, typer.Argument(help="The agent reads it; '-': standard input.")]
) -> None:
    """Refuse a call, or to answer a question; the agent goes on without it."""
    _decide(session, approval_id, "deny", {"reason": _text(reason)})


def answer(
    session: Session, approval_id: ApprovalId, text: Annotated[str, typer.Argument(help="What the agent reads; '-': standard input.")]
) -> None:
    """Answer an agent's question."""
    _decide(session, approval_id, "answer", {"text": _text(text)})


def resolve(
    session: Session,
    approval_id: ApprovalId,
    outcome: Annotated[Outcome, typer.Argument(help="It happened; it did not; make it again; or let the job fail.")],
    observation: Annotated[str | None, typer.Option("--observation", help="What the agent reads of it.")] = None,
) -> None:
    """Say what became of a call of which nobody knows whether it happened."""
    body = {"outcome": outcome.value} | ({"observation": observation} if observation is not None else {})
    _decide(session, approval_id, "resolve", body)


def _decide(session: Session, approval_id: str, what: str, body: Mapping[str, Any]) -> None:
    # A decision sent twice is taken once, so a broken connection may be tried again.
    decided = session.client.post(f"{path_of('approvals', approval_id)}/{what}", body, idempotency_key=own_key())
    if session.as_json:
        session.out.document(decided)
    else:
        session.out.text(f"{decided.get('status')}: {_what(decided)}")


def _what(approval: Mapping[str, Any]) -> str:
    """One line of what is asked about."""
    if approval.get("kind") == "question":
        return one_line(approval.get("message"), _SHOWN_CHARS)
    edited = approval.get("edited_arguments")
    arguments = edited if isinstance(edited, Mapping) else approval.get("arguments")
    tool = str(approval.get("tool"))
    return f"{tool} {essential(tool, arguments)}"


def _text(given: str) -> str:
    return read_stdin(_MOST_BYTES, "it").strip() if given == "-" else given


def _arguments(given: str) -> dict[str, Any]:
    try:
        found = json.loads(_text(given))
    except (ValueError, RecursionError) as error:
        raise UsageProblem(f"--arguments: no JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageProblem("--arguments: must be a JSON object, with all arguments of the call.")
    return found
