"""Templates as sandboxes see them: a directory that was built once, shown read-only to all, named by what it was made from.

The store holds `<digest>/` (built, never changed again) and `<digest>.lock`, which processes that show it hold shared for as long as they
live, and builders exclusively: so two builders wait for each other, and nothing that is in use is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxUnavailable
from dualtrack.sandbox.rung import Mount, RungName
from dualtrack.sandbox.template_catalog import Definition, definitions
from dualtrack.settings import SandboxSettings

TARGET: Final = "/opt/dualtrack/template"
"""Where a template's directory is inside."""
PYTHON: Final = "python"
"""Below it: importable packages; their commands are in its `bin`."""
FILES: Final = "files"
"""Below it: the operator's files."""
VARIABLE: Final = "DUALTRACK_TEMPLATE"
"""Inside: the template's name."""


@dataclass(frozen=True, slots=True)
class Template:
    """What a sandbox is started with, beside what all have."""

    name: str
    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()


class Templates:
    """Templates by name. Thread-safe; what was given out stays there until the process ends."""

    def __init__(self, settings: SandboxSettings, interpreter: Callable[[], str]) -> None:
        """`interpreter`: names the Python that runs inside (`cp311-x86_64-glibc`); asked once, when the first built template is wanted.

        Raises:
            SandboxUnavailable: a file that the settings name can't be read.
        """
        self.store: Final = (settings.template_store or settings.workspaces / ".templates").absolute()
        found = definitions(settings.templates)
        if settings.driver == RungName.KUBERNETES.value:
            found = {name: definition.in_image() for name, definition in found.items()}
        self.definitions: Final = found
        self._ask = interpreter
        self._lock = threading.Lock()
        self._known: dict[str, Template] = {}
        self._held: dict[str, int] = {}

    @cached_property
    def interpreter(self) -> str:
        """The Python that runs inside. Raises `SandboxFailed` where no sandbox can be started to ask."""
        return self._ask()

    def get(self, name: str) -> Template:
        """A template that is ready to be shown.

        Raises:
            SandboxUnavailable: there is none of that name, or it was not built; says what to do.
        """
        found = self._known.get(name)  # without the lock: whoever opens one may wait for its builder, and nobody else has to
        if found is None:
            with self._lock:
                found = self._known.get(name) or self._open(self.definition(name))
                self._known[name] = found
        return found

    def definition(self, name: str) -> Definition:
        """What a template is made of. Raises `SandboxUnavailable` where there is none of that name."""
        try:
            return self.definitions[name]
        except KeyError:
            known = ", ".join(sorted(self.definitions))
            raise SandboxUnavailable(f"There is no sandbox template {name!r}, only {known} (DUALTRACK_SANDBOX__TEMPLATES).") from None

    def directory(self, definition: Definition) -> Path:
        """Where it is, or would be, built."""
        return self.store / definition.digest(self.interpreter)

    def _open(self, definition: Definition) -> Template:
        environment = {VARIABLE: definition.name, **definition.environment}
        if not definition.built:
            return Template(definition.name, environment=environment, preload=definition.preload)
        directory = self.directory(definition)
        self._hold(directory, definition.name)
        python = f"{TARGET}/{PYTHON}"
        if definition.requirements.strip():
            environment = {"PYTHONPATH": python, "PATH": f"{python}/bin:/usr/local/bin:/usr/bin:/bin"} | environment
        return Template(definition.name, (Mount(directory, TARGET),), environment, definition.preload)

    def _hold(self, directory: Path, name: str) -> None:
        """Keep it from being removed; waits for its builder."""
        if name in self._held:
            return
        with contextlib.ExitStack() as opened:
            try:
                lock = os.open(lock_path(directory), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                lock = None
            if lock is not None:
                opened.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_SH)
            if lock is None or not directory.is_dir():
                raise SandboxUnavailable(
                    f"The sandbox template {name} is not built on this machine: run `dualtrack sandbox templates build {name}`."
                )
            os.utime(lock)
            opened.pop_all()
        self._held[name] = lock

    def close(self) -> None:
        """Give up what was held; no sandbox may be left."""
        with self._lock:
            for lock in self._held.values():
                os.close(lock)
            self._held.clear()
            self._known.clear()


def lock_path(directory: Path) -> Path:
    """The lock of a built template."""
    return directory.with_name(directory.name + ".lock")
