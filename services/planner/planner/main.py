"""Entry point of the planner: a Celery worker on the plan queue."""

from __future__ import annotations

import contextlib
import sys

from dualtrack import bootstrap
from dualtrack.engine.planner import Planner
from dualtrack.engine.quarantine import only_row
from dualtrack.engine.redelivery import Redelivery
from dualtrack.health import HealthFile
from dualtrack.models.factory import open_models
from dualtrack.queues.celery_app import create_app, run_worker
from dualtrack.queues.consuming import Consuming
from dualtrack.queues.port import Task


def main() -> None:
    """Run until SIGTERM; decisions under way are finished first. Exit status 1: it no longer consumed; start it again."""
    only = only_row()
    with (
        bootstrap.service("planner") as (settings, runtime),
        contextlib.closing(open_models(settings.models)) as models,
        bootstrap.worker(runtime, alone=None if only is not None else "planner.main") as worker,
    ):
        models.load()
        planner = Planner(worker, models.gateway)
        if only is not None:
            planner.advance(only)
            return
        app = create_app(settings.broker, Task.PLAN, planner.advancing, Redelivery(runtime, Task.PLAN).ring, begin=planner.begin)
        probes = {
            "database": runtime.database.check,
            "broker": Consuming(app, settings.broker, Task.PLAN, settings.workers.planner_threads).probe,
            "heartbeat": worker.leases.check,
        }
        with HealthFile(settings.workers.health_file, probes) as health:
            status = run_worker(app, Task.PLAN, settings.workers.planner_threads)
        if status or health.gave_up:
            sys.exit(1)


if __name__ == "__main__":
    main()
