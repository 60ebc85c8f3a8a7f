"""`make chaos`, `make chaos-short`: the fault matrix, then random faults; exit status 1 unless everything is as it should be."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from dualtrack.testing.chaos.matrix import matrix
from dualtrack.testing.chaos.report import Result, as_json, into_page, markdown, terminal_head, terminal_row
from dualtrack.testing.chaos.rig import Rig
from dualtrack.testing.chaos.row import Row
from dualtrack.testing.chaos.run import JOBS, run_random, run_row

LONG_JOBS, LONG_STEPS = 300, (8, 20)
SHORT_JOBS, SHORT_STEPS = 16, (8, 10)


def main() -> int:
    """The command; the exit status."""
    options = _options()
    rows = _chosen(options)
    if options.list:
        print("\n".join(f"{row.name:<44} {row.what}" for row in rows))
        return 0
    began = time.monotonic()
    results: list[Result] = []
    print(f"seed {options.seed}; starting two of every service, RabbitMQ, PostgreSQL and S3", flush=True)
    with Rig() as rig:
        print(f"started in {time.monotonic() - began:.0f} s\n\n{terminal_head()}", flush=True)
        for row in rows:
            results.append(run_row(rig, row, seed=options.seed, jobs=options.jobs, slack=options.slack))
            print(terminal_row(results[-1]), flush=True)
            if options.keep_logs and not results[-1].passed:
                _keep_logs(rig, options.keep_logs / row.name)
        if options.random:
            print(f"\n{options.random} jobs under random faults, seed {options.seed}; the same seed gives the same plan", flush=True)
            steps = SHORT_STEPS if options.short else LONG_STEPS
            random = run_random(rig, seed=options.seed, jobs=options.random, steps=steps, say=lambda text: print(text, flush=True))
            print(terminal_row(random), flush=True)
            results.append(random)
            if options.keep_logs and not random.passed:
                _keep_logs(rig, options.keep_logs / "random")
    failed = [result for result in results if not result.passed]
    print(f"\n{len(results) - len(failed)} of {len(results)} rows passed in {time.monotonic() - began:.0f} s, seed {options.seed}")
    if options.json:
        about = {"seed": options.seed, "at": datetime.now(UTC).isoformat(timespec="seconds"), "machine": platform.platform()}
        options.json.write_text(json.dumps(about | {"rows": as_json(results)}, indent=1) + "\n")
    if options.page:
        machine = f"{os.cpu_count()} cores, {platform.system()}"
        when = f"{datetime.now(UTC):%-d %B %Y}, seed {options.seed}, {machine}, {time.monotonic() - began:.0f} s:"
        options.page.write_text(into_page(options.page.read_text(), markdown(results), when))
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dualtrack.testing.chaos", description=__doc__)
    parser.add_argument("--short", action="store_true", help="only the rows of the shortened matrix")
    parser.add_argument("--rows", help="only these rows, by the beginnings of their names, comma-separated ('-': none)")
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    parser.add_argument("--seed", type=int, default=1, help="of jobs and random faults (default 1)")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"jobs of each row, their children not counted (default {JOBS})")
    parser.add_argument(
        "--slack", type=float, default=1.0, metavar="TIMES", help="recovery may take so many times its limit (busy machines)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table into this page, between its marks")
    parser.add_argument("--random", type=int, metavar="JOBS", help=f"jobs under random faults (default {LONG_JOBS}; {SHORT_JOBS} if short)")
    parser.add_argument("--keep-logs", type=Path, metavar="FOLDER", help="copy all logs there after a row that failed")
    options = parser.parse_args()
    if options.random is None:
        options.random = 0 if options.rows else SHORT_JOBS if options.short else LONG_JOBS
    return options


def _chosen(options: argparse.Namespace) -> list[Row]:
    rows = [row for row in matrix() if row.short or not options.short]
    names = tuple(options.rows.split(",")) if options.rows else ("",)
    return [row for row in rows if row.name.startswith(names)]


def _keep_logs(rig: Rig, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for log in rig.stack.folder.glob("*.log"):
        (folder / log.name).write_bytes(log.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
