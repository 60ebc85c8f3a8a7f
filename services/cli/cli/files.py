"""`dualtrack files`: input files for jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.local_file import fault, upload_name
from cli.outcome import UsageProblem
from cli.session import Session, command
from cli.text import size


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Upload input files and list them.")
    command(group, "upload")(upload)
    command(group, "list")(list_files)
    app.add_typer(group, name="files")


def upload(session: Session, path: Annotated[Path, typer.Argument(help="The file to upload.")]) -> None:
    """Upload a file and print its id, for `inputs` of a job specification."""
    wrong = fault(path)
    if wrong is not None:
        raise UsageProblem(f"{path}: {wrong}")
    file = session.client.upload(path, name=upload_name(path))
    if session.as_json:
        session.out.document(file)
    else:
        session.out.text(file.get("id"))


def list_files(
    session: Session,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most rows.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """List the uploaded files."""
    found = session.client.pages("/v1/files", limit=None if everything else limit)
    if session.as_json:
        session.out.document(found)
        return
    session.out.table(["ID", "NAME", "SIZE"], [[row.get("id"), row.get("filename"), size(row.get("bytes"))] for row in found["data"]])
