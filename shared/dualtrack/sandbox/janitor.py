"""Removes what dead executors have left, at the start and then now and again, and what this one could not remove at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Self

from dualtrack.domain.errors import DualtrackError
from dualtrack.objects.process_dir import ProcessDirectory
from dualtrack.sandbox.rung import Rung
from dualtrack.telemetry.sandboxes import METRICS

_LOG: Final = logging.getLogger(__name__)
INTERVAL_S: Final = 60.0
_JOIN_S: Final = 10.0


class Janitor:
    """A thread for the time of a `with` block. `sweep` may be called before."""

    def __init__(self, rung: Rung, directory: ProcessDirectory, tidy: Callable[[], int]) -> None:
        """Takes the rung, this process's directory, and what removes this process's own leftovers (`SessionPool.tidy`)."""
        self._rung = rung
        self._directory = directory
        self._tidy = tidy
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sandbox-janitor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            try:
                self._tidy()
                sweep(self._rung, self._directory)
            except (DualtrackError, OSError):
                _LOG.exception("the janitor of sandboxes could not remove something; it tries again")


def sweep(rung: Rung, directory: ProcessDirectory) -> list[str]:
    """Remove what dead processes have left: first what still runs or is mounted, then directories. A line for each thing removed.

    Raises:
        SandboxFailed: the rung can't look.
        OSError: a directory can't be removed.
    """
    removed = [*rung.sweep(), *(f"directory {name}" for name in directory.sweep())]
    for line in removed:
        METRICS.swept.labels(rung.name.value).inc()
        _LOG.info("left by a dead process and removed: %s", line)
    return removed
