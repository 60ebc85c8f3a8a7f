"""`dualtrack artifacts`: what a job kept."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import typer

from cli.download import disposition_name, safe_name, save
from cli.outcome import UsageProblem
from cli.session import Session, command
from cli.text import size

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

_CHUNK: Final = 64 * 1024
_SHA256: Final = re.compile(r"^[0-9a-f]{64}$")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="List and download the files that a job kept.")
    command(group, "list")(list_artifacts)
    command(group, "get")(get)
    app.add_typer(group, name="artifacts")


def list_artifacts(session: Session, job_id: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")]) -> None:
    """List a job's artifacts."""
    found = session.client.pages(f"/v1/jobs/{quote(job_id, safe='')}/artifacts")
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
            "--output", "-o", metavar="PATH", help="File or directory to write to; '-' for standard output; else the artifact's name here."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace a file that is there already.")] = False,
) -> None:
    """Download an artifact: completely or not at all, never over a file that is there."""
    if output == "-" and session.as_json:
        raise UsageProblem("-o - and --json both want standard output: leave one out.")
    with session.client.download(f"/v1/artifacts/{quote(artifact_id, safe='')}/content") as response:
        if output == "-":
            _to_stdout(session, response)
            return
        target = Path(output) if output else Path()
        if output is None or target.is_dir():
            target /= safe_name(disposition_name(response.headers.get("content-disposition")), artifact_id)
        promised = response.headers.get("x-content-sha256", "")
        count = save(_chunks(response), target, force=force, sha256=promised if _SHA256.match(promised) else None)
    if session.as_json:
        session.out.document({"object": "download", "artifact_id": artifact_id, "path": str(target), "bytes": count})
    else:
        session.out.text(target)


def _chunks(response: httpx.Response) -> Iterator[bytes]:
    return response.iter_bytes(_CHUNK)


def _to_stdout(session: Session, response: httpx.Response) -> None:
    if not session.out.to_terminal:
        for chunk in _chunks(response):
            session.out.raw(chunk)
        return
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    for chunk in _chunks(response):
        session.out.text(decode(chunk), end="")
    session.out.text(decode(b"", True))
