"""Writing a result down while the database is away: a result was paid for, so it is not dropped at the first failure."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from dualtrack.domain.errors import DatabaseUnavailable
from dualtrack.engine.leases import Lease
from dualtrack.work import Work

_LOG: Final = logging.getLogger(__name__)
_PAUSE_S: Final = 0.25


def persistently(write: Callable[[], Work[None]], lease: Lease, patience_s: float) -> Work[None]:
    """Do `write`, again and again for `patience_s` seconds while the database can't be reached and the claim is not known to be lost.

    `write` is one transaction under the claim's fencing token: when a commit of unknown outcome was a success, or somebody has taken the
    work over, the next try is refused.

    Raises:
        DatabaseUnavailable: it stayed away; nothing is known to be written.
        StaleAttempt: the claim is lost, or the try before has succeeded after all.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            yield from write()
        except DatabaseUnavailable as error:
            if lease.lost or time.monotonic() >= deadline:
                raise
            _LOG.warning("result not written yet, trying again: %s", error, extra={"row_id": lease.row_id})
            time.sleep(_PAUSE_S)
        else:
            return
