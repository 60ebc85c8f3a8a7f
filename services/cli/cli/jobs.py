"""`dualtrack jobs`: the deep track."""

from __future__ import annotations

import codecs
import hashlib
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli import budgets, steering
from cli.job_view import show_job, show_steps, status_line, timestamp
from cli.outcome import HELP, UsageProblem
from cli.request import own_key, path_of
from cli.session import Session, command, read_stdin
from cli.spec import MAX_SPEC_BYTES, check, input_entry, merge, parse_input, parse_metadata, read_spec, require_key

_LISTED = "id,status,reason,waiting_for,step,created_at,instructions"
"""What the table shows of a job."""
_TIME = "such as 2026-11-30T08:00:00Z"
JobId = Annotated[str, typer.Argument(metavar="ID", help="Id of the job.")]


class Status(StrEnum):
    """Statuses to list by."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class OnLimit(StrEnum):
    """What reaching a limit does."""

    WAIT = "wait"
    FAIL = "fail"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Long-horizon jobs: submit, watch, stop and look into them.", epilog=HELP)
    command(group, "submit", paths=("files",))(submit)
    command(group, "list")(list_jobs)
    command(group, "show")(show)
    command(group, "watch")(watch)
    command(group, "cancel")(cancel)
    command(group, "extend")(budgets.extend)
    steering.register(group)
    command(group, "steps")(steps)
    command(group, "observation")(observation)
    app.add_typer(group, name="jobs")


def submit(
    session: Session,
    *,
    instructions: Annotated[str | None, typer.Argument(help="What to do, in plain words; '-' or nothing: read standard input.")] = None,
    files: Annotated[
        list[str] | None, typer.Option("--file", "-f", metavar="PATH[:WORKSPACE/PATH]", help="Upload a file for the job; again for more.")
    ] = None,
    checks: Annotated[
        list[str] | None,
        typer.Option("--check", metavar="CMD", help="Command that must exit 0 before the job may succeed; again for more."),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--output", metavar="WORKSPACE/PATH", help="File that must exist at the end, and is saved as an artifact; again for more."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Track or model that decides; else deep.")] = None,
    tools: Annotated[
        list[str] | None, typer.Option("--tool", metavar="NAME", help="A tool on offer instead of the default set; again for more.")
    ] = None,
    max_steps: Annotated[int | None, typer.Option("--max-steps", min=1, help="Most decisions.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Most tokens of all model calls together.")] = None,
    max_cost: Annotated[str | None, typer.Option("--max-cost", metavar="USD", help="Most US dollars of all model calls together.")] = None,
    max_wall_time: Annotated[
        int | None, typer.Option("--max-wall-time", metavar="SECONDS", min=1, help="Seconds of work, without those in which it waited.")
    ] = None,
    on_limit: Annotated[
        OnLimit | None,
        typer.Option("--on-limit", help="What reaching a limit does: the job waits to be extended, or it fails. Else: wait."),
    ] = None,
    metadata: Annotated[list[str] | None, typer.Option("--metadata", metavar="K=V", help="Your own label; again for more.")] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", min=0, max=9, help="Higher is taken up first where the broker supports it.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", metavar="KEY", help="The same key and request give the same job, not a second one.")
    ] = None,
    spec_file: Annotated[
        Path | None, typer.Option("--spec", metavar="FILE", help="Specification in JSON or YAML; options add to it and win.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Watch the job to its end; the exit status tells how it ended.")] = False,
) -> int | None:
    """Submit a job and print its id; with --watch, see it through."""
    require_key(idempotency_key)
    spec = {} if spec_file is None else read_spec(spec_file)
    limits: dict[str, Any] = {"steps": max_steps, "tokens": max_tokens, "cost_usd": max_cost, "wall_time_s": max_wall_time}
    limits |= {"on_limit": None if on_limit is None else on_limit.value}
    given: dict[str, Any] = {
        "instructions": _instructions(instructions, spec),
        "checks": checks or None,
        "outputs": outputs or None,
        "agent": {name: value for name, value in (("model", model), ("tools", tools)) if value},
        "limits": {name: value for name, value in limits.items() if value is not None},
        "metadata": parse_metadata(metadata or []),
        "priority": priority,
    }
    inputs = [parse_input(text) for text in files or []]
    body = merge(spec, {name: value for name, value in given.items() if value not in (None, {})})
    check(body, inputs)
    # A key of our own makes it safe to send the request again when the connection breaks before the answer.
    request_key = idempotency_key or own_key()
    uploaded = []
    for number, item in enumerate(inputs):
        # The job's key covers the ids of its files, so the same command must get the same ids again.
        file_key = "cli-file-" + hashlib.sha256(f"{request_key}\n{number}".encode()).hexdigest()
        uploaded.append(input_entry(str(session.client.upload(item.local, name=item.name, idempotency_key=file_key).get("id")), item))
        if not session.as_json:
            session.out.say(f"uploaded {item.local}", "dim")
    if uploaded:
        body = merge(body, {"inputs": uploaded})
    job = session.client.post("/v1/jobs", body, idempotency_key=request_key)
    job_id = str(job.get("id"))
    if session.as_json:
        (session.out.json_line if watch else session.out.document)(job)
    elif watch:
        session.out.say(f"job {job_id}", "bold")
    else:
        session.out.text(job_id)
        session.out.say(f"watch it: dualtrack jobs watch {job_id}", "dim")
    return _watch(session, job_id) if watch else None


def _instructions(argument: str | None, spec: dict[str, Any]) -> str | None:
    if argument == "-" or (argument is None and "instructions" not in spec and not sys.stdin.isatty()):
        return read_stdin(MAX_SPEC_BYTES, "the instructions")
    if argument is None and "instructions" not in spec:
        raise UsageProblem("Say what to do: dualtrack jobs submit 'Summarise orders.csv' --file orders.csv")
    return argument


def list_jobs(
    session: Session,
    *,
    status: Annotated[list[Status] | None, typer.Option("--status", help="Only jobs in this status; again for more.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only jobs of the agent profile of that name.")] = None,
    parent: Annotated[str | None, typer.Option("--parent", metavar="ID", help="Only the children of this job.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option("--metadata", metavar="K=V", help="Only jobs that carry this label; again for more, all of them.")
    ] = None,
    reason: Annotated[
        list[str] | None, typer.Option("--reason", metavar="CODE", help="Only jobs that ended or wait for it; again for more.")
    ] = None,
    schedule: Annotated[str | None, typer.Option("--schedule", metavar="ID", help="Only jobs that this schedule started.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help=f"Only jobs submitted then or later, {_TIME}.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only jobs submitted earlier.")] = None,
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="Instead of newest first.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most rows.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """List jobs, newest first."""
    given = {"agent": agent, "parent_id": parent, "schedule_id": schedule, "created_after": since, "created_before": until}
    params = [("status", item.value) for item in status or []]
    params += [("reason", code) for code in reason or []]
    params += [(name, value) for name, value in given.items() if value is not None]
    if oldest_first:
        params.append(("order", "asc"))
    params += [(f"metadata.{key}", value) for key, value in parse_metadata(metadata or []).items()]
    if not session.as_json:
        params.append(("fields", _LISTED))
    found = session.client.pages("/v1/jobs", params, limit=None if everything else limit)
    if session.as_json:
        session.out.document(found)
        return
    rows = [
        [row.get("id"), status_line(row), row.get("step"), timestamp(row.get("created_at")), str(row.get("instructions", ""))[:400]]
        for row in found["data"]
    ]
    session.out.table(["ID", "STATUS", "STEP", "CREATED", "INSTRUCTIONS"], rows)
    if found["has_more"]:
        session.out.say("There are more: --limit N or --all.", "dim")


def show(session: Session, job_id: JobId) -> None:
    """Show a job: status, plan, answer, usage."""
    job = session.client.get(path_of("jobs", job_id))
    if session.as_json:
        session.out.document(job)
    else:
        show_job(session.out, job)


def watch(
    session: Session,
    job_id: JobId,
    after: Annotated[int, typer.Option("--after", metavar="N", min=0, help="Only events after this sequence number.")] = 0,
) -> int:
    """Watch a job to its end, from its first event on; the exit status tells how it ended.

    A broken connection is opened again and goes on where it was. Ctrl-C stops the watching, not the job.
    """
    return _watch(session, job_id, after=after)


def cancel(session: Session, job_id: JobId) -> None:
    """Ask a job to stop; running calls are told within seconds."""
    job = session.client.post(path_of("jobs", job_id) + "/cancel")
    if session.as_json:
        session.out.document(job)
    else:
        session.out.text(job.get("status"))
        if job.get("status") != "cancelled":
            session.out.say(f"It stops as soon as its running calls have: dualtrack jobs watch {job_id}", "dim")


def steps(session: Session, job_id: JobId) -> None:
    """Show a job's steps: what was thought, called and observed."""
    found = session.client.pages(path_of("jobs", job_id) + "/steps")
    if session.as_json:
        session.out.document(found)
    else:
        show_steps(session.out, job_id, found["data"])


def observation(
    session: Session,
    job_id: JobId,
    call_id: Annotated[str, typer.Argument(metavar="CALL_ID", help="Id of a call, as `jobs steps` shows it.")],
) -> None:
    """Print all of what a call gave back, where `jobs steps` shows it shortened."""
    path = f"{path_of('jobs', job_id)}/calls/{quote(call_id, safe='')}/observation"
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    with session.client.download(path) as response:
        pieces = (decode(chunk) for chunk in response.iter_bytes())
        if session.as_json:
            session.out.document({"object": "observation", "job_id": job_id, "call_id": call_id, "text": "".join(pieces)})
            return
        for piece in pieces:
            session.out.text(piece, end="")
    session.out.text(decode(b"", True))


def _watch(session: Session, job_id: str, *, after: int = 0) -> int:
    from cli.watch import watch as show_live  # brings httpx, which `--help` does without

    return show_live(session, job_id, after=after)
