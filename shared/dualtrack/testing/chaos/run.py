"""Running rows: jobs in, something broken, the verdict out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from dualtrack.testing.chaos import judge
from dualtrack.testing.chaos.jobs import plan_jobs
from dualtrack.testing.chaos.report import Result
from dualtrack.testing.chaos.rig import Rig, wait_for
from dualtrack.testing.chaos.row import NotReached, Row
from dualtrack.testing.chaos.strikes import plan_strikes
from dualtrack.testing.chaos.striking import strike
from dualtrack.testing.servers.process import ServerFailed
from dualtrack.testing.witness import hook

_WEBHOOK_S: Final = 60.0
STUCK_S: Final = 120.0
"""A job that has not ended by then is stuck."""
JOBS: Final = 6
_AT_ONCE: Final = 4
_THINKING_S: Final = 0.8
_SECONDS_A_JOB: Final = 5.0
_STRIKES: Final = 400
WAITED_OUT_S: Final = 120.0
"""Longest silence of a job under a series of faults: the pause after failures may have grown to a minute, and be broken off once more."""
_STEPS: Final = (5, 8)
_FEW_STEPS: Final = (4, 4)


def run_row(rig: Rig, row: Row, *, seed: int, jobs: int = JOBS, slack: float = 1.0) -> Result:
    """Run one row and judge it. The rig is whole afterwards, unless the result says otherwise.

    `slack`: recovery may take so many times what the row says.
    """
    began = time.monotonic()
    plans = plan_jobs(seed, jobs, _FEW_STEPS if row.slow else _STEPS, witness_url=rig.witness_url, prefix=row.name)
    clients = rig.clients(plans, deadline_s=STUCK_S, at_once=jobs)
    broken: list[str] = []
    since = time.time()
    try:
        row.before(rig)
        clients.start()
        since = row.inject(rig, clients)
    except (NotReached, ServerFailed) as error:
        broken.append(f"not proved: {_first_line(error)}")
    records = clients.finish()
    _await_webhooks(rig, records)
    verdict = judge.judge(records, rig.effects())
    recovery = judge.recovery(records, since)
    try:
        row.after(rig)
    except ServerFailed as error:
        broken.append(f"the stack did not come back: {_first_line(error)}")
    broken += [*row.check(rig), *rig.doctor(objects=False)]
    return Result(row.name, row.what, verdict, recovery, row.within_s * slack, time.monotonic() - began, broken)


def _await_webhooks(rig: Rig, records: list[judge.Record]) -> None:
    """Webhooks come after the end, and one that was cut off after its attempt's lease."""
    wanted = {hook(record.plan.token) for record in records if record.status == "succeeded" and record.plan.webhook is not None}
    wait_for(lambda: wanted <= {effect.name for effect in rig.effects()}, _WEBHOOK_S)


def run_random(rig: Rig, *, seed: int, jobs: int, steps: tuple[int, int], say: Callable[[str], None]) -> Result:
    """Jobs under the seed's faults, one after the other until all jobs have ended; then the doctor, on rows and objects."""
    began = time.monotonic()
    plans = plan_jobs(seed, jobs, steps, witness_url=rig.witness_url, prefix="random", most_delay_s=_THINKING_S)
    clients = rig.clients(plans, deadline_s=STUCK_S + jobs * _SECONDS_A_JOB, at_once=max(_AT_ONCE, jobs // 6))
    broken: list[str] = []
    clients.start()
    struck, since = 0, time.time()  # silences count from the first fault, not from the last
    for what in plan_strikes(seed, _STRIKES):
        if clients.done():
            break
        try:
            strike(rig, what, clients.done)
        except ServerFailed as error:
            broken.append(f"not proved: {what}: {_first_line(error)}")
        rig.revive()
        struck += 1
        say(f"{time.monotonic() - began:6.0f} s  {clients.ended():4} of {jobs} jobs ended  {what}")
    records = clients.finish()
    try:
        rig.wait_ready()
    except ServerFailed as error:
        broken.append(f"the stack did not come back: {_first_line(error)}")
    _await_webhooks(rig, records)
    verdict = judge.judge(records, rig.effects())
    broken += rig.doctor(objects=True)
    about = f"{struck} random faults, seed {seed}, jobs of {steps[0]} to {steps[1]} steps"
    return Result("random", about, verdict, judge.recovery(records, since), WAITED_OUT_S, time.monotonic() - began, broken)


def _first_line(error: Exception) -> str:
    """What happened, without the log that a failed server's error ends with."""
    return str(error).partition("\n")[0]
