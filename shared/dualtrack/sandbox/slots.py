"""The host's directories of sandboxes: one for each, made before it starts and removed after its end; and moving a job's files in and out.

What is below a slot's `workspace` belongs to a command nobody has read: it is moved by the names of its top level only, from one open
directory to another, and removed without following anything (`objects.nofollow`, `objects.trees`).
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from dualtrack.domain.errors import SandboxFailed
from dualtrack.objects.process_dir import ProcessDirectory, remove_in
from dualtrack.sandbox.access import give_workspace
from dualtrack.sandbox.trees import move_entries


@dataclass(frozen=True, slots=True)
class Slot:
    """The directory of one sandbox."""

    id: str
    path: Path
    owner: int | None
    """User that everything in `workspace` belongs to; None: this process's own."""

    @property
    def workspace(self) -> Path:
        """What is `/workspace` inside."""
        return self.path / "workspace"

    def adopt(self, directory: Path) -> None:
        """Move everything from a host directory on the same file system into the workspace. The directory stays, empty.

        Costs a rename for each entry of its top level. If the directory belongs to another user than sandboxes run as, all that is in it
        is given to that user first.

        Raises:
            SandboxFailed: it can't be moved (another file system).
        """
        if self.owner is not None and directory.lstat().st_uid != self.owner:
            give_workspace(directory, self.owner)
        move_entries(directory, self.workspace)

    def keep(self, directory: Path) -> None:
        """Move everything in the workspace to an empty host directory; no process of the sandbox may be left.

        Raises:
            SandboxFailed: it can't be moved.
        """
        move_entries(self.workspace, directory)

    def remove(self) -> None:
        """Remove the directory and all in it; no process of the sandbox may be left. May be repeated.

        Raises:
            SandboxFailed: something can't be removed.
        """
        try:
            remove_in(self.path.parent, self.id)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise SandboxFailed(f"The sandbox's directory {self.path} can't be removed: {error}.") from error


class Slots:
    """Slot directories of this process: `<workspaces>/<process>/slots/<id>`. Thread-safe."""

    def __init__(self, directory: ProcessDirectory, uid: int) -> None:
        """Takes this process's directory, and the user that sandboxes run as where this process is root's. Raises OSError."""
        self._root = directory.path / "slots"
        self._root.mkdir()
        self._root.chmod(0o711)
        self._owner = uid if os.geteuid() == 0 else None

    def make(self) -> Slot:
        """A new slot with an empty workspace.

        Raises:
            SandboxFailed: it can't be made (disk full).
        """
        name = secrets.token_hex(8)
        slot = Slot(name, self._root / name, self._owner)
        try:
            slot.path.mkdir()
            slot.path.chmod(0o711)
            slot.workspace.mkdir(mode=0o700)
            if self._owner is not None:
                os.chown(slot.workspace, self._owner, self._owner, follow_symlinks=False)
        except OSError as error:
            raise SandboxFailed(f"No directory for a sandbox can be made in {self._root}: {error}.") from error
        return slot
