"""Building a template: its packages by uv or pip, from wheels only, so that nothing of them runs on the host; its files as copies.

Bytecode is compiled inside a sandbox, by the interpreter that will load it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import GIB, SandboxLimits
from dualtrack.domain.templates import SHELL_TEMPLATE
from dualtrack.objects.process_dir import make_base, remove_in
from dualtrack.sandbox.access import give_workspace
from dualtrack.sandbox.port import Command
from dualtrack.sandbox.sessions import SessionRequest, Sessions
from dualtrack.sandbox.template_catalog import Definition
from dualtrack.sandbox.templates import FILES, PYTHON, TARGET, Templates, lock_path
from dualtrack.settings import SandboxSettings

UNUSED_S: Final = 7 * 24 * 3600.0
"""A built template that no settings here name any more is removed once nobody has used it for this long."""
_LOOK_S: Final = 0.1
"""Between two looks at what another one builds."""
_INSTALL_S: Final = 1800.0
_MESSAGE_CHARS: Final = 2000
_DRAFT: Final = ".draft-"
_PLATFORMS: Final = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TemplateState:
    """A template as it is on this machine."""

    name: str
    built: bool = True
    """Whether all is there that it is made of."""
    problem: str = ""
    """Why no sandbox of it starts."""


class TemplateBuilder:
    """Builds templates into their store."""

    def __init__(self, templates: Templates, sessions: Sessions, settings: SandboxSettings, limits: SandboxLimits) -> None:
        """`sessions`: of the rung that the templates are for; `limits`: the operator's."""
        self._templates = templates
        self._sessions = sessions
        self._settings = settings
        self._limits = limits

    def build(self, name: str, say: Say) -> Path | None:
        """Build a template unless it is there, and prove that it works; None where there is nothing to build.

        Waits for another builder of the same. It is kept where only its proof fails: that may be for its `preload`, which is not built.

        Args:
            name: of the template.
            say: is told each step, for a person.

        Raises:
            SandboxUnavailable: no such template, it can't be built, or it does not work; says why.
        """
        definition = self._templates.definition(name)
        directory = self._made(definition, say) if definition.built else None
        if definition.unproved:
            say(f"{name}: importing {', '.join(definition.preload)}")
            self.prove(name)
        return directory

    def prove(self, name: str) -> None:
        """Start a sandbox of a template, which imports its modules, and end it.

        Raises:
            SandboxUnavailable: no such template, it is not built here, or one of its modules can't be imported; names it.
        """
        try:
            session = self._sessions.claim(SessionRequest(self._limits, name))
        except SandboxFailed as error:
            raise SandboxUnavailable(f"A sandbox of the template {name} does not start: {error.message}") from error
        session.close()

    def state(self, name: str) -> TemplateState:
        """What is to be said of a template on this machine; never raises for one that does not work."""
        definition = self._templates.definition(name)
        if definition.built and not self._templates.directory(definition).is_dir():
            return TemplateState(name, built=False)
        try:
            self.prove(name)
        except SandboxUnavailable as error:
            return TemplateState(name, problem=error.message)
        return TemplateState(name)

    def _made(self, definition: Definition, say: Say) -> Path:
        store = self._templates.store
        try:
            make_base(store)
            directory = self._templates.directory(definition)
            # Never waiting in the kernel: once another has built it, whoever shows it holds its lock for as long as they live.
            while not directory.is_dir():
                with contextlib.ExitStack() as held:
                    try:
                        held.enter_context(_locked(directory, wait=False))
                    except BlockingIOError:
                        time.sleep(_LOOK_S)
                        continue
                    if not directory.is_dir():
                        self._build(definition, directory, say)
        except OSError as error:
            raise SandboxUnavailable(f"The template {definition.name} can't be built in {store}: {error}.") from error
        return directory

    def prune(self) -> list[str]:
        """Remove what was built from settings that are no longer these and is used by nobody; the digests of what was removed."""
        store = self._templates.store
        if not store.is_dir():
            return []
        current = {self._templates.directory(found).name for found in self._templates.definitions.values() if found.built}
        removed = []
        for entry in store.iterdir():
            if entry.name.startswith(_DRAFT) and _age_s(entry) > _INSTALL_S:
                remove_in(store, entry.name)
            elif not entry.name.endswith(".lock") and not entry.name.startswith(".") and entry.name not in current:
                with contextlib.suppress(BlockingIOError, FileNotFoundError), _locked(entry, wait=False):
                    if _age_s(lock_path(entry)) > UNUSED_S:
                        remove_in(store, entry.name)
                        removed.append(entry.name)
        return removed

    def _build(self, definition: Definition, directory: Path, say: Say) -> None:
        with _draft(directory.parent) as draft:
            if definition.requirements.strip():
                python = draft / PYTHON
                python.mkdir()
                say(f"{definition.name}: installing packages")
                self._install(definition, python)
                _mend_commands(python / "bin")
                say(f"{definition.name}: compiling")
                self._compile(definition, python)
            if definition.files is not None:
                say(f"{definition.name}: copying files")
                shutil.copytree(definition.files, draft / FILES, symlinks=True)
            _make_readable(draft)
            draft.rename(directory)
        say(f"{definition.name}: built in {directory}")

    def _install(self, definition: Definition, target: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="dualtrack-template-") as scratch:
            requirements = Path(scratch) / "requirements.txt"
            requirements.write_text(definition.requirements)
            command = self._installer(requirements, target, hashed=definition.hashed)
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, errors="replace", timeout=_INSTALL_S, check=False, cwd=scratch
                )
            except subprocess.TimeoutExpired as error:
                raise SandboxUnavailable(f"The packages of template {definition.name} were not there after {_INSTALL_S:g} s.") from error
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip())[-_MESSAGE_CHARS:]
            raise SandboxUnavailable(
                f"The packages of template {definition.name} can't be installed for the sandbox's Python "
                f"({self._templates.interpreter}): {said}"
            )

    def _installer(self, requirements: Path, target: Path, *, hashed: bool) -> Sequence[str]:
        """The command line: uv where there is one, else pip."""
        version, machine, _ = self._templates.interpreter.split("-")
        dotted = f"{version[2]}.{version[3:]}"
        uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
        if uv:
            command = [uv, "pip", "install", "--quiet", "--no-config", "--python-version", dotted]
            command += ["--python-platform", f"{machine}-{_PLATFORMS[0]}", "--link-mode", "copy"]
        elif pip := _pip():
            command = [*pip, "install", "--quiet", "--disable-pip-version-check", "--no-input"]
            command += ["--implementation", "cp", "--python-version", dotted]
            for platform in _PLATFORMS:
                command += ["--platform", f"{platform}_{machine}"]
        else:
            raise SandboxUnavailable("Templates with packages need uv or pip on the machine that builds them: install one of them.")
        command += ["--target", str(target), "--only-binary", ":all:"]
        if hashed:
            command.append("--require-hashes")
        if self._settings.wheels is not None:
            command += ["--no-index", "--find-links", str(self._settings.wheels.absolute())]
        elif self._settings.package_index is not None:
            command += ["--index-url", self._settings.package_index]
        return [*command, "--requirement", str(requirements)]

    def _compile(self, definition: Definition, python: Path) -> None:
        limits = self._limits.model_copy(
            update={"wall_time_s": 600.0, "cpu_time_s": 600, "disk_bytes": 20 * GIB, "disk_files": 1_000_000, "output_bytes": 64 * 1024}
        )
        session = self._sessions.claim(SessionRequest(limits, SHELL_TEMPLATE))
        try:
            session.adopt(python)
            # Unchecked: nothing in there ever changes, and times are not kept on every rung.
            argv = (
                "python3",
                "-m",
                "compileall",
                "-q",
                "--invalidation-mode",
                "unchecked-hash",
                "-s",
                ".",
                "-p",
                f"{TARGET}/{PYTHON}",
                ".",
            )
            outcome = session.run(Command(argv), limits, threading.Event())
        finally:
            session.close(keep=python)
        if outcome.exit_code is None:
            raise SandboxUnavailable(f"The packages of template {definition.name} can't be compiled in a sandbox: {outcome.note}.")


