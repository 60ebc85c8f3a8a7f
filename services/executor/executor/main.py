"""Entry point of the executor: a Celery worker on the execute queue. It refuses to start where no sandbox works."""

from __future__ import annotations

import sys
from contextlib import ExitStack

from dualtrack import bootstrap
from dualtrack.egress.gateway import EgressGateway
from dualtrack.engine.executor import open_executor
from dualtrack.engine.quarantine import only_row
from dualtrack.engine.redelivery import Redelivery
from dualtrack.health import HealthFile
from dualtrack.objects.workdirs import Workdirs
from dualtrack.queues.celery_app import create_app, run_worker
from dualtrack.queues.consuming import Consuming
from dualtrack.queues.port import Task
from dualtrack.sandbox.factory import open_sandboxes
from dualtrack.telemetry.exposition import exposed
from dualtrack.telemetry.sandboxes import METRICS


def main() -> None:
    """Run until SIGTERM; calls under way are finished first. Exit status 1: it no longer consumed; start it again."""
    only = only_row()
    with bootstrap.service("executor") as (settings, runtime):
        alone = None if only is not None else "executor.main"
        with ExitStack() as stack:
            if only is None:
                stack.enter_context(exposed(settings.telemetry, METRICS.registry))
                sandbox = settings.sandbox
            else:  # one call, for which one sandbox is started
                sandbox = settings.sandbox.model_copy(update={"pool_max": 0})
            sandboxes = stack.enter_context(open_sandboxes(sandbox, settings.limits.sandbox))
            worker = stack.enter_context(bootstrap.worker(runtime, alone=alone))
            workdirs = stack.enter_context(Workdirs(settings.sandbox))
            gateway = stack.enter_context(EgressGateway(settings.egress, settings.sandbox, settings.limits.egress))
            executor = stack.enter_context(open_executor(worker, sandboxes.pool, workdirs, gateway, settings.sandbox.template))
            if only is not None:
                executor.run(only)
                return
            app = create_app(settings.broker, Task.EXECUTE, executor.running, Redelivery(runtime, Task.EXECUTE).ring, begin=executor.begin)
            probes = {
                "database": runtime.database.check,
                "broker": Consuming(app, settings.broker, Task.EXECUTE, settings.workers.executor_threads).probe,
                "heartbeat": worker.leases.check,
                "sandbox": sandboxes.pool.check,
            }
            with HealthFile(settings.workers.health_file, probes) as health:
                status = run_worker(app, Task.EXECUTE, settings.workers.executor_threads)
            if status or health.gave_up:
                sys.exit(1)


if __name__ == "__main__":
    main()
