"""Work that may be what kills its workers is done by a process of its own.

A process that dies takes all that it was at with it, and nobody can tell which of it was the cause: each of those rows was tried and
not recorded. Tried `SUSPECT_TRIES` times without a record, a row is suspect, and claimed only by a process that does nothing else. So the
one that kills dies alone, and ends its job after `limits.attempts`; its innocent neighbours are recorded by processes of theirs.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import subprocess
import sys
import threading
from typing import Final

from dualtrack.db import claims
from dualtrack.db.engine import Database
from dualtrack.health import FILE_VARIABLE

_LOG: Final = logging.getLogger(__name__)
OPTION: Final = "--only"


class Quarantine:
    """Starts processes for suspect rows."""

    def __init__(self, database: Database, module: str) -> None:
        """`module`: a service's entry point, which takes `--only ROW_ID`."""
        self._database = database
        self._module = module
        self._taken: set[str] = set()
        self._lock = threading.Lock()

    def take(self, kind: claims.Kind, row_id: str) -> None:
        """See to a row that could not be claimed: where it is suspect and due, have it worked on, and wait until that is over.

        Raises:
            NotFound: there is no such row.
            DatabaseUnavailable: nothing was done.
        """
        with self._database.transaction() as tx:
            if not claims.suspect(tx, kind, row_id):
                return
        with self._lock:
            if row_id in self._taken:  # rung twice
                return
            self._taken.add(row_id)
        try:
            self._work_on(row_id)
        finally:
            with self._lock:
                self._taken.discard(row_id)

    def _work_on(self, row_id: str) -> None:
        _LOG.warning("tried before and never recorded: run by a process of its own", extra={"row_id": row_id})
        environment = {name: value for name, value in os.environ.items() if name != FILE_VARIABLE}  # that file is this process's own
        command = [sys.executable, "-m", self._module, OPTION, row_id]
        # Signals for this process's group are not for that one; it ends with this one, because then its input does.
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True) as process:
            status = process.wait()
        if status:
            _LOG.error("the process of its own ended with status %d", status, extra={"row_id": row_id})


def only_row() -> str | None:
    """The row that this process was started for, from its arguments; None: all. Such a process ends when the one that started it does."""
    parser = argparse.ArgumentParser(description="A worker; takes its settings from the environment, see docs/settings.md.")
    parser.add_argument(OPTION, metavar="ROW_ID", help="work on this row only, then end; for workers themselves")
    row_id: str | None = parser.parse_args().only
    if row_id is not None:
        threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    return row_id


def _end_with_parent() -> None:
    with contextlib.suppress(OSError):
        while os.read(sys.stdin.fileno(), 1024):
            pass
    os._exit(1)
