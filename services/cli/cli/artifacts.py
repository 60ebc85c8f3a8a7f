"""`dualtrack artifacts`: what a job kept."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer

from cli.destination import STDOUT, descriptor, save
from cli.download import safe_name, verified
from cli.outcome import UsageProblem
from cli.request import path_of
from cli.session import Session, command
from cli.text import size

_CHUNK: Final = 64 * 1024


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="List and download the files that a job kept.")
    command(group, "list")(list_artifacts)
    command(group, "get", paths=("output",))(get)
    app.add_typer(group, name="artifacts")


def list_artifacts(session: Session, job_id: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")]) -> None:
    """List a job's artifacts."""
    found = session.client.pages(path_of("jobs", job_id) + "/artifacts")
    if session.as_json:
        session.out.document(found)
        return
    rows = [[row.get("id"), row.get("name"), size(row.get("size")), row.get("content_type")] for row in found["data"]]
    session.out.table(["ID", "NAME", "SIZE", "TYPE"], rows)


def get(
    session: Session,
    artifact_id: Annotated[str, typer.Argument(metavar="ARTIFACT_ID", help="Id of the artifact.")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="File, directory, device or pipe to write to; '-' for standard output; else the artifact's name here.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace a file that is there already.")] = False,
) -> None:
    """Download an artifact: completely or not at all, never over a file that is there."""
    to_stdout = output is not None and (output == "-" or descriptor(output) == STDOUT)
    if to_stdout and session.as_json:
        raise UsageProblem(f"-o {output} and --json both want standard output: leave one out.")
    path = path_of("artifacts", artifact_id)
    artifact = session.client.get(path)
    with session.client.download(f"{path}/content") as response:
        chunks = verified(response.iter_bytes(_CHUNK), str(artifact.get("sha256")))
        if to_stdout:
            _to_stdout(session, chunks)
            return
        target = Path(output) if output else Path()
        if output is None or os.path.isdir(target):  # noqa: PTH112 - Path.is_dir raises for names too long to be any
            target /= safe_name(str(artifact.get("name")), artifact_id)
        count = save(chunks, target, force=force)
    if session.as_json:
        session.out.document({"object": "download", "artifact_id": artifact_id, "path": str(target), "bytes": count})
    else:
        session.out.text(target)


def _to_stdout(session: Session, chunks: Iterable[bytes]) -> None:
    if not session.out.to_terminal:
        for chunk in chunks:
            session.out.raw(chunk)
        return
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    for chunk in chunks:
        session.out.text(decode(chunk), end="")
    session.out.text(decode(b"", True))
