"""Steering jobs: pause, resume, write to them, go on from an earlier step as a new job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from cli.job_view import status_line
from cli.outcome import UsageProblem
from cli.request import own_key, path_of
from cli.session import Session, command, read_stdin
from cli.spec import parse_metadata, require_key

_MAX_MESSAGE_BYTES: Final = 1024 * 1024

JobId = Annotated[str, typer.Argument(metavar="ID", help="Id of the job.")]
Key = Annotated[
    str | None, typer.Option("--idempotency-key", metavar="KEY", help="The same key and request do it once; else each run has its own.")
]
Message = Annotated[str | None, typer.Option("--message", "-m", help="First message to the new job; its agent sees it at once.")]
Instructions = Annotated[str | None, typer.Option("--instructions", help="What to do, instead.")]
Model = Annotated[str | None, typer.Option("--model", help="Track or model that decides, instead.")]
Checks = Annotated[list[str] | None, typer.Option("--check", metavar="CMD", help="Checks instead of the job's; again for more.")]
Outputs = Annotated[
    list[str] | None, typer.Option("--output", metavar="WORKSPACE/PATH", help="Outputs instead of the job's; again for more.")
]
Metadata = Annotated[list[str] | None, typer.Option("--metadata", metavar="K=V", help="Labels instead of the job's; again for more.")]
MaxSteps = Annotated[int | None, typer.Option("--max-steps", min=1, help="Most decisions, those that are kept included.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=1, help="Most tokens of the new job's model calls.")]
MaxCost = Annotated[str | None, typer.Option("--max-cost", metavar="USD", help="Most US dollars of the new job's model calls.")]
MaxWallTime = Annotated[int | None, typer.Option("--max-wall-time", metavar="SECONDS", min=1, help="Seconds of work.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Watch the new job to its end; the exit status tells how it ended.")]


def register(group: typer.Typer) -> None:
    """Add the commands to `dualtrack jobs`."""
    command(group, "pause")(pause)
    command(group, "resume")(resume)
    command(group, "message")(message)
    command(group, "fork")(fork)
    command(group, "retry")(retry)


def pause(session: Session, job_id: JobId) -> None:
    """Let a job start nothing more; what runs is finished, then it waits."""
    job = session.client.post(path_of("jobs", job_id) + "/pause")
    _told(session, job)
    if not session.as_json and job.get("status") != "waiting":
        session.out.say(f"It waits as soon as what runs is finished: dualtrack jobs watch {job_id}", "dim")


def resume(session: Session, job_id: JobId) -> None:
    """Let a paused job go on."""
    _told(session, session.client.post(path_of("jobs", job_id) + "/resume"))


def message(
    session: Session,
    job_id: JobId,
    text: Annotated[str, typer.Argument(help="What the agent is to take up; '-': read standard input.")],
    *,
    idempotency_key: Key = None,
) -> None:
    """Write to a running job; its agent sees the message at its next decision."""
    require_key(idempotency_key)
    content = read_stdin(_MAX_MESSAGE_BYTES, "the message") if text == "-" else text
    if not content.strip():
        raise UsageProblem("The message is blank: say something.")
    found = session.client.post(path_of("jobs", job_id) + "/messages", {"content": content}, idempotency_key=idempotency_key or own_key())
    if session.as_json:
        session.out.document(found)
    else:
        session.out.say(f"message {found.get('number')}: seen at the next decision", "dim")


def fork(
    session: Session,
    job_id: JobId,
    step: Annotated[int, typer.Argument(min=0, help="The last step to keep; 0: begin anew.")],
    *,
    new_message: Message = None,
    instructions: Instructions = None,
    model: Model = None,
    checks: Checks = None,
    outputs: Outputs = None,
    metadata: Metadata = None,
    max_steps: MaxSteps = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    max_wall_time: MaxWallTime = None,
    idempotency_key: Key = None,
    watch: Watch = False,
) -> int | None:
    """Go on from a step of a job as a new job, with its workspace and context; print the new job's id."""
    limits = {"steps": max_steps, "tokens": max_tokens, "cost_usd": max_cost, "wall_time_s": max_wall_time}
    body = {"step": step} | _changes(new_message, instructions, model, checks, outputs, metadata, limits)
    return _made(session, job_id, "fork", body, idempotency_key, watch=watch)


def retry(
    session: Session,
    job_id: JobId,
    *,
    new_message: Message = None,
    instructions: Instructions = None,
    model: Model = None,
    checks: Checks = None,
    outputs: Outputs = None,
    metadata: Metadata = None,
    max_steps: MaxSteps = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    max_wall_time: MaxWallTime = None,
    idempotency_key: Key = None,
    watch: Watch = False,
) -> int | None:
    """Try a job again that did not succeed, from the step where that makes sense, as a new job; print its id."""
    limits = {"steps": max_steps, "tokens": max_tokens, "cost_usd": max_cost, "wall_time_s": max_wall_time}
    body = _changes(new_message, instructions, model, checks, outputs, metadata, limits)
    return _made(session, job_id, "retry", body, idempotency_key, watch=watch)


def _changes(
    new_message: str | None,
    instructions: str | None,
    model: str | None,
    checks: list[str] | None,
    outputs: list[str] | None,
    metadata: list[str] | None,
    limits: Mapping[str, Any],
) -> dict[str, Any]:
    given: dict[str, Any] = {
        "message": new_message,
        "instructions": instructions,
        "agent": {"model": model} if model else None,
        "checks": checks or None,
        "outputs": outputs or None,
        "metadata": parse_metadata(metadata) if metadata else None,
        "limits": {name: value for name, value in limits.items() if value is not None} or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _made(session: Session, job_id: str, how: str, body: Mapping[str, Any], key: str | None, *, watch: bool) -> int | None:
    require_key(key)
    job = session.client.post(f"{path_of('jobs', job_id)}/{how}", body, idempotency_key=key or own_key())
    made = str(job.get("id"))
    if session.as_json:
        (session.out.json_line if watch else session.out.document)(job)
    elif watch:
        session.out.say(f"job {made}, from step {job.get('forked_step')} of {job_id}", "bold")
    else:
        session.out.text(made)
        session.out.say(f"from step {job.get('forked_step')}; watch it: dualtrack jobs watch {made}", "dim")
    if not watch:
        return None
    from cli.watch import watch as show_live  # brings httpx, which `--help` does without

    return show_live(session, made)


def _told(session: Session, job: Mapping[str, Any]) -> None:
    if session.as_json:
        session.out.document(job)
    else:
        session.out.text(status_line(job))
