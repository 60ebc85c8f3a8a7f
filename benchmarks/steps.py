"""Cost of a step: planner → executor → planner over RabbitMQ, everything durable, model and sandbox answering at once.

The floor, in the same run on the same server: one process that commits two rows a step and does nothing else.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pydantic import SecretStr
from sqlalchemy import text

from dualtrack.db import migrate, tenants
from dualtrack.db.engine import Database
from dualtrack.domain.job import JobSpec
from dualtrack.engine import intake
from dualtrack.engine.runtime import Runtime
from dualtrack.objects.folder import FolderStore
from dualtrack.queues.publisher import Publisher
from dualtrack.settings import BrokerSettings, DatabaseSettings, Settings
from dualtrack.testing.servers import Postgres, open_rabbitmq
from dualtrack.testing.servers.process import ServerProcess
from dualtrack.tools.registry import Registry

_GAPS = text("""
    SELECT extract(epoch FROM at - lag(at) OVER (PARTITION BY job_id ORDER BY seq)) * 1000 AS gap
    FROM events WHERE type = 'step.decided' AND job_id = ANY(:jobs)
""")


def floor_ms(database: Database, steps: int) -> float:
    """Median milliseconds of two single-row inserts, each committed."""
    with database.transaction() as tx:
        tx.connection.execute(text("CREATE TABLE floor (id bigserial PRIMARY KEY, data jsonb)"))
    took = []
    for _ in range(steps):
        started = time.perf_counter()
        for _ in range(2):
            with database.transaction() as tx:
                tx.connection.execute(text("INSERT INTO floor (data) VALUES ('{\"step\": 1}')"))
        took.append((time.perf_counter() - started) * 1000)
    return statistics.median(took)


def run_jobs(runtime: Runtime, tenant: str, jobs: int, steps: int) -> tuple[float, float, float]:
    """Jobs at once: step p50 and p95 in milliseconds, steps a second."""
    spec = JobSpec.model_validate({"instructions": f"{steps} steps", "limits": {"steps": steps + 1}})
    started = time.perf_counter()
    ids = [intake.submit(runtime, tenant_id=tenant, spec=spec)[0].id for _ in range(jobs)]
    deadline = time.monotonic() + 300
    while True:
        with runtime.database.transaction() as tx:
            left = tx.connection.execute(
                text("SELECT count(*) FROM jobs WHERE id = ANY(:jobs) AND finished_at IS NULL"), {"jobs": ids}
            ).scalar_one()
        if not left:
            break
        if time.monotonic() > deadline:
            sys.exit(f"{left} of {jobs} jobs have not ended after 300 s")
        time.sleep(0.05)
    total = time.perf_counter() - started
    with runtime.database.transaction() as tx:
        gaps = sorted(float(row.gap) for row in tx.connection.execute(_GAPS, {"jobs": ids}) if row.gap is not None)
    return statistics.median(gaps), gaps[int(len(gaps) * 0.95)], jobs * steps / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="steps of each job")
    parser.add_argument("--jobs", type=int, default=64, help="jobs at once in the second part")
    options = parser.parse_args()
    with (
        Postgres(durable=True) as postgres,
        open_rabbitmq() as rabbitmq,
        tempfile.TemporaryDirectory(prefix="dualtrack-bench-", dir="/var/tmp") as folder,
    ):
        url, broker = postgres.create_database(), rabbitmq.new_vhost()
        database = Database(DatabaseSettings(url=SecretStr(url)))
        migrate.upgrade(database)
        with database.transaction() as tx:
            tenant = tenants.ensure_tenant(tx)
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "DUALTRACK_DATABASE__URL": url,
            "DUALTRACK_BROKER__URL": broker,
            "DUALTRACK_OBJECTS__DRIVER": "folder",
            "DUALTRACK_OBJECTS__PATH": f"{folder}/objects",
            "DUALTRACK_SANDBOX__WORKSPACES": f"{folder}/workspaces",
            "DUALTRACK_TELEMETRY__LOG_LEVEL": "WARNING",
            "DUALTRACK_WORKERS__EXECUTOR_THREADS": "16",
        }
        publisher = Publisher(BrokerSettings(url=SecretStr(broker)))
        runtime = Runtime(database, publisher, FolderStore(Path(folder) / "objects"), Registry(), Settings().limits)
        workers = [
            ServerProcess(
                role, [sys.executable, "-m", "benchmarks.workers", role], log=Path(folder) / f"{role}.log", env=environment, cwd=Path.cwd()
            )
            for role in ("planner", "executor")
        ]
        try:
            run_jobs(runtime, tenant, 2, 5)  # warm
            floor = floor_ms(database, 200)
            one = run_jobs(runtime, tenant, 1, options.steps * 5)
            many = run_jobs(runtime, tenant, options.jobs, options.steps)
        finally:
            for worker in workers:
                worker.stop()
            publisher.close()
            database.close()
    print(f"floor: two commits in one process       p50 {floor:7.2f} ms")
    print(f"1 job:  planner → executor → planner    p50 {one[0]:7.2f} ms   p95 {one[1]:7.2f} ms   {one[2]:7.1f} steps/s")
    print(f"{options.jobs} jobs at once                         p50 {many[0]:7.2f} ms   p95 {many[1]:7.2f} ms   {many[2]:7.1f} steps/s")
    ratios = {"step_p50_1_job_to_floor": round(one[0] / floor, 2), "steps_per_s_to_floor": round(many[2] * floor / 1000, 3)}
    print(json.dumps({"benchmark": "steps", "ratios": ratios}))


if __name__ == "__main__":
    main()
