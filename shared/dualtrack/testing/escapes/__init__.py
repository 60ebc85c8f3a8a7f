"""The escape suite: every way out of a sandbox that is known to us, tried behind every rung that the machine has.

An attempt counts for something only where it is shown able to work: each is run without a sandbox too (the control).
"""

from __future__ import annotations

from typing import Final

from dualtrack.testing.escapes.abi import ABI
from dualtrack.testing.escapes.agent import AGENT
from dualtrack.testing.escapes.attempt import Attempt
from dualtrack.testing.escapes.bombs import BOMBS
from dualtrack.testing.escapes.devices import DEVICES
from dualtrack.testing.escapes.files import FILES
from dualtrack.testing.escapes.identity import IDENTITY
from dualtrack.testing.escapes.kernel import KERNEL
from dualtrack.testing.escapes.leftovers import LEFTOVERS
from dualtrack.testing.escapes.network import NETWORK
from dualtrack.testing.escapes.processes import PROCESSES
from dualtrack.testing.escapes.results import RESULTS

ATTEMPTS: Final[tuple[Attempt, ...]] = (
    *FILES,
    *PROCESSES,
    *KERNEL,
    *ABI,
    *NETWORK,
    *IDENTITY,
    *DEVICES,
    *BOMBS,
    *RESULTS,
    *LEFTOVERS,
    *AGENT,
)
