"""The proof that a store works: what is written comes back."""

from __future__ import annotations

import secrets

from dualtrack.domain.errors import StorageUnavailable
from dualtrack.objects.port import ObjectStore


def round_trip(store: ObjectStore, name: str) -> None:
    """Write, read and delete a small object; `name` is what a person calls the store. Raises `StorageUnavailable`."""
    key = f"checks/{secrets.token_hex(8)}"
    store.put(key, b"check")
    try:
        if store.get(key) != b"check":
            raise StorageUnavailable(f"{name} does not give back what was written.")
    finally:
        store.delete(key)
