"""The rows of the fault matrix: what is broken, how, and how long recovery may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from dualtrack.domain.limits import PlatformLimits
from dualtrack.faults import Action, Fault, Rule
from dualtrack.testing.chaos.clients import Clients
from dualtrack.testing.chaos.rig import NAMES, Rig, wait_for, wrong_clock

KILLED_S: Final = 2.0
"""Recovery after a kill that the broker or the database tells of at once."""
LEASE_S: Final = PlatformLimits().lease_s
"""Recovery where nobody tells: a lease, as the platform's defaults have it."""
_TICK_S: Final = 1.0
_REACHED_S: Final = 60.0
_DYING_S: Final = 0.5
_PER_JOB: Final = 4
"""Events of each job that are seen before the world breaks."""


class NotReached(RuntimeError):
    """The fault did not happen, so the row proves nothing."""


Inject = Callable[[Rig, Clients], float]
"""Break something while the clients work, and mend it; the moment (Unix time) from which recovery counts."""


@dataclass(frozen=True, slots=True)
class Row:
    """One fault."""

    name: str
    what: str
    inject: Inject
    within_s: float
    """What recovery may take."""
    before: Callable[[Rig], None] = lambda rig: None
    """Done before the clients start."""
    after: Callable[[Rig], None] = lambda rig: None
    """Done when all jobs have ended, to leave the rig whole."""
    check: Callable[[Rig], list[str]] = lambda rig: []
    """What is wrong besides what the judge sees, a sentence each; asked when all jobs have ended."""
    short: bool = False
    """Part of the shortened matrix."""
    slow: bool = False
    """Its jobs take long by their nature (rings come from the scheduler only): they get fewer steps."""


def _under_way(clients: Clients) -> None:
    """Wait until the jobs are in the middle of it."""
    if not wait_for(lambda: clients.progress() >= _PER_JOB * len(clients.records), _REACHED_S):
        raise NotReached("the jobs did not get under way")


def _kill(name: str, fault: Fault, *, skip: int, within_s: float = KILLED_S, short: bool = False, times: str = "") -> Row:
    """`SIGKILL` of a process at a point; another one is started in its place."""
    fired: list[int] = [0]

    def before(rig: Rig) -> None:
        fired[0] = len(rig.stack.fired(name))
        rig.arm((name,), Rule(fault, Action.KILL, skip=skip))

    def inject(rig: Rig, clients: Clients) -> float:
        process = rig.stack.process(name)
        wait_for(lambda: not process.running() or clients.done(), _REACHED_S)
        shots = rig.stack.fired(name)[fired[0] :]
        if process.running() or not shots:
            raise NotReached(f"{name} did not pass {fault} {skip + 1} times")
        rig.replace(name)
        return float(shots[0]["at"])

    def after(rig: Rig) -> None:
        rig.arm((name,))
        rig.wait_ready()

    what = f"{name.partition('-')[0]}: kill -9 at {fault.value}{times}"
    return Row(f"kill {name} {fault.value}{times}".replace(" ", "-"), what, inject, within_s, before=before, after=after, short=short)


def _outage(name: str, what: str, begin: Callable[[Rig], None], end: Callable[[Rig], None], seconds: float, *, short: bool = False) -> Row:
    """Something breaks for some seconds, and is back."""

    def inject(rig: Rig, clients: Clients) -> float:
        _under_way(clients)
        begin(rig)
        time.sleep(seconds)  # the outage itself
        end(rig)
        return time.time()

    return Row(name, what, inject, LEASE_S, after=Rig.wait_ready, short=short)


def _frozen(name: str) -> Row:
    """A worker that stands still for longer than its lease, then goes on as if nothing had happened."""

    def inject(rig: Rig, clients: Clients) -> float:
        _under_way(clients)
        began = time.time()
        with rig.frozen(name):
            wait_for(clients.done, LEASE_S + 4)
        return began

    what = f"{name}: SIGSTOP past its lease, then SIGCONT"
    return Row(f"freeze-{name}", what, inject, LEASE_S + _TICK_S, after=Rig.wait_ready)


def _rings(name: str, what: str, action: Action, *, slow: bool, short: bool = False) -> Row:
    """Something happens to every ring of whoever finishes work; the scheduler's own rings arrive as they are, unless doubled."""
    senders = NAMES if action is Action.TWICE else tuple(each for each in NAMES if not each.startswith("scheduler"))
    fired: list[int] = [0]

    def count(rig: Rig) -> int:
        return sum(len(rig.stack.fired(each)) for each in senders)

    def before(rig: Rig) -> None:
        fired[0] = count(rig)
        rig.arm(senders, Rule(Fault.PUBLISH, action, times=None))

    def inject(rig: Rig, clients: Clients) -> float:
        _under_way(clients)
        at = time.time()
        wait_for(clients.done, 300)
        if count(rig) - fired[0] < len(clients.records):
            raise NotReached("hardly any ring was touched")
        return at

    return Row(name, what, inject, LEASE_S, before=before, after=lambda rig: rig.arm(senders), short=short, slow=slow)


