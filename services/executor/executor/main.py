"""Entry point of the executor: a Celery worker on the execute queue. It refuses to start where no sandbox works."""

from __future__ import annotations

from dualtrack import bootstrap
from dualtrack.engine.executor import Executor
from dualtrack.engine.redelivery import Redelivery
from dualtrack.health import HealthFile, consumer_probe
from dualtrack.objects.workdirs import Workdirs
from dualtrack.queues.celery_app import create_app, run_worker
from dualtrack.queues.port import Task
from dualtrack.sandbox.factory import open_sandbox


def main() -> None:
    """Run until SIGTERM; calls under way are finished first."""
    with bootstrap.service("executor") as (settings, runtime):
        sandbox = open_sandbox(settings.sandbox, settings.limits.sandbox)
        sandbox.check()
        with bootstrap.worker(runtime) as worker, Workdirs(settings.sandbox) as workdirs:
            app = create_app(settings.broker, Task.EXECUTE, Executor(worker, sandbox, workdirs).run, Redelivery(runtime, Task.EXECUTE).ring)
            probes = {
                "database": runtime.database.check,
                "broker": consumer_probe(app, settings.broker, Task.EXECUTE),
                "heartbeat": worker.leases.check,
            }
            with HealthFile(settings.workers.health_file, probes):
                run_worker(app, settings.broker, Task.EXECUTE, settings.workers.executor_threads)


if __name__ == "__main__":
    main()
