"""Templates with packages, from wheels made here: nothing is fetched."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import shutil
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dualtrack.domain.errors import SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox import template_builds
from dualtrack.sandbox.factory import open_sandboxes
from dualtrack.sandbox.port import Command
from dualtrack.sandbox.sandboxes import Sandboxes
from dualtrack.sandbox.sessions import PythonCell, SessionRequest
from dualtrack.sandbox.template_builds import TemplateState
from dualtrack.sandbox.templates import lock_path
from dualtrack.settings import SandboxSettings, TemplateSettings

LIMITS = SandboxLimits()


def wheel(directory: Path, version: str, more: Mapping[str, str] | None = None) -> str:
    """A wheel of a package `greeter` with a command `greet`, and more modules; its SHA-256."""
    directory.mkdir(exist_ok=True)
    path = directory / f"greeter-{version}-py3-none-any.whl"
    info = f"greeter-{version}.dist-info"
    files = {
        "greeter.py": f"VERSION = '{version}'\n\n\ndef main():\n    print('hello from', VERSION)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: greeter\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ngreet = greeter:main\n",
        **(more or {}),
    }
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (files | {f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}).items():
            archive.writestr(name, content)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def settings(folder: Path) -> SandboxSettings:
    wheel(folder / "wheels", "1.0")
    template = TemplateSettings(packages=["greeter==1.0"], preload=["greeter"])
    return SandboxSettings(workspaces=folder / "workspaces", wheels=folder / "wheels", templates={"mine": template}, pool_max=0)


@contextlib.contextmanager
def opened(settings: SandboxSettings) -> Iterator[Sandboxes]:
    with open_sandboxes(settings, LIMITS) as sandboxes:
        yield sandboxes


def test_packages_are_there_for_cells_and_for_commands(settings: SandboxSettings) -> None:
    said: list[str] = []
    with opened(settings) as sandboxes:
        directory = sandboxes.builder().build("mine", said.append)
        assert directory is not None
        assert any(line.endswith(str(directory)) for line in said)
        assert sandboxes.builder().build("mine", said.append) == directory
        assert sandboxes.builder().build("shell", said.append) is None
        assert len(said) == 5, "proved the second time, too"
        if os.geteuid() == 0:
            owned = {path.stat().st_uid for path in directory.rglob("*")}
            assert owned == {0}
        with contextlib.closing(sandboxes.pool.claim(SessionRequest(LIMITS, "mine"))) as session:
            source = "import sys; print('greeter' in sys.modules)\nimport greeter\nprint(greeter.VERSION, greeter.__cached__)\n"
            source += "print(greeter.main.__code__.co_filename)"
            cell = session.python(PythonCell(source), LIMITS, threading.Event())
            assert cell.stdout.split()[:2] == [b"True", b"1.0"], cell
            assert cell.stdout.split()[2].startswith(b"/opt/dualtrack/template/python/__pycache__/greeter.cpython-3")
            assert cell.stdout.split()[3] == b"/opt/dualtrack/template/python/greeter.py"
            for argv in (("greet",), ("python3", "-c", "import greeter; greeter.main()")):
                outcome = session.run(Command(argv), LIMITS, threading.Event())
                assert outcome.stdout == b"hello from 1.0\n", outcome


def test_a_wheel_with_another_hash_is_refused(settings: SandboxSettings, folder: Path) -> None:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"greeter==1.0 --hash=sha256:{'0' * 64}\n")
    wrong = settings.model_copy(update={"templates": {"mine": TemplateSettings(requirements=requirements)}})
    with opened(wrong) as sandboxes, pytest.raises(SandboxUnavailable, match=r"(?s)template mine can't be installed.*ash"):
        sandboxes.builder().build("mine", lambda _: None)
    assert not [path for path in (folder / "workspaces" / ".templates").iterdir() if not path.name.endswith(".lock")]


def test_a_failed_build_leaves_nothing_and_says_what_the_installer_said(settings: SandboxSettings, folder: Path) -> None:
    missing = settings.model_copy(update={"templates": {"mine": TemplateSettings(packages=["greeter==2.0"])}})
    with opened(missing) as sandboxes:
        with pytest.raises(SandboxUnavailable, match=r"(?s)can't be installed for the sandbox's Python \(cp3.*2\.0"):
            sandboxes.builder().build("mine", lambda _: None)
        assert not list(sandboxes.templates.store.glob(".draft-*"))


@pytest.mark.parametrize(
    ("packages", "module", "why"),
    [
        (["greeter==1.0"], "greeting", "No module named 'greeting'"),
        ([], "greeting", "No module named 'greeting'"),
        (["greeter==1.0"], "leaver", "SystemExit: not today"),
    ],
    ids=["with packages", "without any", "that exits"],
)
def test_a_template_whose_modules_can_not_be_imported_is_refused(
    settings: SandboxSettings, folder: Path, packages: list[str], module: str, why: str
) -> None:
    wheel(folder / "wheels", "1.0", {"leaver.py": "raise SystemExit('not today')\n"})
    template = TemplateSettings(packages=packages, preload=["json", module])
    wrong = settings.model_copy(update={"templates": {"mine": template}})
    told = rf"template mine .*module {module} can't be imported: .*{why}"
    with opened(wrong) as sandboxes:
        builder = sandboxes.builder()
        for _ in range(2):  # what was built is there the second time, and works no better
            with pytest.raises(SandboxUnavailable, match=told):
                builder.build("mine", lambda _: None)
        assert re.search(told, builder.state("mine").problem)
        assert builder.state("default") == TemplateState("default")
        with pytest.raises(SandboxUnavailable, match=told):
            sandboxes.pool.claim(SessionRequest(LIMITS, "mine"))
        assert sandboxes.pool.live == 0
    with pytest.raises(SandboxUnavailable, match=told), opened(wrong.model_copy(update={"pool_templates": ["default", "mine"]})):
        pass
    mended = settings.model_copy(update={"templates": {"mine": template.model_copy(update={"preload": ["json"]})}})
    with opened(mended) as sandboxes:
        said: list[str] = []
        sandboxes.builder().build("mine", said.append)
        assert said == [], "what was built is used: a preload is no part of it"


def test_a_template_whose_sandbox_ends_as_it_imports_is_refused(settings: SandboxSettings, folder: Path) -> None:
    wheel(folder / "wheels", "1.0", {"crasher.py": "import os\nos.abort()\n"})
    wrong = settings.model_copy(update={"templates": {"mine": TemplateSettings(packages=["greeter==1.0"], preload=["crasher"])}})
    with opened(wrong) as sandboxes, pytest.raises(SandboxUnavailable, match="A sandbox of the template mine does not start: "):
        sandboxes.builder().build("mine", lambda _: None)


def test_a_template_that_is_not_built_is_said_to_be(settings: SandboxSettings) -> None:
    with opened(settings) as sandboxes:
        assert sandboxes.builder().state("mine") == TemplateState("mine", built=False)


def test_pip_builds_where_there_is_no_uv(settings: SandboxSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with opened(settings) as sandboxes:
        directory = sandboxes.builder().build("mine", lambda _: None)
        assert directory is not None
        assert (directory / "python" / "greeter.py").is_file()


def test_two_builders_at_once_build_once(settings: SandboxSettings) -> None:
    said: list[str] = []
    with opened(settings) as sandboxes:
        threads = [threading.Thread(target=sandboxes.builder().build, args=("mine", said.append)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(250)
        assert sum("installing" in line for line in said) == 1


def test_what_nobody_names_any_more_is_removed_after_a_week_unless_it_is_used(settings: SandboxSettings) -> None:
    with opened(settings) as sandboxes:
        directory = sandboxes.builder().build("mine", lambda _: None)
        assert directory is not None
        week = time.time() - template_builds.UNUSED_S - 60
        without = settings.model_copy(update={"templates": {}})
        with opened(without) as others:
            assert others.builder().prune() == []  # built a moment ago
            os.utime(lock_path(directory), (week, week))
            sandboxes.templates.get("mine")
            os.utime(lock_path(directory), (week, week))
            assert others.builder().prune() == []  # in use
            sandboxes.templates.close()
            assert others.builder().prune() == [directory.name]
            assert not directory.exists()
