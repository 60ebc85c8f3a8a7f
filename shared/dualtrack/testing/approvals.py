"""Jobs that need a person, under the stepper: the point where they wait, what they ask, and somebody who decides."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, text, update

from dualtrack.db import approvals as rows
from dualtrack.db.engine import Database
from dualtrack.db.tables import api_keys
from dualtrack.db.tables import approvals as approvals_table
from dualtrack.db.tenants import create_key
from dualtrack.domain.approval import Approval
from dualtrack.domain.job import Job
from dualtrack.engine.approvals import Decisions
from dualtrack.testing.stepper import Stepper

ASK_SHELL = {"policies": [{"tool": "shell", "action": "ask", "message": "Shell needs a look."}]}


def settle_down(stepper: Stepper) -> None:
    """Every ring arrives, and nothing else happens."""
    while stepper.ring():
        pass


def asked(stepper: Stepper, job: Job) -> list[Approval]:
    """What the job asks and nobody has decided."""
    with stepper.runtime.database.transaction() as tx:
        return rows.pending(tx, job.id)


def decisions(stepper: Stepper) -> Decisions:
    """Somebody who decides, by a new API key called `ops`."""
    with stepper.runtime.database.transaction() as tx:
        create_key(tx, stepper.tenant_id, "ops")
        key_id = tx.connection.execute(api_keys.select().where(api_keys.c.name == "ops")).first()
    assert key_id is not None
    return Decisions(stepper.runtime, tenant_id=stepper.tenant_id, by=key_id.id)


def submit(stepper: Stepper, agent: dict[str, Any] = ASK_SHELL, **more: Any) -> Job:
    """A job at the point where all that can be done without a person is done."""
    job = stepper.submit(agent=agent, **more)
    settle_down(stepper)
    return stepper.job(job)


def event(stepper: Stepper, job: Job, kind: str) -> dict[str, Any]:
    """The data of the job's last event of a kind."""
    return [dict(event.data) for event in stepper.events(job) if event.type == kind][-1]


def lapse(database: Database) -> None:
    """The time of everything that was asked is over."""
    with database.transaction() as tx:
        tx.connection.execute(update(approvals_table).values(expires_at=func.now() - text("interval '1 second'")))
