"""A real scheduler killed around what it does for webhooks and schedules; the next one makes it good. No broker is needed for either."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import func, select, text, update

from dualtrack.db import deliveries, jobs, migrate, schedules, tenants, webhooks
from dualtrack.db.engine import Database
from dualtrack.db.hook_tables import deliveries as deliveries_table
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.ids import new_id
from dualtrack.domain.job import JobSpec
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.schedule import RunOutcome
from dualtrack.domain.webhook import DeliveryStatus, NoticeType
from dualtrack.engine.ending import end_job
from dualtrack.faults import Fault
from dualtrack.settings import DatabaseSettings
from dualtrack.testing.receiver import Receiver
from dualtrack.webhooks.signature import new_secret

_DEADLINE_S = 120.0


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as found:
        yield found


class Schedulers:
    """Starts schedulers over one database."""

    def __init__(self, url: str, folder: Path, receiver: Receiver) -> None:
        self.folder = folder
        self.database = Database(DatabaseSettings(url=SecretStr(url)))
        migrate.upgrade(self.database)
        with self.database.transaction() as tx:
            self.tenant = tenants.ensure_tenant(tx)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DUALTRACK_")},
            "DUALTRACK_DATABASE__URL": url,
            "DUALTRACK_BROKER__URL": "amqp://guest:guest@127.0.0.1:1//",
            "DUALTRACK_OBJECTS__PATH": str(folder / "objects"),
            "DUALTRACK_WORKERS__SCHEDULER_TICK_S": "0.1",
            "DUALTRACK_NET__ALLOW": f'["127.0.0.1:{receiver.port}"]',
        }

    @contextmanager
    def running(self, *, kill_at: Fault | None = None) -> Iterator[subprocess.Popen[bytes]]:
        faults = {}
        if kill_at is not None:
            rules = self.folder / "faults"
            rules.write_text(f"{kill_at},kill\n")
            faults = {"DUALTRACK_FAULTS": str(rules)}
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "scheduler.main"], env=self._environment | faults, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def let_one_die_at(self, fault: Fault) -> None:
        """A scheduler comes to that point and no further."""
        with self.running(kill_at=fault) as process:
            assert process.wait(_DEADLINE_S) == -signal.SIGKILL, (self.folder / "log").read_text()

    def run_until(self, done: Callable[[], bool]) -> None:
        """One without faults runs until then, and ends in good order."""
        with self.running() as process:
            deadline = time.monotonic() + _DEADLINE_S
            while not done():
                assert process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.05)
            process.terminate()
            assert process.wait(_DEADLINE_S) == 0


@pytest.fixture
def schedulers(database_url: str, tmp_path: Path, receiver: Receiver) -> Iterator[Schedulers]:
    found = Schedulers(database_url, tmp_path, receiver)
    yield found
    found.database.close()


@pytest.mark.parametrize(("fault", "received"), [(Fault.DELIVERY_CLAIMED, 0), (Fault.DELIVERY_SENT, 1)])
def test_a_delivery_outlives_the_scheduler_that_sent_it(schedulers: Schedulers, receiver: Receiver, fault: Fault, received: int) -> None:
    webhook_id, job_id = new_id("wh"), new_id("job")
    with schedulers.database.transaction() as tx:
        tenant, kinds = schedulers.tenant, [NoticeType.JOB_CANCELLED]
        webhooks.add(tx, webhook_id=webhook_id, tenant_id=tenant, url=receiver.url, events=kinds, secret=new_secret())
        jobs.create(
            tx,
            job_id=job_id,
            tenant_id=tenant,
            spec=JobSpec(instructions="x"),
            workspace=None,
            key_id=None,
            traceparent="",
            request_traceparent="",
            ring_s=5,
        )
        end_job(tx, job_id, JobStatus.CANCELLED)

    def delivery_status() -> DeliveryStatus:
        with schedulers.database.transaction() as tx:
            (delivery,) = deliveries.page(tx, webhook_id, limit=2)
        return delivery.status

    schedulers.let_one_die_at(fault)
    assert len(receiver.requests) == received
    assert delivery_status() is DeliveryStatus.PENDING
    with schedulers.database.transaction() as tx:  # its lease runs out
        past = func.now() - text("interval '1 second'")
        tx.connection.execute(update(deliveries_table).values(lease_until=past, due_at=past))
    schedulers.run_until(lambda: delivery_status() is DeliveryStatus.DELIVERED)
    assert len(receiver.requests) == received + 1
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 1


@pytest.mark.parametrize("fault", [Fault.SCHEDULE_TICK, Fault.SCHEDULE_TICKED])
def test_a_time_gives_one_job_whenever_its_scheduler_dies(schedulers: Schedulers, fault: Fault) -> None:
    first, later = new_id("sched"), new_id("sched")
    spec = JobSpec(instructions="x").model_dump(mode="json")

    def add(schedule_id: str) -> None:
        values = {"cron": "0 0 1 1 *", "timezone": "UTC", "overlap": "skip", "catch_up": "latest", "spec": spec}
        with schedulers.database.transaction() as tx:
            schedules.add(tx, {"id": schedule_id, "tenant_id": schedulers.tenant, "next_at": func.now(), **values})

    def runs(schedule_id: str) -> list[RunOutcome]:
        with schedulers.database.transaction() as tx:
            return [run.outcome for run in schedules.runs(tx, schedule_id, limit=10)]

    add(first)
    schedulers.let_one_die_at(fault)
    assert len(runs(first)) == (fault is Fault.SCHEDULE_TICKED)
    add(later)
    schedulers.run_until(lambda: bool(runs(first) and runs(later)))
    assert (runs(first), runs(later)) == ([RunOutcome.STARTED], [RunOutcome.STARTED])
    with schedulers.database.transaction() as tx:
        assert tx.connection.execute(select(func.count()).select_from(jobs_table)).scalar_one() == 2
