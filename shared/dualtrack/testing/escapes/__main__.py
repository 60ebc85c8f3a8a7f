"""`make sandbox-escapes`: every attempt behind every rung that this machine has; exit status 1 if one gets out.

A rung that does not work here is named with its reason; it is an error (status 2) only if it was asked for by name, or if none works.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from dualtrack.bootstrap import load_settings
from dualtrack.domain.errors import DualtrackError
from dualtrack.testing.escapes import ATTEMPTS
from dualtrack.testing.escapes.allowed import ALLOWED
from dualtrack.testing.escapes.attempt import Attempt
from dualtrack.testing.escapes.collect import trusting
from dualtrack.testing.escapes.ground import Ground, Unsandboxed, open_rungs, sandbox_user
from dualtrack.testing.escapes.run import Result, run
from dualtrack.testing.escapes.table import Control, as_json, control_of, filled, into_page, markdown, terminal


def main() -> int:
    """The command; the exit status."""
    options = _options()
    attempts = [attempt for attempt in ATTEMPTS if attempt.name.startswith(options.attempts)]
    if options.list:
        print("\n".join(f"{attempt.name:<30} {attempt.kind:<32} {attempt.tries}" for attempt in attempts))
        return 0
    began = time.monotonic()
    settings = load_settings().sandbox
    rungs, absent = open_rungs(settings, options.rungs)
    uid = sandbox_user(settings)
    controls = _controls(attempts, uid)
    results = {name: _timed(f"behind {name}", rung, attempts, uid) for name, rung in rungs.items()}
    table = filled(attempts, controls, results, ALLOWED, absent)
    print(terminal(table, everything=options.all))
    took = time.monotonic() - began
    print(f"\n{took:.0f} s. --all shows all rows; --json FILE and --page FILE write them.")
    if options.json:
        about = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "machine": platform.platform()}
        options.json.write_text(json.dumps(about | as_json(table), indent=1) + "\n")
    if options.page:
        when = f"{datetime.now(UTC):%-d %B %Y}, Linux {platform.release()}, {platform.machine()}, {took:.0f} s:"
        options.page.write_text(into_page(options.page.read_text(), markdown(table), when))
    if table.failures:
        return 1
    return 2 if not rungs or (options.rungs and absent) else 0


def _controls(attempts: list[Attempt], uid: int) -> dict[str, tuple[Control, str]]:
    """Each attempt without a sandbox: as a plain user and, where one is refused, as root."""
    tried = [attempt for attempt in attempts if attempt.control]
    user = _timed("without a sandbox, as a plain user", Unsandboxed(uid), tried, uid, control=True)
    again = [attempt for attempt in tried if attempt.root and not user[attempt.name].proof] if os.geteuid() == 0 else []
    root = _timed("without a sandbox, as root", Unsandboxed(0), again, uid, control=True) if again else {}
    return {attempt.name: control_of(attempt, user.get(attempt.name), root.get(attempt.name)) for attempt in attempts}


def _timed(what: str, ground: Ground, attempts: list[Attempt], uid: int, *, control: bool = False) -> dict[str, Result]:
    started, count = time.monotonic(), 0

    def done(_: Result) -> None:
        nonlocal count
        count += 1
        if sys.stderr.isatty():
            print(f"\r{what}: {count} of {len(attempts)}", end="", file=sys.stderr, flush=True)

    try:
        return run(ground, attempts, uid, done=done, **({"collector": trusting} if control else {}))
    except DualtrackError as error:
        raise SystemExit(f"{what}: {error.message}") from error
    finally:
        print(f"\r{what}: {count} of {len(attempts)} attempts in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dualtrack.testing.escapes", description=__doc__)
    parser.add_argument("--rungs", type=lambda text: text.split(","), metavar="NAMES", help="only these, comma-separated; each must work")
    parser.add_argument(
        "--attempts",
        type=lambda text: tuple(text.split(",")),
        default=("",),
        metavar="NAMES",
        help="only these, by the beginnings of their names",
    )
    parser.add_argument("--all", action="store_true", help="show all rows, not only those where something gets through")
    parser.add_argument("--list", action="store_true", help="print the attempts and end")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table into this page, between its marks")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
