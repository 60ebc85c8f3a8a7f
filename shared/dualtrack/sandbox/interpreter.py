"""Which Python the sandbox gets: the system's own, else the one that runs this process, shown read-only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxUnavailable
from dualtrack.sandbox.access import may_traverse

_SYSTEM: Final = (Path("/usr/local/bin/python3"), Path("/usr/bin/python3"))


def system_python() -> Path:
    """The system's own interpreter; there is one where `interpreter_prefix` gives None."""
    return next((path for path in _SYSTEM if path.is_file()), Path(sys.executable).resolve())


def interpreter_prefix(uid: int | None) -> Path | None:
    """The installation to bind into the sandbox; None: it has a Python under /usr already.

    Args:
        uid: the user that sandboxes run as; None: the present one.

    Raises:
        SandboxUnavailable: when that user can't reach it.
    """
    if any(path.is_file() and path.resolve().is_relative_to("/usr") for path in _SYSTEM):
        return None
    prefix = Path(sys.base_prefix).resolve()
    if prefix.is_relative_to("/usr"):
        return None
    if prefix == Path("/") or (uid is not None and not may_traverse(prefix, uid)):
        raise SandboxUnavailable(
            f"The sandbox has no Python: there is no /usr/bin/python3, and user {uid} may not enter {prefix}. Install the system's "
            "python3 (such as: apt-get install python3), or run the executor as an ordinary user."
        )
    return prefix
