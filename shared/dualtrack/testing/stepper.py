"""The deep track in one thread, ring by ring: the test decides which rings arrive, twice, late or never."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import func, text, update

from dualtrack.db import events, jobs, steps, tenants
from dualtrack.db.engine import Database
from dualtrack.db.hook_tables import schedules as schedules_table
from dualtrack.db.presence import Presence
from dualtrack.db.tables import calls as calls_table
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.errors import BrokerUnavailable
from dualtrack.domain.events import Event
from dualtrack.domain.job import Job, JobSpec
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.network import EgressCeiling
from dualtrack.domain.policy import PolicyRule
from dualtrack.domain.step import Step
from dualtrack.domain.waiting import Held
from dualtrack.egress.gateway import EgressGateway
from dualtrack.engine import intake
from dualtrack.engine.executor import open_executor
from dualtrack.engine.hands import Hands
from dualtrack.engine.leases import Leases
from dualtrack.engine.planner import Planner
from dualtrack.engine.runtime import Runtime, WorkerRuntime
from dualtrack.engine.scheduler import Scheduler
from dualtrack.engine.timetable import Timetable
from dualtrack.models.port import ModelGateway
from dualtrack.objects.port import ObjectStore
from dualtrack.objects.workdirs import Workdirs
from dualtrack.queues.port import Ring, Task
from dualtrack.sandbox.sessions import Sessions
from dualtrack.tools.registry import Registry


class RecordingDoorbell:
    """Keeps rings until somebody takes them.

    Attributes:
        rings: (task, row id), oldest first.
        broken: while true, every ring raises `BrokerUnavailable`.
    """

    def __init__(self) -> None:
        self.rings: deque[tuple[str, str]] = deque()
        self.broken = False

    def ring(self, rings: Sequence[Ring]) -> None:
        self.check()
        self.rings.extend((ring.task.removeprefix("dualtrack."), ring.row_id) for ring in rings)

    def backlog(self, task: Task) -> int:
        self.check()
        return sum(f"dualtrack.{waiting}" == task for waiting, _ in self.rings)

    def check(self) -> None:
        if self.broken:
            raise BrokerUnavailable("The broker is away.")


class OwnHands(Hands):
    """Does all there is to do in the thread that asks, so that it is done when a tick is over."""

    def _start(self) -> None:
        self._work()


def run_schedules(runtime: Runtime) -> int:
    """Act on the schedules that are due, as a tick does; on how many."""
    return Timetable(runtime, OwnHands).look()


class _TurnedLeases(Leases):
    """Leases whose renewals can be kept out: one that is under way knows of claims that a crashed worker has just left."""

    def __init__(self, database: Database, presence: Presence, limits: PlatformLimits) -> None:
        super().__init__(database, presence, limits)
        self.turn = threading.Lock()

    def renew(self) -> None:
        with self.turn:
            super().renew()


class Stepper:
    """A planner, an executor and a scheduler over real PostgreSQL, run by hand."""

    def __init__(
        self,
        database: Database,
        store: ObjectStore,
        gateway: ModelGateway,
        sessions: Sessions,
        workdirs: Workdirs,
        limits: PlatformLimits,
        registry: Registry | None = None,
        policies: Sequence[PolicyRule] = (),
        ways_out: EgressGateway | None = None,
    ) -> None:
        self.doorbell = RecordingDoorbell()
        ceiling = EgressCeiling() if ways_out is None else ways_out.ceiling
        self.runtime = Runtime(database, self.doorbell, store, registry or Registry(), limits, policies=tuple(policies), egress=ceiling)
        self.presence = Presence(database, check_s=limits.heartbeat_s)
        self.leases = _TurnedLeases(database, self.presence, limits)
        worker = WorkerRuntime(self.runtime, self.presence, self.leases)
        self.planner = Planner(worker, gateway)
        self._open_executor = open_executor(worker, sessions, workdirs, ways_out)
        self.scheduler = Scheduler(self.runtime, tick_s=1, hands=OwnHands)
        with database.transaction() as tx:
            self.tenant_id = tenants.ensure_tenant(tx)

    @contextmanager
    def present(self) -> Iterator[Stepper]:
        """Alive for the time of the block: heartbeats beat, the presence is held."""
        self.leases.start()
        try:
            with self._open_executor as self.executor:
                yield self
        finally:
            self.leases.stop()

    def submit(self, instructions: str = "do it", *, key_id: str | None = None, **spec: Any) -> Job:
        wanted = JobSpec.model_validate({"instructions": instructions, **spec})
        return intake.submit(self.runtime, tenant_id=self.tenant_id, spec=wanted, key_id=key_id)[0]

    def ring(self) -> bool:
        """Let the oldest ring arrive; False when there is none."""
        if not self.doorbell.rings:
            return False
        task, row_id = self.doorbell.rings.popleft()
        (self.planner.advance if task == "plan" else self.executor.run)(row_id)
        return True

    def run(self, job: Job, *, most: int = 200) -> Job:
        """Let everything happen until the job has ended; time passes wherever nothing else does."""
        for _ in range(most):
            if self.job(job).finished_at is not None:
                return self.job(job)
            if not self.ring():
                self.time_passes()
                self.scheduler.tick()
        raise AssertionError(f"the job has not ended: {[event.type.value for event in self.events(job)]}")

    def rest(self, *, most: int = 200) -> None:
        """Let everything happen that has something to happen by itself, pauses included; once a tick changes nothing, it is over."""
        for _ in range(most):
            while self.ring():
                pass
            self.time_passes()
            self.scheduler.tick()
            if not self.doorbell.rings:
                return
        raise AssertionError("it never comes to rest")

    def time_passes(self) -> None:
        """All pauses are over: every waiting row is due."""
        with self.runtime.database.transaction() as tx:
            for table in (jobs_table, calls_table):
                tx.connection.execute(
                    update(table).where(table.c.due_at.is_not(None), table.c.owner.is_(None)).values(due_at=func.now(), not_before=None)
                )
            tx.connection.execute(update(calls_table).where(calls_table.c.held == Held.CHILD).values(not_before=None))
            tx.connection.execute(update(schedules_table).values(look_at=None))

    def leases_run_out(self) -> None:
        """Every lease is over, as if its owner had been frozen for long: it has not renewed any, and will not."""
        with self.leases.turn:
            with self.leases._lock:  # noqa: SLF001 - a frozen process has no method to call
                self.leases._held.clear()  # noqa: SLF001
            with self.runtime.database.transaction() as tx:
                for table in (jobs_table, calls_table):
                    tx.connection.execute(
                        update(table).where(table.c.owner.is_not(None)).values(lease_until=func.now() - text("interval '1 second'"))
                    )

    def job(self, job: Job) -> Job:
        with self.runtime.database.transaction() as tx:
            return jobs.get(tx, job.id)

    def steps(self, job: Job) -> list[Step]:
        with self.runtime.database.transaction() as tx:
            return steps.page(tx, job.id)

    def events(self, job: Job) -> list[Event]:
        with self.runtime.database.transaction() as tx:
            return events.page(tx, job.id, after=0, limit=100_000)
