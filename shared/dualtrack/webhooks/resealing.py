"""Bringing all stored signing secrets under the newest key, while the platform may be at work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dualtrack.db import schedules, webhooks
from dualtrack.db.engine import Database, Transaction
from dualtrack.webhooks.sealing import Sealer, SecretUnreadable

_BATCH: Final = 200
Read = Callable[[Transaction, str, int], Mapping[str, Mapping[str, str]]]
"""Rows after an id, at most so many, locked: their secrets as stored, by column."""
Write = Callable[[Transaction, str, Mapping[str, Any]], None]
_TABLES: Final[tuple[tuple[Read, Write], ...]] = ((webhooks.secrets, webhooks.change), (schedules.secrets, schedules.keep_secret))


@dataclass(slots=True)
class Resealed:
    """What came of it."""

    sealed: int = 0
    """Secrets that were encrypted anew."""
    current: int = 0
    """Secrets that were under the newest key already."""
    unreadable: list[str] = field(default_factory=list)
    """Ids of webhooks and schedules with a secret that no key opens; that one is left as it is."""


def reseal(database: Database, sealer: Sealer) -> Resealed:
    """Encrypt every webhook's and schedule's secrets with the first key, in short transactions. May be broken off and done again.

    Raises:
        DatabaseUnavailable: what was done stays.
    """
    found = Resealed()
    for read, write in _TABLES:
        after: str | None = ""
        while after is not None:
            with database.transaction() as tx:
                rows = read(tx, after, _BATCH)
                for row_id, stored in rows.items():
                    changed = _anew(sealer, found, row_id, stored)
                    if changed:
                        write(tx, row_id, changed)
            after = max(rows, default=None)
    return found


def _anew(sealer: Sealer, found: Resealed, row_id: str, stored: Mapping[str, str]) -> dict[str, str]:
    """The columns that are to change."""
    changed = {}
    for column, text in stored.items():
        if sealer.is_current(text):
            found.current += 1
            continue
        try:
            changed[column] = sealer.seal(sealer.open(text))
        except SecretUnreadable:
            found.unreadable.append(row_id)
        else:
            found.sealed += 1
    return changed
