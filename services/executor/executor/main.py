"""Entry point of the executor: a Celery worker on the execute queue. It refuses to start where no sandbox works."""

from __future__ import annotations

import logging
import sys
from typing import Final

from dualtrack import bootstrap
from dualtrack.db import migrate
from dualtrack.domain.errors import SandboxUnavailable
from dualtrack.engine.executor import Executor
from dualtrack.health import HealthFile, consumer_probe
from dualtrack.objects.workdirs import Workdirs
from dualtrack.queues.celery_app import create_app, run_worker
from dualtrack.queues.topology import Task
from dualtrack.sandbox.factory import open_sandbox

_LOG: Final = logging.getLogger(__name__)


def main() -> None:
    """Run until SIGTERM; calls under way are finished first."""
    settings = bootstrap.load_settings()
    flush = bootstrap.telemetry(settings, "executor")
    runtime = bootstrap.open_runtime(settings, "executor")
    sandbox = open_sandbox(settings.sandbox, settings.limits.sandbox)
    try:
        sandbox.check()
    except SandboxUnavailable as error:
        _LOG.critical("%s", error)
        sys.exit(1)
    migrate.require_current(runtime.database)
    with bootstrap.worker(runtime) as worker, Workdirs(settings.sandbox) as workdirs:
        executor = Executor(worker, sandbox, workdirs)
        app = create_app(settings.broker, Task.EXECUTE, executor.run)
        probes = {"database": runtime.database.check, "broker": consumer_probe(app, settings.broker, Task.EXECUTE)}
        with HealthFile(settings.workers.health_file, probes):
            run_worker(app, settings.broker, Task.EXECUTE, settings.workers.executor_threads)
    bootstrap.close(runtime)
    flush()


if __name__ == "__main__":
    main()
