"""What a rung keeps in files on this machine: in a directory of this process's own, which others sweep once the process is dead."""

from __future__ import annotations

from pathlib import Path

from dualtrack.domain.errors import SandboxUnavailable
from dualtrack.objects.own_directory import own_directory
from dualtrack.objects.process_dir import ProcessDirectory


def rung_directory(workspaces: Path, name: str = "") -> ProcessDirectory:
    """This process's own directory below `name` in `workspaces`, or there itself; removed at this process's exit.

    Raises:
        SandboxUnavailable: it can't be made.
    """
    base = workspaces.absolute() / name
    try:
        if name:
            workspaces.mkdir(mode=0o711, parents=True, exist_ok=True)
        return own_directory(base)
    except OSError as error:
        raise SandboxUnavailable(
            f"The directory {base} can't be used: {error}. Set DUALTRACK_SANDBOX__WORKSPACES to one that this user may write to."
        ) from error
