"""Entry point of the scheduler: the only clock. Several may run at once."""

from __future__ import annotations

from dualtrack import bootstrap
from dualtrack.db import migrate
from dualtrack.engine.scheduler import Scheduler
from dualtrack.health import HealthFile


def main() -> None:
    """Run until SIGTERM."""
    settings = bootstrap.load_settings()
    flush = bootstrap.telemetry(settings, "scheduler")
    runtime = bootstrap.open_runtime(settings, "scheduler")
    migrate.require_current(runtime.database)
    scheduler = Scheduler(runtime, settings.workers.scheduler_tick_s)
    with HealthFile(settings.workers.health_file, {"database": runtime.database.check, "broker": runtime.doorbell.check}):
        scheduler.run(bootstrap.stop_event())
    bootstrap.close(runtime)
    flush()


if __name__ == "__main__":
    main()
