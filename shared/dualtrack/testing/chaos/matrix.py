"""The rows of the fault matrix."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dualtrack.faults import Action, Fault
from dualtrack.testing.chaos.row import (
    LEASE_S,
    Row,
    clock,
    connections_shown,
    cut,
    frozen,
    frozen_at,
    full,
    kill,
    kill_in_delivery,
    kill_in_schedule,
    kill_scheduler,
    nothing,
    outage,
    rings,
    silent,
    slow,
)

PLANNER: Final = (  # each with whether it is in the shortened matrix
    (Fault.PLANNER_CLAIM, True),
    (Fault.PLANNER_CLAIMED, True),
    (Fault.PLANNER_DECIDED, False),
    (Fault.PLANNER_RECORD, False),
    (Fault.PLANNER_RECORDED, True),
    (Fault.PUBLISH, False),
    (Fault.PUBLISHED, False),
    (Fault.ACKNOWLEDGE, True),
    (Fault.ACKNOWLEDGED, False),
    (Fault.COMMIT, False),
    (Fault.COMMITTED, False),
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
    (Fault.COMMIT, False),
    (Fault.COMMITTED, False),
)
_SKIPPED: Final = {fault: 0 for fault in Fault if fault.startswith(("external.", "approval.")) or fault is Fault.EXECUTOR_OBSERVATION}
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


def matrix() -> list[Row]:
    """All rows, in order."""
    return [
        Row("none", "nothing (what the same jobs do undisturbed)", nothing, LEASE_S, short=True),
        *(kill("planner", fault, skip=3, short=short) for fault, short in PLANNER),
        *(kill("executor", fault, skip=_SKIPPED.get(fault, 3), short=short) for fault, short in EXECUTOR),
        *(kill("router", fault, skip=_SKIPPED.get(fault, 1), within_s=LEASE_S, short=short) for fault, short in ROUTER),
        *(kill_in_delivery(fault) for fault in DELIVERY),
        *(kill_in_schedule(fault) for fault in SCHEDULE),
        *(kill_scheduler(fault, short=fault is Fault.SCHEDULER_PUSHED_BACK) for fault in SCHEDULER),
        outage("rabbitmq-stopped", "RabbitMQ: stopped for 5 s", lambda rig: rig.rabbitmq.stop(), lambda rig: rig.rabbitmq.start(), 5),
        outage("rabbitmq-restarted", "RabbitMQ: restarted", lambda rig: rig.rabbitmq.restart(), lambda rig: None, 0, short=True),
        outage("rabbitmq-killed", "RabbitMQ: kill -9, started again", lambda rig: rig.rabbitmq.kill(), lambda rig: rig.rabbitmq.start(), 0),
        replace(outage("rabbitmq-cut", "RabbitMQ: every connection cut", cut, lambda rig: None, 0, short=True), before=connections_shown),
        outage(
            "rabbitmq-disk-alarm",
            "RabbitMQ: disk alarm for 10 s",
            lambda rig: rig.disk_alarm(on=True),
            lambda rig: rig.disk_alarm(on=False),
            10,
        ),
        outage("postgresql-restarted", "PostgreSQL: restarted", lambda rig: rig.postgres.restart(), lambda rig: None, 0, short=True),
        outage(
            "postgresql-killed", "PostgreSQL: kill -9, started again", lambda rig: rig.postgres.kill(), lambda rig: rig.postgres.start(), 0
        ),
        outage(
            "postgresql-refused",
            "PostgreSQL: refuses connections for 8 s",
            lambda rig: rig.database_proxy.refuse(),
            lambda rig: rig.database_proxy.allow(),
            8,
        ),
        outage("postgresql-slow", "PostgreSQL: 0.3 s slower each way for 10 s", slow("database_proxy", 0.3), slow("database_proxy", 0), 10),
        outage(
            "s3-away", "S3: refuses connections for 8 s", lambda rig: rig.s3_proxy.refuse(), lambda rig: rig.s3_proxy.allow(), 8, short=True
        ),
        outage("s3-slow", "S3: 1 s slower each way for 10 s", slow("s3_proxy", 1.0), slow("s3_proxy", 0), 10),
        outage("s3-silent", "S3: packets dropped for 10 s, no refusal", silent("s3_proxy", on=True), silent("s3_proxy", on=False), 10),
        outage("s3-full", "S3: refuses writes (507) for 8 s", full(on=True), full(on=False), 8),
        frozen("planner"),
        frozen("executor"),
        frozen_at("planner", Fault.PLANNER_RECORD),
        frozen_at("executor", Fault.EXECUTOR_RECORD),
        rings("rings-twice", "every message delivered twice", Action.TWICE, slow=False, short=True),
        rings("rings-lost", "every message lost once (the scheduler rings again)", Action.LOSE, slow=True),
        clock("planner"),
        clock("executor"),
        clock("scheduler"),
    ]
