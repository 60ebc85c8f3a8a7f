"""Showing a job live: events as JSON lines, as plain lines for logs, or with a moving last line at a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cli.follow import Follower
from cli.outcome import CliError, Exit, of_status
from cli.progress import JobProgress, Line
from cli.request import path_of
from cli.session import Session
from cli.text import clock, duration, moment, one_line, size

if TYPE_CHECKING:
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text


class _Status:
    """The moving last line: a spinner, time elapsed, step, what is running, what was spent."""

    def __init__(self, progress: JobProgress) -> None:
        from rich.spinner import Spinner

        self._progress = progress
        self._spinner = Spinner("dots")
        self._fed_at = time.monotonic()

    def fed(self) -> None:
        """Take the progress's elapsed time as that of now (its clock is the server's)."""
        self._fed_at = time.monotonic()

    def __rich__(self) -> Spinner:
        from rich.text import Text

        progress = self._progress
        elapsed = clock(progress.elapsed_s + time.monotonic() - self._fed_at)
        self._spinner.update(
            text=Text(f"{elapsed}  step {progress.step}  {progress.running()}  {progress.spent()}", overflow="ellipsis", no_wrap=True)
        )
        return self._spinner


class _Printer:
    """Lines to standard error, above a moving status line where there can be one."""

    def __init__(self, session: Session, progress: JobProgress) -> None:
        self._errors = session.out.errors
        self._status = _Status(progress) if session.out.live else None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Keep the status line while the block runs."""
        if self._status is None:
            yield
            return
        live = self._live(self._status)
        with live:
            yield

    def _live(self, status: _Status) -> Live:
        from rich.live import Live

        return Live(status, console=self._errors, transient=True, refresh_per_second=8, redirect_stdout=False, redirect_stderr=False)

    def lines(self, lines: list[Line]) -> None:
        """Print the lines of one event."""
        if self._status is not None:
            self._status.fed()
        for line in lines:
            self._errors.print(self._styled(line))

    def _styled(self, line: Line) -> Text:
        from rich.text import Text

        return Text(line.text, style=line.style)


def watch(session: Session, job_id: str, *, after: int = 0) -> Exit:
    """Follow a job to its end and show it; the exit status that its end stands for.

    Progress goes to standard error, the answer to standard output; with `--json` the events go to standard output.

    Raises:
        ApiError, Unreachable: as `Follower`; KeyboardInterrupt is told and becomes `Exit.INTERRUPTED`.
    """
    printer: _Printer | None = None

    def broken(reason: str, pause: float) -> None:
        if printer is not None:
            printer.lines([Line(f"           {one_line(reason, 120)}; connecting again in {duration(pause)}", "yellow")])

    follower = Follower(session.client, job_id, after=after, on_break=broken)
    try:
        job = session.client.get(path_of("jobs", job_id))
        progress = JobProgress(details=session.out.live, started_at=moment(job.get("created_at")))
        if session.as_json:
            for event in follower:
                progress.feed(event)
                session.out.json_line(event)
        else:
            printer = _Printer(session, progress)
            with printer.open():
                for event in follower:
                    printer.lines(progress.lines(event))
    except KeyboardInterrupt:
        again = f" --after {follower.last_seq}" if follower.last_seq else ""
        session.out.say(
            f"\nInterrupted; the job goes on.\n  watch it again:  dualtrack jobs watch {job_id}{again}\n"
            f"  stop it:         dualtrack jobs cancel {job_id}"
        )
        return Exit.INTERRUPTED
    if progress.status is None:
        # Everything after `after` was already known: the job had ended before.
        job = session.client.get(path_of("jobs", job_id))
        progress.status, progress.answer = str(job.get("status")), job.get("answer")
    if not session.as_json:
        _closing(session, job_id, progress)
    return of_status(progress.status)


def _closing(session: Session, job_id: str, progress: JobProgress) -> None:
    if progress.answer:
        session.out.text(progress.answer)
    # Asked for rather than taken from the events: some may have been saved before the first event that was watched.
    try:
        artifacts = session.client.pages(f"{path_of('jobs', job_id)}/artifacts")["data"]
    except CliError as error:
        # How the job ended is known, and is what the exit status must tell.
        session.out.say(f"Its artifacts can't be listed now ({error.message}): dualtrack artifacts list {job_id}", "yellow")
        return
    if artifacts:
        session.out.say("\nArtifacts:", "bold")
    for item in artifacts:
        session.out.say(
            f"  {one_line(item.get('name'), 80)} ({size(item.get('size'))})  dualtrack artifacts get {one_line(item.get('id'), 64)}"
        )