def _pip() -> list[str] | None:
    """The command that is pip: of this environment, else on the PATH."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip3") or shutil.which("pip")
    return [found] if found else None


def _mend_commands(commands: Path) -> None:
    """Let scripts be run by the sandbox's own Python: an installer names the one it runs on."""
    if not commands.is_dir():
        return
    for command in commands.iterdir():
        content = command.read_bytes()
        first, newline, rest = content.partition(b"\n")
        if first.startswith(b"#!") and b"python" in first:
            command.write_bytes(b"#!/usr/bin/env python3" + newline + rest)


def _make_readable(top: Path) -> None:
    """Everything belongs to this user and can be read by all."""
    give_workspace(top, os.geteuid())
    for parent, directories, files in os.walk(top):
        for name in (".", *directories, *files):
            path = Path(parent, name)
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(0o755 if path.is_dir() or mode & 0o100 else 0o644)


@contextlib.contextmanager
def _draft(store: Path) -> Iterator[Path]:
    """A new directory in the store, removed at the end unless it was renamed."""
    path = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=store))
    try:
        path.chmod(0o711)
        yield path
    finally:
        remove_in(store, path.name)


@contextlib.contextmanager
def _locked(directory: Path, *, wait: bool = True) -> Iterator[None]:
    descriptor = os.open(lock_path(directory), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def _age_s(path: Path) -> float:
    return time.time() - path.stat(follow_symlinks=False).st_mtime
