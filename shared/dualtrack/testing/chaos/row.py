"""A row of the fault matrix, and the ways to break something: what is broken, how, and how long recovery may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from dualtrack.domain.limits import PlatformLimits
from dualtrack.faults import Action, Fault, Rule
from dualtrack.testing.chaos.clients import Clients
from dualtrack.testing.chaos.rig import NAMES, WORKERS, Rig, wait_for, wrong_clock

KILLED_S: Final = 2.0
"""Recovery after a kill that the broker or the database tells of at once."""
LEASE_S: Final = PlatformLimits().lease_s
"""Recovery where nobody tells: a lease, as the platform's defaults have it."""
_THAW_S: Final = 4.0
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


def kill(name: str, fault: Fault, *, skip: int, within_s: float = KILLED_S, short: bool = False) -> Row:
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

    what = f"{name.partition('-')[0]}: kill -9 at {fault}"
    return Row(f"kill-{name}-{fault}", what, inject, within_s, before=before, after=after, short=short)


def outage(name: str, what: str, begin: Callable[[Rig], None], end: Callable[[Rig], None], seconds: float, *, short: bool = False) -> Row:
    """Something breaks for some seconds, and is back. Pauses between tries double, so recovery may take as long again besides a lease."""

    def inject(rig: Rig, clients: Clients) -> float:
        _under_way(clients)
        begin(rig)
        time.sleep(seconds)  # the outage itself
        end(rig)
        return time.time()

    return Row(name, what, inject, LEASE_S + seconds, after=Rig.wait_ready, short=short)


def frozen(name: str) -> Row:
    """A worker that stands still for longer than its lease, then goes on as if nothing had happened."""

    def inject(rig: Rig, clients: Clients) -> float:
        _under_way(clients)
        began = time.time()
        with rig.frozen(name):
            wait_for(clients.done, LEASE_S + _THAW_S)
        return began

    what = f"{name}: SIGSTOP past its lease, then SIGCONT"
    return Row(f"freeze-{name}", what, inject, LEASE_S + KILLED_S, after=Rig.wait_ready)


def frozen_at(name: str, fault: Fault) -> Row:
    """As `frozen`, but in the middle of a transaction, with a job's row locked."""
    fired: list[int] = [0]

    def before(rig: Rig) -> None:
        fired[0] = len(rig.stack.fired(name))
        rig.arm((name,), Rule(fault, Action.STOP, skip=3))

    def inject(rig: Rig, clients: Clients) -> float:
        if not wait_for(lambda: len(rig.stack.fired(name)) > fired[0] or clients.done(), _REACHED_S) or clients.done():
            raise NotReached(f"{name} did not pass {fault}")
        wait_for(clients.done, LEASE_S + _THAW_S)
        rig.thaw(name)
        return float(rig.stack.fired(name)[fired[0]]["at"])

    def after(rig: Rig) -> None:
        rig.arm((name,))
        rig.wait_ready()

    what = f"{name}: SIGSTOP at {fault} past its lease, then SIGCONT"
    return Row(f"freeze-{name}-{fault}", what, inject, LEASE_S + KILLED_S, before=before, after=after)


def rings(name: str, what: str, action: Action, *, slow: bool, short: bool = False) -> Row:
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


def clock(name: str) -> Row:
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


def slow(proxy: str, seconds: float) -> Callable[[Rig], None]:
    def change(rig: Rig) -> None:
        getattr(rig, proxy).delay_s = seconds

    return change


def silent(proxy: str, *, on: bool) -> Callable[[Rig], None]:
    def change(rig: Rig) -> None:
        getattr(rig, proxy).silent = on

    return change


def full(*, on: bool) -> Callable[[Rig], None]:
    def change(rig: Rig) -> None:
        rig.s3_proxy.refuse_writes = on

    return change


def nothing(rig: Rig, clients: Clients) -> float:
    _under_way(clients)
    return time.time()


def connections_shown(rig: Rig) -> None:
    """The broker tells of a connection some seconds after it was made, such as those after a restart in the row before."""
    if not wait_for(lambda: rig.broker_connections() >= len(WORKERS), _REACHED_S):
        raise NotReached("the broker does not show the workers' connections")


def cut(rig: Rig) -> None:
    if not rig.cut_broker():
        raise NotReached("the broker had no connection to cut")


def kill_in_schedule(fault: Fault) -> Row:
    """Whichever scheduler submits a schedule's job is killed there: there must be exactly one job for that time."""
    made = [""]

    def provoke(rig: Rig) -> None:
        made[0] = rig.schedule()

    def check(rig: Rig) -> list[str]:
        wait_for(lambda: rig.scheduled(made[0]), _REACHED_S)
        jobs = rig.scheduled(made[0])
        return [] if len(jobs) == 1 else [f"{len(jobs)} jobs for one time of the schedule {made[0]}"]

    return _kill_any_scheduler(fault, provoke, check)


def kill_in_delivery(fault: Fault) -> Row:
    """Whichever scheduler sends a webhook is killed there."""
    return _kill_any_scheduler(fault, lambda rig: None, lambda rig: [])


def _kill_any_scheduler(fault: Fault, provoke: Callable[[Rig], None], check: Callable[[Rig], list[str]]) -> Row:
    schedulers = ("scheduler", "scheduler-2")
    fired: list[int] = [0]

    def shots(rig: Rig) -> list[dict[str, Any]]:
        return [shot for name in schedulers for shot in rig.stack.fired(name)]

    def before(rig: Rig) -> None:
        fired[0] = len(shots(rig))
        rig.arm(schedulers, Rule(fault, Action.KILL))

    def inject(rig: Rig, clients: Clients) -> float:
        provoke(rig)
        if not wait_for(lambda: len(shots(rig)) > fired[0], _REACHED_S):
            raise NotReached(f"no scheduler passed {fault}")
        rig.arm(schedulers)
        for name in schedulers:
            wait_for(lambda name=name: not rig.stack.process(name).running(), _DYING_S)  # type: ignore[misc] # bound at once
            if not rig.stack.process(name).running():
                rig.replace(name)
        return float(max(shot["at"] for shot in shots(rig)))

    def after(rig: Rig) -> None:
        rig.arm(schedulers)
        rig.wait_ready()

    what = f"scheduler: kill -9 at {fault}"
    return Row(f"kill-scheduler-{fault}", what, inject, LEASE_S, before=before, after=after, check=check)


def kill_scheduler(fault: Fault, *, short: bool) -> Row:
    """A scheduler only has something to do when rings get lost, so the planners' are, while it is killed."""
    row = kill("scheduler", fault, skip=0, within_s=LEASE_S, short=short)
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
