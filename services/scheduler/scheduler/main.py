"""Entry point of the scheduler: the only clock. Several may run at once."""

from __future__ import annotations

from dualtrack import bootstrap
from dualtrack.engine.scheduler import Scheduler
from dualtrack.health import HealthFile


def main() -> None:
    """Run until SIGTERM."""
    with bootstrap.service("scheduler") as (settings, runtime):
        scheduler = Scheduler(runtime, settings.workers.scheduler_tick_s)
        probes = {"database": runtime.database.check, "broker": runtime.doorbell.check, "clock": scheduler.check}
        with HealthFile(settings.workers.health_file, probes):
            scheduler.run(bootstrap.stop_event())


if __name__ == "__main__":
    main()
