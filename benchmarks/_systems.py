"""The systems that a benchmark runs side by side, each in processes of its own: us, and the peers of `benchmarks.peers`."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psutil  # type: ignore[import-untyped]
from pydantic import SecretStr
from sqlalchemy import text

from benchmarks._bare import Bare
from benchmarks.peers._protocol import summary
from dualtrack.db import migrate, tenants
from dualtrack.db.engine import Database
from dualtrack.domain.job import JobSpec
from dualtrack.engine import intake
from dualtrack.engine.runtime import Runtime
from dualtrack.objects.folder import FolderStore
from dualtrack.queues.publisher import Publisher
from dualtrack.settings import BrokerSettings, DatabaseSettings, Settings
from dualtrack.testing.servers.process import ServerProcess
from dualtrack.tools.registry import Registry

PEERS_PYTHON = Path(".venv-bench/bin/python")
_TIMEOUT_S = 300
_POLL_S = 0.02
_CLIENTS = 4
"""Submit jobs at the same time."""
_DECISIONS = text("""
    SELECT job_id, extract(epoch FROM at)::float AS at FROM events WHERE type = 'step.decided' AND job_id = ANY(:jobs) ORDER BY job_id, seq
""")
_LEFT = text("SELECT count(*) FROM jobs WHERE id = ANY(:jobs) AND finished_at IS NULL")


class System(Protocol):
    """Runs jobs and says how it went."""

    def run(self, jobs: int, steps: int) -> dict[str, float]:
        """`jobs` at once, each of `steps` steps: `p50_ms`, `p95_ms`, `steps_per_s`."""

    def pids(self) -> list[int]:
        """Its own processes, without database and broker."""


class Platform:
    """One planner and one executor process, as in production but for model and sandbox, which answer at once."""

    def __init__(self, database_url: str, broker_url: str, folder: Path) -> None:
        self.database = Database(DatabaseSettings(url=SecretStr(database_url)))
        migrate.upgrade(self.database)
        with self.database.transaction() as tx:
            self.tenant = tenants.ensure_tenant(tx)
        self.publisher = Publisher(BrokerSettings(url=SecretStr(broker_url)))
        objects = folder / "objects"
        self.runtime = Runtime(self.database, self.publisher, FolderStore(objects), Registry(), Settings().limits)
        self.environment = {
            "PATH": os.environ.get("PATH", ""),
            "DUALTRACK_DATABASE__URL": database_url,
            "DUALTRACK_BROKER__URL": broker_url,
            "DUALTRACK_OBJECTS__DRIVER": "folder",
            "DUALTRACK_OBJECTS__PATH": str(objects),
            "DUALTRACK_SANDBOX__WORKSPACES": str(folder / "workspaces"),
            "DUALTRACK_TELEMETRY__LOG_LEVEL": "WARNING",
            "DUALTRACK_WORKERS__EXECUTOR_THREADS": "32",
            "DUALTRACK_WORKERS__PLANNER_THREADS": "32",
        } | {name: value for name, value in os.environ.items() if name.startswith("DUALTRACK_")}
        self._workers = [
            ServerProcess(role, worker_command(role), log=folder / f"{role}.log", env=self.environment, cwd=Path.cwd())
            for role in ("planner", "executor")
        ]

    def pids(self) -> list[int]:
        """Planner and executor."""
        return [worker.pid for worker in self._workers]

    def run(self, jobs: int, steps: int) -> dict[str, float]:
        """Submit and wait; fails when a job ended otherwise than by success."""
        spec = JobSpec.model_validate({"instructions": f"{steps} steps", "limits": {"steps": steps + 1}})
        started = time.perf_counter()
        with ThreadPoolExecutor(_CLIENTS) as clients:
            ids = list(clients.map(lambda _: intake.submit(self.runtime, tenant_id=self.tenant, spec=spec)[0].id, range(jobs)))
        deadline = time.monotonic() + _TIMEOUT_S
        while left := self._left(ids):
            if time.monotonic() > deadline:
                logs = "\n".join(worker.log_tail() for worker in self._workers)
                sys.exit(f"{left} of {jobs} jobs have not ended after {_TIMEOUT_S} s; the workers' logs:\n{logs}")
            time.sleep(_POLL_S)
        took = time.perf_counter() - started
        times: dict[str, list[float]] = {job_id: [] for job_id in ids}
        with self.database.transaction() as tx:
            for row in tx.connection.execute(_DECISIONS, {"jobs": ids}):
                times[row.job_id].append(row.at)
        return summary(times.values(), jobs, steps, took)

    def _left(self, ids: Sequence[str]) -> int:
        with self.database.transaction() as tx:
            return int(tx.connection.execute(_LEFT, {"jobs": ids}).scalar_one())

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers:
            worker.stop()
        self.publisher.close()
        self.database.close()


def worker_command(role: str) -> list[str]:
    """How a benchmark's planner or executor is started."""
    return [sys.executable, "-m", "benchmarks._workers", role]