def _clock(name: str) -> Row:
    """A process whose clock is wrong, from its start to the end of all jobs."""

    def before(rig: Rig) -> None:
        rig.replace(name, **wrong_clock())
        rig.wait_ready()

    def inject(rig: Rig, clients: Clients) -> float:
        _under_way(clients)
        return time.time()

    def after(rig: Rig) -> None:
        rig.replace(name)
        rig.wait_ready()

    return Row(f"clock-{name}", f"{name}: its clock 10 minutes fast", inject, LEASE_S, before=before, after=after)


def _slow(proxy: str, seconds: float) -> Callable[[Rig], None]:
    def change(rig: Rig) -> None:
        getattr(rig, proxy).delay_s = seconds

    return change


def _full(*, on: bool) -> Callable[[Rig], None]:
    def change(rig: Rig) -> None:
        rig.s3_proxy.refuse_writes = on

    return change


def _nothing(rig: Rig, clients: Clients) -> float:
    _under_way(clients)
    return time.time()


def _cut(rig: Rig) -> None:
    if not rig.cut_broker():
        raise NotReached("the broker had no connection to cut")


PLANNER: Final = (
    (Fault.PLANNER_CLAIM, True),
    (Fault.PLANNER_CLAIMED, True),
    (Fault.PLANNER_DECIDED, False),
    (Fault.PLANNER_RECORD, False),
    (Fault.PLANNER_RECORDED, True),
    (Fault.PUBLISH, False),
    (Fault.PUBLISHED, False),
    (Fault.ACKNOWLEDGE, True),
    (Fault.ACKNOWLEDGED, False),
)
EXECUTOR: Final = (
    (Fault.EXECUTOR_CLAIM, False),
    (Fault.EXECUTOR_CLAIMED, False),
    (Fault.EXECUTOR_EFFECT, False),
    (Fault.EXECUTOR_EFFECTED, True),
    (Fault.EXTERNAL_INTEND, False),
    (Fault.EXTERNAL_SEND, True),
    (Fault.EXTERNAL_SENT, True),
    (Fault.UPLOAD, False),
    (Fault.UPLOADED, False),
    (Fault.EXECUTOR_SNAPSHOT, True),
    (Fault.EXECUTOR_OBSERVATION, False),
    (Fault.EXECUTOR_RECORD, False),
    (Fault.EXECUTOR_RECORDED, True),
    (Fault.PUBLISH, False),
    (Fault.PUBLISHED, False),
    (Fault.ACKNOWLEDGE, False),
    (Fault.ACKNOWLEDGED, False),
)
_SKIPPED: Final = {
    fault: 0 for fault in Fault if fault.startswith(("external.", "approval.", "delivery.")) or fault is Fault.EXECUTOR_OBSERVATION
}
"""Passages let through first, where there are few of them."""
ROUTER: Final = (
    (Fault.ROUTER_ACCEPT, False),
    (Fault.ROUTER_ACCEPTED, True),
    (Fault.PUBLISH, False),
    (Fault.PUBLISHED, False),
    (Fault.ROUTER_RUNG, False),
    (Fault.APPROVAL_DECIDE, False),
    (Fault.APPROVAL_DECIDED, True),
)
SCHEDULE: Final = (Fault.SCHEDULE_TICK, Fault.SCHEDULE_TICKED)
DELIVERY: Final = (Fault.DELIVERY_CLAIMED, Fault.DELIVERY_SENT)
SCHEDULER: Final = (Fault.SCHEDULER_PUSH_BACK, Fault.SCHEDULER_PUSHED_BACK, Fault.SCHEDULER_RUNG)


def _kill_schedule(fault: Fault) -> Row:
    """Either scheduler is killed as it submits a schedule's job: there must be exactly one job for that time."""
    schedulers = ("scheduler", "scheduler-2")
    fired: list[int] = [0]
    made = [""]

    def shots(rig: Rig) -> list[dict[str, Any]]:
        return [shot for name in schedulers for shot in rig.stack.fired(name)]

    def before(rig: Rig) -> None:
        fired[0] = len(shots(rig))
        rig.arm(schedulers, Rule(fault, Action.KILL))

    def inject(rig: Rig, clients: Clients) -> float:
        made[0] = rig.schedule()
        if not wait_for(lambda: len(shots(rig)) > fired[0], _REACHED_S):
            raise NotReached(f"no scheduler passed {fault}")
        rig.arm(schedulers)
        for name in schedulers:
            wait_for(lambda name=name: not rig.stack.process(name).running(), _DYING_S)  # type: ignore[misc] # bound at once
            if not rig.stack.process(name).running():
                rig.replace(name)
        return float(max(shot["at"] for shot in shots(rig)))

    def check(rig: Rig) -> list[str]:
        wait_for(lambda: rig.scheduled(made[0]), _REACHED_S)
        jobs = rig.scheduled(made[0])
        return [] if len(jobs) == 1 else [f"{len(jobs)} jobs for one time of the schedule {made[0]}"]

    def after(rig: Rig) -> None:
        rig.arm(schedulers)
        rig.wait_ready()

    what = f"scheduler: kill -9 at {fault}"
    return Row(f"kill-scheduler-{fault}", what, inject, LEASE_S, before=before, after=after, check=check)


