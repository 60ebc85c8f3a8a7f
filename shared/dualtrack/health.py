"""Whether a worker works: a file that it touches while it does, and the command that a container's health check runs.

    python -m dualtrack.health check [--file FILE] [--max-age SECONDS]     a worker's file is fresh
    python -m dualtrack.health url URL [--timeout SECONDS]                 an address answers with 2xx

Exit status 0: healthy; 1: not, and why on standard output. Starts fast: it imports nothing but the standard library.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

FILE_VARIABLE: Final = "DUALTRACK_WORKERS__HEALTH_FILE"
INTERVAL_S: Final = 5.0
"""Seconds between two looks of a healthy worker."""
MAX_AGE_S: Final = 30.0
"""A file older than this is a worker that no longer works: several looks, each with its slowest probe."""
_SOON_S: Final = 0.5
END_AFTER_S: Final = 60.0
"""A worker that is stuck for this long ends itself, so that whoever supervises it starts another one."""
END_GRACE_S: Final = 30.0
"""Then it has this long to end in good order."""
_JOIN_S: Final = 5.0
_BODY_BYTES: Final = 2000

_LOG: Final = logging.getLogger(__name__)

Probe = Callable[[], None]
"""Returns when all is well; raises, saying what is wrong, when it is not."""


class Stuck(Exception):
    """Raised by a probe: nobody is away, and yet this process does not work; only a new one will."""


class HealthFile:
    """Runs the probes every `INTERVAL_S` seconds, for the time of a `with` block, and touches a file while all pass.

    Without a path, nothing is touched. When the block ends the file is removed: a stopping worker is not healthy. After `END_AFTER_S`
    seconds in which a probe raised `Stuck` the process is told to end (SIGTERM), and ended with status 1 after `END_GRACE_S` more.

    Attributes:
        gave_up: the process was told to end because it is stuck; its exit status should say so.
    """

    def __init__(self, path: Path | None, probes: Mapping[str, Probe]) -> None:
        self.gave_up = False
        self._path = path
        self._probes = dict(probes)
        self._stuck_since: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._failing: str | None = "starting"
        self._was_healthy = False

    def look(self) -> bool:
        """Run the probes once and touch the file if they all pass; changes are logged, as warnings once it was healthy."""
        problem = self._problem()
        if problem is None and self._path is not None:
            try:
                self._path.touch()
            except OSError as error:
                problem = f"the health file can't be written ({error})"
        if problem != self._failing:
            if problem is None:
                _LOG.info("healthy")
            else:
                _LOG.log(logging.WARNING if self._was_healthy else logging.INFO, "not healthy: %s", problem)
            self._failing = problem
        self._was_healthy = self._was_healthy or problem is None
        return problem is None

    def __enter__(self) -> Self:
        if self._path is not None:
            self._path.unlink(missing_ok=True)  # left by a process that was killed
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_JOIN_S)
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            pause = INTERVAL_S if self.look() else _SOON_S
            if self._stuck_since is not None and time.monotonic() - self._stuck_since > END_AFTER_S:
                self._end()
                return

    def _end(self) -> None:
        _LOG.critical("ending, so that another process takes over: not healthy for %d s: %s", END_AFTER_S, self._failing)
        self.gave_up = True
        os.kill(os.getpid(), signal.SIGTERM)
        if not self._stop.wait(END_GRACE_S):
            os._exit(1)

    def _problem(self) -> str | None:
        stuck = None
        problem = None
        for name, probe in self._probes.items():
            try:
                probe()
            except Stuck as error:
                stuck = problem = f"{name}: {error}"
                break
            except Exception as error:  # noqa: BLE001 - whatever a probe raises says that something is wrong
                problem = f"{name}: {error or type(error).__name__}"
                break
        if stuck is None:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = time.monotonic()
        return problem


def file_problem(path: Path, max_age_s: float, now: float) -> str | None:
    """Why the worker of this health file is not healthy at `now` (seconds since the epoch), or None."""
    try:
        age = now - path.stat().st_mtime
    except OSError as error:
        return f"{path}: {error.strerror}; the worker is starting, stopping, or has lost its broker or database from the start"
    if age > max_age_s:
        return f"{path} was last touched {age:.0f} s ago (at most {max_age_s:g}); the worker's log says what is wrong"
    return None


def url_problem(url: str, timeout_s: float) -> str | None:
    """Why a GET of `url` (http or https) does not succeed, or None."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s):  # noqa: S310 - the operator's own address
            return None
    except urllib.error.HTTPError as error:
        with error:
            return f"{url} answers {error.code}: {error.read(_BODY_BYTES).decode(errors='replace')}"
    except (OSError, ValueError) as error:
        return f"{url}: {error}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dualtrack.health", description="Health checks for containers.")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="is a worker's health file fresh?")
    check.add_argument("--file", type=Path, help=f"the file (default: ${FILE_VARIABLE})")
    check.add_argument("--max-age", type=float, default=MAX_AGE_S, metavar="SECONDS", help=f"default {MAX_AGE_S:g}")
    url = commands.add_parser("url", help="does an address answer with 2xx?")
    url.add_argument("url")
    url.add_argument("--timeout", type=float, default=3.0, metavar="SECONDS", help="default 3")
    options = parser.parse_args(arguments)
    if options.command == "url":
        problem = url_problem(options.url, options.timeout)
    else:
        path = options.file or os.environ.get(FILE_VARIABLE)
        if not path:
            parser.error(f"name the file by --file or {FILE_VARIABLE}")
        problem = file_problem(Path(path), options.max_age, time.time())
    if problem is not None:
        sys.stdout.write(problem + "\n")
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main())
