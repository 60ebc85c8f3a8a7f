"""`dualtrack schedules`: jobs by the clock."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.job_view import timestamp
from cli.outcome import UsageProblem
from cli.request import own_key, path_of
from cli.session import Session, command
from cli.spec import check, read_spec
from cli.text import one_line, to_json

ScheduleId = Annotated[str, typer.Argument(metavar="ID", help="Id of the schedule.")]


class Overlap(StrEnum):
    """What is done while a job of the schedule is live."""

    SKIP = "skip"
    QUEUE = "queue"
    CANCEL = "cancel"


class CatchUp(StrEnum):
    """What is done about missed times."""

    LATEST = "latest"
    SKIP = "skip"


_Overlap = Annotated[
    Overlap | None, typer.Option("--overlap", help="While a job of it is live: skip the new one, queue it, or cancel the live one.")
]
_CatchUp = Annotated[CatchUp | None, typer.Option("--catch-up", help="Missed times: one job for the latest, or skip them.")]
_Timezone = Annotated[
    str | None, typer.Option("--timezone", metavar="NAME", help="IANA time zone of the expression, such as Europe/Berlin.")
]
_Name = Annotated[str | None, typer.Option("--name", metavar="TEXT", help="For people.")]
_Spec = Annotated[Path | None, typer.Option("--spec", metavar="FILE", help="The job's specification in JSON or YAML.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Jobs that are submitted by the clock.")
    command(group, "add", paths=("spec_file",))(add)
    command(group, "list")(list_schedules)
    command(group, "show")(show)
    command(group, "change", paths=("spec_file",))(change)
    command(group, "pause")(pause)
    command(group, "resume")(resume)
    command(group, "run")(run)
    command(group, "runs")(runs)
    command(group, "remove")(remove)
    app.add_typer(group, name="schedules")


def add(
    session: Session,
    cron: Annotated[str, typer.Argument(metavar="CRON", help="Minute, hour, day of the month, month, day of the week: '0 9 * * MON'.")],
    instructions: Annotated[str | None, typer.Argument(help="What the job is to do, in plain words; else in --spec.")] = None,
    *,
    spec_file: _Spec = None,
    timezone: _Timezone = None,
    name: _Name = None,
    overlap: _Overlap = None,
    catch_up: _CatchUp = None,
    paused: Annotated[bool, typer.Option("--paused", help="Made, but due at no time until it is resumed.")] = False,
) -> None:
    """Make a schedule and print its id."""
    job = _job(spec_file, instructions)
    if job is None:
        raise UsageProblem("Say what the job is to do: dualtrack schedules add '0 9 * * MON' 'Write the weekly report.', or --spec FILE.")
    body = _given(cron=cron, job=job, timezone=timezone, name=name, overlap=overlap, catch_up=catch_up, paused=paused or None)
    made = session.client.post("/v1/schedules", body, idempotency_key=own_key())
    if session.as_json:
        session.out.document(made)
        return
    session.out.text(made.get("id"))
    session.out.say(f"due next: {timestamp(made.get('next_at')) or 'at no time, it is paused'}", "dim")


def list_schedules(
    session: Session,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most rows.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """List schedules, newest first."""
    found = session.client.pages("/v1/schedules", limit=None if everything else limit)
    if session.as_json:
        session.out.document(found)
        return
    rows = [
        [row.get("id"), row.get("cron"), row.get("timezone"), timestamp(row.get("next_at")) or "paused", row.get("name") or _task(row)]
        for row in found["data"]
    ]
    session.out.table(["ID", "CRON", "TIMEZONE", "NEXT", "NAME"], rows)


def show(session: Session, schedule_id: ScheduleId) -> None:
    """Show a schedule and when it is due next."""
    _show(session, session.client.get(path_of("schedules", schedule_id)))


def change(
    session: Session,
    schedule_id: ScheduleId,
    *,
    cron: Annotated[str | None, typer.Option("--cron", metavar="CRON", help="Another expression.")] = None,
    spec_file: _Spec = None,
    timezone: _Timezone = None,
    name: _Name = None,
    overlap: _Overlap = None,
    catch_up: _CatchUp = None,
) -> None:
    """Change a schedule; a specification takes the place of all of the one before."""
    body = _given(cron=cron, job=_job(spec_file, None), timezone=timezone, name=name, overlap=overlap, catch_up=catch_up)
    if not body:
        raise UsageProblem("Say what to change: --cron, --timezone, --spec, --name, --overlap or --catch-up.")
    _show(session, session.client.patch(path_of("schedules", schedule_id), body))


def pause(session: Session, schedule_id: ScheduleId) -> None:
    """Let a schedule be due at no time; its live jobs go on."""
    _show(session, session.client.patch(path_of("schedules", schedule_id), {"paused": True}))


def resume(session: Session, schedule_id: ScheduleId) -> None:
    """Let a paused schedule be due again; times that passed are not made up for."""
    _show(session, session.client.patch(path_of("schedules", schedule_id), {"paused": False}))


def run(session: Session, schedule_id: ScheduleId) -> None:
    """Submit a schedule's job now and print the job's id."""
    started = session.client.post(path_of("schedules", schedule_id) + "/run", idempotency_key=own_key())
    if session.as_json:
        session.out.document(started)
        return
    session.out.text(started.get("job_id"))
    session.out.say(f"watch it: dualtrack jobs watch {started.get('job_id')}", "dim")


def runs(
    session: Session,
    schedule_id: ScheduleId,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most rows.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """List what became of a schedule's times, newest first."""
    found = session.client.pages(path_of("schedules", schedule_id) + "/runs", limit=None if everything else limit)
    if session.as_json:
        session.out.document(found)
        return
    rows = [
        [timestamp(row.get("at")), row.get("outcome"), row.get("job_id"), row.get("missed") or "", row.get("message")]
        for row in found["data"]
    ]
    session.out.table(["AT", "OUTCOME", "JOB", "MISSED", "WHY"], rows)


def remove(session: Session, schedule_id: ScheduleId) -> None:
    """Remove a schedule; its jobs stay."""
    removed = session.client.delete(path_of("schedules", schedule_id))
    if session.as_json:
        session.out.document(removed)
    else:
        session.out.say(f"removed {schedule_id}", "dim")


def _job(spec_file: Path | None, instructions: str | None) -> dict[str, Any] | None:
    """The job's specification, checked as far as this side can; None where none was given."""
    if spec_file is None and instructions is None:
        return None
    job = ({} if spec_file is None else read_spec(spec_file)) | ({} if instructions is None else {"instructions": instructions})
    check(job, [])
    return job


def _given(**fields: object) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _show(session: Session, schedule: Mapping[str, Any]) -> None:
    if session.as_json:
        session.out.document(schedule)
        return
    session.out.fields(
        [
            ("schedule", schedule.get("id")),
            ("name", schedule.get("name")),
            ("cron", schedule.get("cron")),
            ("timezone", schedule.get("timezone")),
            ("next", timestamp(schedule.get("next_at")) or "paused"),
            ("overlap", schedule.get("overlap")),
            ("catch up", schedule.get("catch_up")),
            ("created", timestamp(schedule.get("created_at"))),
            ("job", to_json(schedule.get("job"), indent=2)),
        ]
    )


def _task(schedule: Mapping[str, Any]) -> str:
    job = schedule.get("job")
    return one_line(job.get("instructions", ""), 60) if isinstance(job, Mapping) else ""
