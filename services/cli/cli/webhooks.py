"""`dualtrack webhooks`: who is told of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.job_view import timestamp
from cli.outcome import UsageProblem
from cli.request import own_key, path_of
from cli.session import Session, command
from cli.text import one_line

WebhookId = Annotated[str, typer.Argument(metavar="ID", help="Id of the webhook.")]
_Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="Another address.")]
_Description = Annotated[str | None, typer.Option("--description", metavar="TEXT", help="For people.")]


class Event(StrEnum):
    """What a webhook may be told of."""

    SUCCEEDED = "job.succeeded"
    FAILED = "job.failed"
    CANCELLED = "job.cancelled"
    EXPIRED = "job.expired"
    WAITING = "job.waiting"
    ARTIFACT = "artifact.saved"


class Status(StrEnum):
    """Statuses of deliveries to list by."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


_Events = Annotated[list[Event] | None, typer.Option("--event", help="Only these events; again for more.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Addresses that are told of jobs, and what was delivered to them.")
    command(group, "add")(add)
    command(group, "list")(list_webhooks)
    command(group, "show")(show)
    command(group, "change")(change)
    command(group, "enable")(enable)
    command(group, "disable")(disable)
    command(group, "rotate")(rotate)
    command(group, "remove")(remove)
    command(group, "deliveries")(deliveries)
    command(group, "redeliver")(redeliver)
    app.add_typer(group, name="webhooks")


def add(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="URL", help="Address that deliveries are posted to.")],
    *,
    events: _Events = None,
    description: _Description = None,
) -> None:
    """Add a webhook and print its id and secret; the secret is not shown again."""
    given: dict[str, Any] = {"url": url, "events": _names(events), "description": description}
    body = {name: value for name, value in given.items() if value is not None}
    made = session.client.post("/v1/webhooks", body, idempotency_key=own_key())
    if session.as_json:
        session.out.document(made)
        return
    session.out.fields([("id", made.get("id")), ("secret", made.get("secret"))])
    session.out.say("Keep the secret: it is not shown again.", "dim")


def list_webhooks(
    session: Session,
    *,
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="The webhook that came with this job instead.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most rows.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """List webhooks, newest first."""
    found = session.client.pages("/v1/webhooks", [("job_id", job)] if job is not None else [], limit=None if everything else limit)
    if session.as_json:
        session.out.document(found)
        return
    rows = [[row.get("id"), "disabled" if row.get("disabled") else "enabled", _events(row), row.get("url")] for row in found["data"]]
    session.out.table(["ID", "STATE", "EVENTS", "URL"], rows)


def show(session: Session, webhook_id: WebhookId) -> None:
    """Show a webhook; its secret is not shown."""
    _show(session, session.client.get(path_of("webhooks", webhook_id)))


def change(session: Session, webhook_id: WebhookId, *, url: _Url = None, events: _Events = None, description: _Description = None) -> None:
    """Change a webhook's address, events or description."""
    given: dict[str, Any] = {"url": url, "events": _names(events), "description": description}
    body = {name: value for name, value in given.items() if value is not None}
    if not body:
        raise UsageProblem("Say what to change: --url, --event or --description.")
    _show(session, session.client.patch(path_of("webhooks", webhook_id), body))


def enable(session: Session, webhook_id: WebhookId) -> None:
    """Let a webhook be told again."""
    _show(session, session.client.patch(path_of("webhooks", webhook_id), {"disabled": False}))


def disable(session: Session, webhook_id: WebhookId) -> None:
    """Tell a webhook nothing more; what is on its way to it fails."""
    _show(session, session.client.patch(path_of("webhooks", webhook_id), {"disabled": True}))


def rotate(session: Session, webhook_id: WebhookId) -> None:
    """Give a webhook another secret and print it; for 24 hours deliveries are signed with both."""
    changed = session.client.post(path_of("webhooks", webhook_id) + "/rotate", idempotency_key=own_key())
    if session.as_json:
        session.out.document(changed)
        return
    session.out.text(changed.get("secret"))
    session.out.say(f"The old secret signs too until {timestamp(changed.get('previous_secret_until'))}.", "dim")


def remove(session: Session, webhook_id: WebhookId) -> None:
    """Remove a webhook and its deliveries."""
    removed = session.client.delete(path_of("webhooks", webhook_id))
    if session.as_json:
        session.out.document(removed)
    else:
        session.out.say(f"removed {webhook_id}", "dim")


def deliveries(
    session: Session,
    webhook_id: WebhookId,
    *,
    status: Annotated[list[Status] | None, typer.Option("--status", help="Only these; again for more.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most rows.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """List what was sent to a webhook, newest first, and what came of it."""
    params = [("status", item.value) for item in status or []]
    found = session.client.pages(path_of("webhooks", webhook_id) + "/deliveries", params, limit=None if everything else limit)
    if session.as_json:
        session.out.document(found)
        return
    rows = [
        [row.get("id"), row.get("type"), row.get("job_id"), row.get("status"), len(row.get("attempts") or []), _last(row)]
        for row in found["data"]
    ]
    session.out.table(["ID", "EVENT", "JOB", "STATUS", "ATTEMPTS", "LAST"], rows)


def redeliver(
    session: Session,
    webhook_id: WebhookId,
    delivery_id: Annotated[str, typer.Argument(metavar="DELIVERY", help="Id of a delivery, as `webhooks deliveries` shows it.")],
) -> None:
    """Send a delivery again, under the same id."""
    again = session.client.post(f"{path_of('webhooks', webhook_id)}/deliveries/{quote(delivery_id, safe='')}/redeliver")
    if session.as_json:
        session.out.document(again)
    else:
        session.out.text(again.get("status"))


def _show(session: Session, webhook: Mapping[str, Any]) -> None:
    if session.as_json:
        session.out.document(webhook)
        return
    session.out.fields(
        [
            ("webhook", webhook.get("id")),
            ("url", webhook.get("url")),
            ("events", _events(webhook)),
            ("job", webhook.get("job_id")),
            ("description", webhook.get("description")),
            ("state", "disabled" if webhook.get("disabled") else "enabled"),
            ("why", webhook.get("disabled_reason")),
            ("old secret", timestamp(webhook.get("previous_secret_until"))),
            ("created", timestamp(webhook.get("created_at"))),
        ]
    )


def _names(events: list[Event] | None) -> list[str] | None:
    return [event.value for event in events] if events else None


def _events(webhook: Mapping[str, Any]) -> str:
    return ", ".join(str(event) for event in webhook.get("events") or [])


def _last(delivery: Mapping[str, Any]) -> str:
    """What came of the newest attempt, on one line."""
    attempts = delivery.get("attempts") or [{}]
    newest = attempts[-1] if isinstance(attempts[-1], Mapping) else {}
    return one_line(newest.get("error") or newest.get("status") or "", 80)
