"""Budgets: `jobs extend` over the API; `keys limit` and `keys list` on the database itself."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import typer

from cli import backend
from cli.job_view import status_line
from cli.outcome import UsageProblem
from cli.request import path_of
from cli.session import Session

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="Id of the key, as `keys list` shows it.")]


def extend(
    session: Session,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the job.")],
    *,
    max_steps: Annotated[int | None, typer.Option("--max-steps", min=1, help="Most decisions.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Most tokens of all model calls together.")] = None,
    max_cost: Annotated[str | None, typer.Option("--max-cost", metavar="USD", help="Most US dollars of all model calls together.")] = None,
    max_wall_time: Annotated[int | None, typer.Option("--max-wall-time", metavar="SECONDS", min=1, help="Seconds of work.")] = None,
) -> None:
    """Raise a job's limits (the new ceilings, not what is added); one that waits for a budget goes on."""
    given: dict[str, Any] = {"steps": max_steps, "tokens": max_tokens, "cost_usd": max_cost, "wall_time_s": max_wall_time}
    limits = {name: value for name, value in given.items() if value is not None}
    if not limits:
        raise UsageProblem("Say what to raise: --max-steps, --max-tokens, --max-cost or --max-wall-time.")
    job = session.client.post(path_of("jobs", job_id) + "/extend", {"limits": limits})
    if session.as_json:
        session.out.document(job)
        return
    session.out.text(status_line(job))
    if job.get("status") == "waiting" and job.get("message"):
        session.out.say(str(job["message"]), "yellow")


def limit_key(
    session: Session,
    key: KeyArgument,
    *,
    day_tokens: Annotated[
        int | None, typer.Option("--day-tokens", min=1, help="Tokens that its jobs and chats may use in a day (UTC).")
    ] = None,
    day_cost: Annotated[
        str | None, typer.Option("--day-cost", metavar="USD", help="US dollars that its jobs and chats may cost in a day (UTC).")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take away the limits that are not given: the operator's defaults hold.")] = False,
) -> None:
    """Limit what a key may use in a day; jobs over it wait until the day ends, or until the limit is raised here."""
    values: dict[str, int | Decimal | None] = {"day_tokens": None, "day_cost_usd": None} if clear else {}
    if day_tokens is not None:
        values["day_tokens"] = day_tokens
    if day_cost is not None:
        values["day_cost_usd"] = _money(day_cost)
    if not values:
        raise UsageProblem("Say what to limit: --day-tokens, --day-cost, or --clear.")
    with backend.database(session) as database:
        from dualtrack.db import budgets
        from dualtrack.db.migrate import require_current

        require_current(database)
        with database.transaction() as tx:
            budgets.set_key_limits(tx, key, values)
            found = next(row for row in budgets.keys(tx) if row["id"] == key)
    _show_keys(session, [found])


def list_keys(session: Session) -> None:
    """List the API keys that are not revoked, with their limits and what they used today (UTC)."""
    with backend.database(session) as database:
        from dualtrack.db import budgets
        from dualtrack.db.migrate import require_current

        require_current(database)
        with database.transaction() as tx:
            found = budgets.keys(tx)
    _show_keys(session, found)


def _show_keys(session: Session, found: list[dict[str, Any]]) -> None:
    if session.as_json:
        session.out.document({"object": "list", "data": found, "has_more": False})
        return
    names = ("id", "tenant", "name", "prefix", "day_tokens", "day_cost_usd", "tokens_today", "cost_usd_today")
    rows = [["-" if row[name] is None else row[name] for name in names] for row in found]
    session.out.table(["ID", "TENANT", "NAME", "BEGINS", "TOKENS/DAY", "USD/DAY", "TOKENS TODAY", "USD TODAY"], rows)


def _money(text: str) -> Decimal:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal(-1)
    if not amount.is_finite() or amount < 0 or amount >= Decimal(10) ** 9:
        raise UsageProblem(f"--day-cost {text!r} is no amount of US dollars, such as 2.50.")
    return amount
