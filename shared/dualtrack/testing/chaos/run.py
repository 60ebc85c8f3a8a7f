"""Running rows: jobs in, something broken, the verdict out."""

from __future__ import annotations

import time
from typing import Final

from dualtrack.testing.chaos import judge
from dualtrack.testing.chaos.jobs import plan_jobs
from dualtrack.testing.chaos.report import Result
from dualtrack.testing.chaos.rig import Rig
from dualtrack.testing.chaos.rows import NotReached, Row
from dualtrack.testing.servers.process import ServerFailed

STUCK_S: Final = 120.0
"""A job that has not ended by then is stuck."""
JOBS: Final = 6
_STEPS: Final = (5, 8)
_FEW_STEPS: Final = (4, 4)


def run_row(rig: Rig, row: Row, *, seed: int, jobs: int = JOBS) -> Result:
    """Run one row and judge it. The rig is whole afterwards, unless the result says otherwise."""
    began = time.monotonic()
    plans = plan_jobs(seed, jobs, _FEW_STEPS if row.slow else _STEPS, witness_url=rig.external_url, prefix=row.name)
    clients = rig.clients(plans, deadline_s=STUCK_S, at_once=jobs)
    broken: list[str] = []
    since = time.time()
    try:
        row.before(rig)
        clients.start()
        since = row.inject(rig, clients)
    except (NotReached, ServerFailed) as error:
        broken.append(f"not proved: {error}")
    records = clients.finish()
    verdict = judge.judge(records, rig.effects())
    recovery = judge.recovery(records, since)
    try:
        row.after(rig)
    except ServerFailed as error:
        broken.append(f"the stack did not come back: {error}")
    return Result(row.name, row.what, verdict, recovery, row.within_s, time.monotonic() - began, broken)