class Peer:
    """Another system, in the peers' environment, told over its standard input what to run."""

    def __init__(self, module: str, environment: Mapping[str, str], log: Path) -> None:
        command = [str(PEERS_PYTHON), "-m", f"benchmarks.peers.{module}"]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env={"PATH": os.environ.get("PATH", ""), **environment},
            )
        self._log = log
        self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"a peer ended with status {self._process.wait()}:\n{self._log.read_text()[-4000:]}")
        return line

    def pids(self) -> list[int]:
        """The process and its workers."""
        return [self._process.pid, *(child.pid for child in psutil.Process(self._process.pid).children(recursive=True))]

    def run(self, jobs: int, steps: int) -> dict[str, float]:
        """Have it run the jobs."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{jobs} {steps}\n")
        self._process.stdin.flush()
        result: dict[str, float] = json.loads(self._line())
        return result

    def close(self) -> None:
        """End of its input: it stops by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def floor(database_url: str, steps: int) -> dict[str, float]:
    """Two single-row inserts a step, each committed, in one process: what any durable step costs at least."""
    database = Database(DatabaseSettings(url=SecretStr(database_url)))
    with database.transaction() as tx:
        tx.connection.execute(text("CREATE TABLE IF NOT EXISTS floor (id bigserial PRIMARY KEY, data jsonb)"))
    took = []
    for _ in range(steps):
        started = time.perf_counter()
        for _ in range(2):
            with database.transaction() as tx:
                tx.connection.execute(text("INSERT INTO floor (data) VALUES ('{\"step\": 1}')"))
        took.append((time.perf_counter() - started) * 1000)
    database.close()
    return {"p50_ms": statistics.median(took), "p95_ms": sorted(took)[int(len(took) * 0.95)], "steps_per_s": 1000 / statistics.mean(took)}


def cpu_s(pids: Sequence[int]) -> float:
    """CPU seconds that processes have used so far, with all their descendants that live or were waited for."""
    total = 0.0
    for pid in pids:
        for process in _tree(pid):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _tree(pid: int) -> Iterator[psutil.Process]:
    try:
        process = psutil.Process(pid)
        yield process
        yield from process.children(recursive=True)
    except psutil.NoSuchProcess:
        return


@contextmanager
def opened(name: str, database_url: str, broker_url: str, folder: Path) -> Iterator[System]:
    """A system by name, warmed up by nothing yet."""
    plain = database_url.replace("postgresql+psycopg://", "postgresql://")
    system: Platform | Bare | Peer
    if name == "dualtrack":
        system = Platform(database_url, broker_url, folder)
    elif name == "bare":
        system = Bare(plain, broker_url, folder)
    else:
        system = Peer(f"{name}_steps", {"BENCH_DATABASE": plain, "BENCH_BROKER": broker_url}, folder / f"{name}.log")
    try:
        yield system
    finally:
        system.close()
