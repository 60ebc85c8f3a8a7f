"""The host's side of the attempts: secrets to be stolen, listeners to be reached, processes to be killed, files to be changed. All of it
is a stand-in made for one run and removed after it; what happened to it is the proof of an escape, whatever the code inside says.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Self

from dualtrack.testing.escapes import remains
from dualtrack.testing.escapes.ipc import SystemVObjects
from dualtrack.testing.escapes.listeners import Listeners
from dualtrack.testing.escapes.witnesses import Witnesses

ENVIRONMENT: Final = "ESCAPE_CANARY"
"""Environment variable of this process that holds a secret while a `Host` is open."""


class Host:
    """Use as a context manager. `uid`: the user that sandboxes run as, to whom all is open that a plain user may have open.

    Attributes:
        secrets: what must never come out of a sandbox, by name.
        folder: where its files are, outside of every workspace.
        listeners, witnesses: see there.
    """

    def __init__(self, uid: int) -> None:
        self.uid = uid
        names = ("world", "user", "root", "tmp", "shared_memory", "other_session", "environment", "descriptor")
        self.secrets = {name: f"secret-{secrets.token_hex(12)}" for name in names}
        self.folder = Path()
        self.listeners = Listeners()
        self.witnesses = Witnesses(uid)
        self._stack = contextlib.ExitStack()
        self._facts: dict[str, Any] = {}
        self._markers: dict[str, str] = {}
        self.descriptors: tuple[int, ...] = ()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="dualtrack-escapes-", dir="/var/tmp"))
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.folder.chmod(0o755)
            self._make_files(stack)
            self._leave_descriptors(stack)
            os.environ[ENVIRONMENT] = self.secrets["environment"]
            stack.callback(os.environ.pop, ENVIRONMENT, None)
            self._facts |= stack.enter_context(self.listeners).addresses(self.folder)
            objects = stack.enter_context(SystemVObjects())
            self.secrets["system_v"] = objects.secret
            self._facts |= objects.facts
            stack.enter_context(self.witnesses)
            self.secrets |= {"witness_memory": self.witnesses.secret, "witness_name": self.witnesses.marker}
            self._facts["descriptor"] = self.descriptors[-1]
            self._facts["interfaces"] = [name for _, name in socket.if_nameindex() if name != "lo"]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def facts(self, *, witnesses: Iterable[str] = (), markers: Iterable[str] = ()) -> dict[str, Any]:
        """What attempts are told: paths, addresses, numbers; none of the secrets.

        Args:
            witnesses: names of attempts that get a process to work on.
            markers: names of attempts that get a number to mark what they leave.
        """
        self._markers |= {name: str(10**8 + secrets.randbelow(10**9)) for name in markers}
        return self._facts | {
            "own_pid": os.getpid(),
            "witness_niceness": self.witnesses.niceness,
            "witnesses": {name: self.witnesses.start(name) for name in witnesses},
            "markers": dict(self._markers),
        }

    def marker(self, attempt: str) -> str:
        """The number that marks what an attempt leaves."""
        return self._markers[attempt]

    def tidy(self, attempt: str) -> None:
        """Remove what an attempt has left on the host, if anything."""
        if attempt in self._markers:
            remains.remove(self._markers[attempt])

    def temporary_files(self, attempt: str) -> list[Path]:
        """Files that an attempt has left in the host's temporary directories."""
        return remains.temporary_files(self._markers[attempt])

    def marks(self) -> str:
        """What attempts have left in the file and the folder that everybody may write to: their names."""
        dropped = [path.name for path in (self.folder / "drop").iterdir()]
        return "\n".join([(self.folder / "canary").read_text(errors="replace"), *dropped])

    def _make_files(self, stack: contextlib.ExitStack) -> None:
        other = self.folder / "other-session" / "workspace"
        other.mkdir(parents=True)
        name = f"dualtrack-escape-{secrets.token_hex(6)}"
        places = {
            "world": (self.folder / "world.txt", 0o644),
            "user": (self.folder / "user.txt", 0o600),
            "root": (self.folder / "root.txt", 0o600),
            "other_session": (other / "report.txt", 0o600),
            "tmp": (Path("/tmp") / name, 0o666),
            "shared_memory": (Path("/dev/shm") / name, 0o666),
        }
        for secret, (path, mode) in places.items():
            path.write_text(self.secrets[secret])
            stack.callback(path.unlink, missing_ok=True)
            path.chmod(mode)
            if secret != "root":
                self._give(path)
        self._give(other)
        other.chmod(0o700)
        (self.folder / "canary").touch()
        (self.folder / "canary").chmod(0o666)
        (self.folder / "drop").mkdir()
        (self.folder / "drop").chmod(0o777)
        self._facts |= {"files": {secret: str(path) for secret, (path, _) in places.items()}}
        self._facts |= {"canary": str(self.folder / "canary"), "drop": str(self.folder / "drop"), "folder": str(self.folder)}

    def _give(self, path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, self.uid, self.uid)

    def _leave_descriptors(self, stack: contextlib.ExitStack) -> None:
        """As a careless launcher has them: open, and inherited by whatever it starts without closing them."""
        hidden = self.folder / "hidden"
        hidden.mkdir(mode=0o711)
        (hidden / "file").write_text(self.secrets["descriptor"])
        (hidden / "file").chmod(0o644)
        for path, flags in ((hidden, os.O_RDONLY | os.O_DIRECTORY), (hidden / "file", os.O_RDONLY)):
            descriptor = os.open(path, flags)
            os.set_inheritable(descriptor, True)
            stack.callback(os.close, descriptor)
            self.descriptors = (*self.descriptors, descriptor)
