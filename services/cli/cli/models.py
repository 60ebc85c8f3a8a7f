"""`dualtrack models`."""

from __future__ import annotations

import typer

from cli.session import Session, command


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "models")(models)


def models(session: Session) -> None:
    """List the tracks and models that requests may name."""
    found = session.client.get("/v1/models")
    if session.as_json:
        session.out.document(found)
        return
    rows = [item for item in found.get("data", []) if isinstance(item, dict)]
    session.out.table(
        ["MODEL", "KIND", "STANDS FOR"],
        [[row.get("id"), "track" if row.get("track") else "model", ", ".join(map(str, row.get("targets") or []))] for row in rows],
    )
