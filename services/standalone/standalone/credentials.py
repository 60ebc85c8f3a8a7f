"""The first API key, made once and kept where the `dualtrack` command finds it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from dualtrack.db import tenants
from dualtrack.db.engine import Database
from dualtrack.domain.errors import InfrastructureError


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where the platform answers and with which key; `new` when the key was made just now."""

    base_url: str
    api_key: str
    new: bool


def ensure(database: Database, path: Path, base_url: str) -> Credentials:
    """The key in `path` while the database knows it, else a new one; the file (mode 0600) names the current addresses."""
    kept = _read(path)
    with database.transaction() as tx:
        known = kept is not None and tenants.caller(tx, kept) is not None
        key = kept if known and kept is not None else tenants.create_key(tx, tenants.ensure_tenant(tx), "standalone")
    temporary = path.with_suffix(".new")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        url = database.engine.url.render_as_string(hide_password=False)
        json.dump({"base_url": base_url, "api_key": key, "database_url": url}, file)
    temporary.replace(path)
    return Credentials(base_url, key, new=not known)


def read(path: Path) -> Credentials:
    """The credentials that a running platform wrote. Raises `InfrastructureError` where there are none."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return Credentials(str(kept["base_url"]), str(kept["api_key"]), new=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InfrastructureError(
            f"{path} can't be read; the platform that runs here is still starting, or the file was removed."
        ) from error


def _read(path: Path) -> str | None:
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["api_key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
