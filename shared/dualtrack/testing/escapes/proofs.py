"""Proofs from the outside that an attempt worked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from dualtrack.testing.escapes.attempt import Evidence, Proof, Said

_ARRIVAL_S: Final = 1.0


def leaked(*secrets: str) -> Proof:
    """One of these secrets of the host came out."""

    def proof(evidence: Evidence) -> str:
        text = evidence.output + evidence.detail
        return next((f"the secret {name!r} came out" for name in secrets if evidence.host.secrets[name] in text), "")

    return proof


def knocked(evidence: Evidence) -> str:
    """A listener of the host heard its name."""
    return _awaited(lambda: "a listener of the host was reached" if evidence.host.listeners.heard(evidence.attempt) else "", evidence)


def marked(evidence: Evidence) -> str:
    """A file of the host has its name in it, or has its name."""
    return "it wrote to a file of the host" if evidence.attempt in evidence.host.marks() else ""


def harmed_witness(evidence: Evidence) -> str:
    """The process of the host that was made for it did not stay as it was."""
    return _awaited(lambda: evidence.host.witnesses.harmed(evidence.attempt), evidence)


def left(kind: str) -> Proof:
    """The workspace holds a file of its name, of this kind, after the run."""

    def proof(evidence: Evidence) -> str:
        return f"a {kind} file is left in the workspace" if evidence.left.get(evidence.attempt) == kind else ""

    return proof


def _awaited(look: Callable[[], str], evidence: Evidence) -> str:
    """What `look` sees, waited for a little where the code inside says that it worked."""
    deadline = time.monotonic() + (_ARRIVAL_S if evidence.said is Said.WORKED else 0)
    while not (seen := look()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return seen
