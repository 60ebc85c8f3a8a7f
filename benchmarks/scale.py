"""Whether a step costs the same with 20,000 queued jobs beside it and after 30,000 events of its own, and memory stays bounded.

One process runs planner, executor and scheduler by hand over a private PostgreSQL, so that nothing but the platform's own work is timed.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from pydantic import SecretStr
from sqlalchemy import text

from benchmarks._systems import cpu_s
from benchmarks._workers import InstantModel, instant_sessions
from dualtrack.db import events, job_lists, jobs, migrate
from dualtrack.db.engine import Database
from dualtrack.domain.job import Job
from dualtrack.domain.limits import PlatformLimits
from dualtrack.objects.folder import FolderStore
from dualtrack.objects.workdirs import Workdirs
from dualtrack.settings import DatabaseSettings, SandboxSettings
from dualtrack.testing.servers import Postgres
from dualtrack.testing.stepper import Stepper

_EVENTS_A_STEP = 3  # decided, call started, call finished
_PAGE = 1000
_PART = 1000
_QUEUE_STEPS = 300
_MIB = 1024 * 1024
_COPY = text("""
    INSERT INTO jobs (id, tenant_id, spec, metadata, agent_name, priority, status, phase, due_at, deadline_at)
    SELECT 'job_queued' || n, tenant_id, spec, metadata, agent_name, priority, 'queued', 'plan',
           now() + interval '1 hour', now() + interval '1 day'
    FROM jobs, generate_series(1, :count) AS n WHERE id = :job
""")


def milliseconds(act: Callable[[], object], times: int = 1) -> float:
    """Median wall time of an act."""
    took = []
    for _ in range(times):
        started = time.perf_counter()
        act()
        took.append((time.perf_counter() - started) * 1000)
    return statistics.median(took)


def run_job(stepper: Stepper, steps: int, cpu: Callable[[], float]) -> tuple[Job, list[float], list[float]]:
    """A job of that many steps: how long each took, planner and executor together, and `cpu` after each thousand; milliseconds."""
    job = stepper.submit(f"{steps} steps", limits={"steps": min(steps + 1, 10_000), "tokens": 1_000_000_000})
    took: list[float] = []
    used = [cpu()]
    while len(took) < steps:
        took.append(milliseconds(lambda: (stepper.ring(), stepper.ring())))
        if len(took) % _PART == 0 or len(took) == steps:
            used.append(cpu())
    while stepper.ring():
        pass
    return job, took, used


def pages(database: Database, job: Job, last: int) -> tuple[float, float]:
    """Milliseconds for the first and the last full page of a job's events."""

    def load(after: int) -> None:
        with database.transaction() as tx:
            events.page(tx, job.id, after=after, limit=_PAGE)

    return milliseconds(lambda: load(0), 5), milliseconds(lambda: load(max(0, last - _PAGE)), 5)


def looks(stepper: Stepper) -> dict[str, float]:
    """Milliseconds for what looks at all jobs."""

    def counts() -> None:
        with stepper.runtime.database.transaction() as tx:
            jobs.counts(tx)

    def page() -> None:
        with stepper.runtime.database.transaction() as tx:
            job_lists.page(tx, stepper.tenant_id, limit=100)

    found = {"counts_ms": milliseconds(counts, 5), "job_page_ms": milliseconds(page, 5)}
    return found | {"tick_ms": milliseconds(stepper.scheduler.tick, 5)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queued", type=int, default=20_000, help="jobs that wait in the table")
    parser.add_argument("--events", type=int, default=30_000, help="events of the long job")
    options = parser.parse_args()
    limits = PlatformLimits()
    process = psutil.Process()
    with Postgres() as postgres, tempfile.TemporaryDirectory(prefix="dualtrack-bench-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o711)
        database = Database(DatabaseSettings(url=SecretStr(postgres.create_database())))
        migrate.upgrade(database)
        with Workdirs(SandboxSettings(workspaces=Path(folder) / "workspaces")) as workdirs:
            store = FolderStore(Path(folder) / "objects")
            stepper = Stepper(database, store, InstantModel(), instant_sessions(Path(folder) / "workspaces" / "instant"), workdirs, limits)
            with stepper.present():

                def cpu() -> float:
                    return 1000 * (cpu_s([postgres.pid]) + float(sum(process.cpu_times()[:2])))

                first, alone, alone_cpu = run_job(stepper, _QUEUE_STEPS, cpu)
                few = looks(stepper)
                with database.transaction() as tx:
                    tx.connection.execute(_COPY, {"job": first.id, "count": options.queued})
                    tx.connection.execute(text("ANALYZE jobs"))
                _, among, among_cpu = run_job(stepper, _QUEUE_STEPS, cpu)
                many = looks(stepper)
                before = process.memory_info().rss
                steps = options.events // _EVENTS_A_STEP
                job, took, used = run_job(stepper, steps, cpu)
                after = process.memory_info().rss
                early, late = pages(database, job, stepper.job(job).last_seq)
        database.close()
    part = min(_PART, steps)
    begin, end = statistics.median(took[:part]), statistics.median(took[-part:])
    beside, between = statistics.median(alone), statistics.median(among)
    cpu_alone, cpu_among = (used_[-1] - used_[0] for used_ in (alone_cpu, among_cpu))
    cpu_begin, cpu_end = (used[1] - used[0]) / part, (used[-1] - used[-2]) / ((steps - 1) % _PART + 1)
    print(f"step p50, no other job / {options.queued} queued jobs       {beside:7.2f} {between:7.2f} ms")
    print(f"  CPU of all processes                             {cpu_alone / _QUEUE_STEPS:7.2f} {cpu_among / _QUEUE_STEPS:7.2f} ms")
    for name, value in few.items():
        print(f"{name:<16} few / {options.queued} queued jobs            {value:7.2f} {many[name]:7.2f} ms")
    print(f"step p50, first / last {part} of {steps} steps        {begin:7.2f} {end:7.2f} ms")
    print(f"  CPU of all processes                             {cpu_begin:7.2f} {cpu_end:7.2f} ms")
    print(f"page of {_PAGE} events, first / last                   {early:7.2f} {late:7.2f} ms")
    print(f"resident memory before / after the long job        {before / _MIB:7.1f} {after / _MIB:7.1f} MiB")
    ratios = {
        "step_among_queued_to_alone": round(between / beside, 2),
        "step_cpu_among_queued_to_alone": round(cpu_among / cpu_alone, 2),
        "last_steps_to_first": round(end / begin, 2),
        "last_steps_cpu_to_first": round(cpu_end / cpu_begin, 2),
        "last_page_to_first": round(late / early, 2),
        "memory_after_to_before": round(after / before, 2),
        **{f"{name.removesuffix('_ms')}_among_queued": round(many[name] / value, 2) for name, value in few.items()},
    }
    print(json.dumps({"benchmark": "scale", "ratios": ratios}))


if __name__ == "__main__":
    main()
