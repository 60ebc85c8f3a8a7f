"""Commands for the operator: `keys …`, `migrate` and `seal-secrets` work on the database itself, `version` on nothing."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import Annotated, Final

import typer

from cli import backend, budgets
from cli.outcome import Exit, UsageProblem
from cli.session import Session, command
from cli.session import version as installed_version

_MAX_NAME: Final = 100


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        no_args_is_help=True, help="API keys (needs the database: DUALTRACK_DATABASE__URL, or the standalone platform's directory)."
    )
    command(group, "create")(create_key)
    command(group, "list")(budgets.list_keys)
    command(group, "limit")(budgets.limit_key)
    command(group, "revoke")(revoke_key)
    app.add_typer(group, name="keys")
    command(app, "migrate")(migrate)
    command(app, "seal-secrets")(seal_secrets)
    command(app, "version")(version)


def create_key(
    session: Session,
    name: Annotated[str, typer.Argument(help="What the key is for; shown in lists.")],
    tenant: Annotated[str, typer.Option("--tenant", help="Whose key it is; created if missing.")] = "default",
) -> None:
    """Make an API key and print it: this once, it can't be shown again."""
    for what, text in (("The name", name), ("The tenant", tenant)):
        if not text.strip() or len(text) > _MAX_NAME or not text.isprintable():
            raise UsageProblem(f"{what} must be 1 to {_MAX_NAME} printable characters.")
    with backend.database(session) as database:
        from dualtrack.db.migrate import require_current
        from dualtrack.db.tenants import create_key as create
        from dualtrack.db.tenants import ensure_tenant

        require_current(database)
        with database.transaction() as tx:
            key = create(tx, ensure_tenant(tx, tenant), name)
    if session.as_json:
        session.out.document({"object": "api_key", "name": name, "tenant": tenant, "key": key})
        return
    session.out.text(key)
    session.out.say("Keep it safe: only its hash is stored, so it can't be shown again.", "dim")


def revoke_key(session: Session, key: budgets.KeyArgument) -> None:
    """Revoke an API key: within 10 seconds it opens nothing any more. Its jobs and schedules go on."""
    with backend.database(session) as database:
        from dualtrack.db import tenants
        from dualtrack.db.migrate import require_current

        require_current(database)
        with database.transaction() as tx:
            tenants.revoke_key(tx, key)
    if session.as_json:
        session.out.document({"object": "api_key", "id": key, "revoked": True})
        return
    session.out.text(f"{key} is revoked.")
    session.out.say("Refused within 10 seconds. Its jobs and schedules go on: cancel or remove them with another key of the tenant.", "dim")


def migrate(session: Session) -> None:
    """Bring the database to this version's schema; safe to run again and from several places at once."""
    with backend.database(session) as database:
        from alembic.runtime.migration import MigrationContext

        from dualtrack.db.migrate import upgrade

        upgrade(database)
        with database.engine.connect() as connection:
            revision = MigrationContext.configure(connection).get_current_revision()
    if session.as_json:
        session.out.document({"object": "migration", "revision": revision})
    else:
        session.out.text(f"The database is at revision {revision}.")


def seal_secrets(session: Session) -> int:
    """Encrypt all webhooks' signing secrets in the database with the first of DUALTRACK_WEBHOOKS__SECRET_KEYS; safe to run again, and
    while the platform is at work. Exit status 1 where a secret is under a key that is not there.
    """
    sealer = backend.settings(session).webhooks.sealer
    if not sealer.seals:
        raise UsageProblem("There is no key to encrypt with: set DUALTRACK_WEBHOOKS__SECRET_KEYS (docs/webhooks.md).")
    with backend.database(session) as database:
        from dualtrack.db.migrate import require_current
        from dualtrack.webhooks.resealing import reseal

        require_current(database)
        found = reseal(database, sealer)
    if session.as_json:
        session.out.document({"object": "resealing", **asdict(found)})
    else:
        session.out.text(f"{found.sealed:,} secrets encrypted with the first key, {found.current:,} were already.")
        for row_id in found.unreadable:
            session.out.say(f"{row_id}: its secret is under a key that is not there; put that key back, or rotate the secret.", "red")
    return Exit.JOB_FAILED if found.unreadable else Exit.OK


def version(session: Session) -> None:
    """Print the version of this command."""
    found = installed_version()
    if session.as_json:
        session.out.document({"version": found, "python": platform.python_version()})
    else:
        session.out.text(f"dualtrack {found}")