def matrix() -> list[Row]:
    """All rows, in order."""
    return [
        Row("none", "nothing (what the same jobs do undisturbed)", _nothing, LEASE_S, short=True),
        *(_kill("planner", fault, skip=3, short=short) for fault, short in PLANNER),
        *(_kill("executor", fault, skip=_SKIPPED.get(fault, 3), short=short) for fault, short in EXECUTOR),
        *(_kill("router", fault, skip=_SKIPPED.get(fault, 1), within_s=LEASE_S, short=short) for fault, short in ROUTER),
        *(_kill("scheduler", fault, skip=0, within_s=LEASE_S) for fault in DELIVERY),
        *(_kill_schedule(fault) for fault in SCHEDULE),
        *(_kill_scheduler(fault, short=fault is Fault.SCHEDULER_PUSHED_BACK) for fault in SCHEDULER),
        _outage("rabbitmq-stopped", "RabbitMQ: stopped for 5 s", lambda rig: rig.rabbitmq.stop(), lambda rig: rig.rabbitmq.start(), 5),
        _outage("rabbitmq-restarted", "RabbitMQ: restarted", lambda rig: rig.rabbitmq.restart(), lambda rig: None, 0, short=True),
        _outage(
            "rabbitmq-killed", "RabbitMQ: kill -9, started again", lambda rig: rig.rabbitmq.kill(), lambda rig: rig.rabbitmq.start(), 0
        ),
        _outage("rabbitmq-cut", "RabbitMQ: every connection cut", _cut, lambda rig: None, 0, short=True),
        _outage(
            "rabbitmq-disk-alarm",
            "RabbitMQ: disk alarm for 10 s",
            lambda rig: rig.disk_alarm(on=True),
            lambda rig: rig.disk_alarm(on=False),
            10,
        ),
        _outage("postgresql-restarted", "PostgreSQL: restarted", lambda rig: rig.postgres.restart(), lambda rig: None, 0, short=True),
        _outage(
            "postgresql-killed", "PostgreSQL: kill -9, started again", lambda rig: rig.postgres.kill(), lambda rig: rig.postgres.start(), 0
        ),
        _outage(
            "postgresql-refused",
            "PostgreSQL: refuses connections for 8 s",
            lambda rig: rig.database_proxy.refuse(),
            lambda rig: rig.database_proxy.allow(),
            8,
        ),
        _outage(
            "postgresql-slow", "PostgreSQL: 0.3 s slower each way for 10 s", _slow("database_proxy", 0.3), _slow("database_proxy", 0), 10
        ),
        _outage(
            "s3-away", "S3: refuses connections for 8 s", lambda rig: rig.s3_proxy.refuse(), lambda rig: rig.s3_proxy.allow(), 8, short=True
        ),
        _outage("s3-slow", "S3: 1 s slower each way for 10 s", _slow("s3_proxy", 1.0), _slow("s3_proxy", 0), 10),
        _outage("s3-full", "S3: refuses writes (507) for 8 s", _full(on=True), _full(on=False), 8),
        _frozen("planner"),
        _frozen("executor"),
        _rings("rings-twice", "every message delivered twice", Action.TWICE, slow=False, short=True),
        _rings("rings-lost", "every message lost once (the scheduler rings again)", Action.LOSE, slow=True),
        _clock("planner"),
        _clock("executor"),
        _clock("scheduler"),
    ]


def _kill_scheduler(fault: Fault, *, short: bool) -> Row:
    """A scheduler only has something to do when rings get lost, so the planners' are, while it is killed."""
    row = _kill("scheduler", fault, skip=0, within_s=LEASE_S, short=short)
    losers = ("planner", "planner-2")

    def inject(rig: Rig, clients: Clients) -> float:
        try:
            return row.inject(rig, clients)
        finally:
            rig.arm(losers)

    def before(rig: Rig) -> None:
        row.before(rig)
        rig.arm(losers, Rule(Fault.PUBLISH, Action.LOSE, times=None))

    return Row(row.name, row.what, inject, row.within_s, before=before, after=row.after, short=short)
