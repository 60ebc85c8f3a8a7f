"""One attempt to get out of a sandbox, as a record, and how it is known whether it worked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dualtrack.sandbox.port import Outcome
from dualtrack.testing.escapes.collect import Collected
from dualtrack.testing.escapes.host import Host


class Kind(StrEnum):
    """What an attempt is after; the sections of the table."""

    FILES = "files of the host"
    PROCESSES = "processes of the host"
    KERNEL = "kernel interfaces"
    ABI = "ways around the system call filter"
    NETWORK = "network and sockets"
    IDENTITY = "identity and privileges"
    DEVICES = "devices"
    BOMBS = "bombs and floods"
    RESULTS = "hostile results"
    LEFTOVERS = "what stays behind"
    AGENT = "the sandbox's own agent"


class Said(StrEnum):
    """What the code inside says of itself."""

    WORKED = "worked"
    REFUSED = "refused"
    BROKEN = "broken"
    """A mistake of the attempt: neither worked nor refused."""
    LOST = "lost"
    """Nothing came back: the sandbox ended with it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known after an attempt was run once."""

    attempt: str
    said: Said
    detail: str
    """For a person: the error's name, or what was reached."""
    output: str
    """All that it printed."""
    host: Host
    outcome: Outcome
    """Of the run that it was part of."""
    left: Mapping[str, str]
    """Names in the workspace after the run and what they are: `setid`, `device`, `capable`, `root's` or `ordinary`."""
    collected: Collected | None = None
    """What became of the results; for attempts that are about results."""


Proof = Callable[[Evidence], str]
"""Says what shows that an attempt worked; empty: it did not."""


def said_so(evidence: Evidence) -> str:
    """The code inside got what only success gives (a descriptor, a returned number): where the host can't see more than that."""
    return evidence.detail or "worked" if evidence.said is Said.WORKED else ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt."""

    name: str
    kind: Kind
    tries: str
    """One plain sentence."""
    source: str
    """Python, run with what `inside.py` offers: reaching its end is success, an `OSError` is a refusal."""
    proof: Proof = said_so
    alone: bool = False
    """Needs a sandbox of its own: it disturbs others in the same one, or what counts is how the run ends."""
    root: bool = False
    """Harmless and worth trying as root, outside of any sandbox, where a plain user is refused: shows that it can work at all."""
    control: bool = True
    """Whether it means anything without a sandbox."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Of the run, for one that is alone."""
