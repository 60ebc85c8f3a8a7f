"""The tools in a real sandbox, as an agent would use them."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dualtrack.domain.errors import NotFound
from dualtrack.domain.limits import PlatformLimits, SandboxLimits
from dualtrack.sandbox.factory import open_sandboxes
from dualtrack.sandbox.sessions import Sessions
from dualtrack.settings import SandboxSettings
from dualtrack.testing.bench import SessionBench
from dualtrack.tools.port import ToolContext, ToolResult
from dualtrack.tools.registry import Registry

Call = Callable[..., ToolResult]
registry = Registry()


@pytest.fixture(scope="module")
def pool() -> Iterator[Sessions]:
    with tempfile.TemporaryDirectory(prefix="dualtrack-test-", dir="/var/tmp") as directory:
        Path(directory).chmod(0o711)
        with open_sandboxes(SandboxSettings(workspaces=Path(directory) / "workspaces"), SandboxLimits()) as opened:
            yield opened.pool


@pytest.fixture
def bench(pool: Sessions) -> Iterator[SessionBench]:
    opened = SessionBench(pool, threading.Event())
    yield opened
    opened.close()


@pytest.fixture
def workspace(bench: SessionBench) -> Path:
    return bench.workspace


@pytest.fixture
def call(bench: SessionBench) -> Call:
    """Calls a tool by name, its arguments checked first."""

    def missing(call_id: str) -> str:
        raise NotFound(call_id)

    def call(name: str, **arguments: Any) -> ToolResult:
        tool = registry.tool(name)
        assert registry.validate(tool.spec, arguments) is None
        return tool.run(arguments, ToolContext(bench, PlatformLimits(), threading.Event(), missing, "call_0"))

    return call


def test_a_small_job(call: Call, workspace: Path) -> None:
    assert call("write_file", path="data/orders.csv", content="id,total\n1,10\n2,32\n").observation.ok
    code = "import csv\nprint(sum(int(r['total']) for r in csv.DictReader(open('data/orders.csv'))))"
    assert call("execute_python", code=code).observation.text == "42"
    assert call("shell", command="wc -l < data/orders.csv | tee report.md").observation.text == "3"
    assert call("edit_file", path="report.md", old="3", new="three").observation.text == "Replaced 1 match in report.md."
    assert call("read_file", path="/workspace/report.md").observation.text == "three"
    listed = call("list_files", recursive=True).observation.text
    assert listed.splitlines() == ["data/", "data/orders.csv  19 B", "report.md  6 B"]
    assert call("search_files", pattern=r"^2,", glob="*.csv").observation.text == "data/orders.csv:3: 2,32"
    saved = call("save_artifact", path="report.md")
    assert [(a.path, a.name) for a in saved.artifacts] == [("report.md", "report.md")]
    assert call("check", command="grep -q three report.md").observation.ok
    failed = call("check", command="grep four report.md")
    assert (failed.observation.ok, failed.details["exit_code"]) == (False, 1)
    assert (workspace / "report.md").read_text() == "three\n"


def test_a_traceback_shows_the_line_at_fault_and_ends_with_the_error(call: Call) -> None:
    observation = call("execute_python", code="values = {}\nprint('before')\nvalues['missing']\n").observation
    assert observation.ok is False
    assert observation.text.startswith("before\n[stderr]\nTraceback")
    assert 'File "/tmp/cell_1.py", line 3' in observation.text
    assert "values['missing']" in observation.text
    assert observation.text.endswith("KeyError: 'missing'\n[exit status 1]")


def test_limits_are_told_to_the_model(call: Call) -> None:
    observation = call("execute_python", code="print('so far')\nwhile True: pass", timeout_s=3).observation
    assert (observation.ok, observation.text) == (False, "so far\n[killed: wall time limit 3 s]")
    for name, arguments in (
        ("shell", {"command": "sleep 9"}),
        ("check", {"command": "sleep 9"}),
        ("execute_python", {"code": "input = 1\nwhile 1: pass"}),
    ):
        silent = call(name, **arguments, timeout_s=1).observation
        assert (silent.ok, silent.text) == (False, "[killed: wall time limit 1 s]")
    missing = call("shell", command="no-such-program").observation
    assert missing.text.endswith("[exit status 127]")


def test_python_imports_from_the_workspace_and_leaves_no_bytecode(call: Call, workspace: Path) -> None:
    call("write_file", path="helper.py", content="def answer(): return 42\n")
    assert call("execute_python", code="import helper, sys; print(helper.answer(), sys.stdin.read() == '')").observation.text == "42 True"
    assert [path.name for path in workspace.iterdir()] == ["helper.py"]


def test_links_and_odd_files_reach_nothing_on_the_host(call: Call, workspace: Path) -> None:
    outside = workspace.parent / "outside.txt"
    outside.write_text("host secret")
    outside.chmod(0o666)
    (workspace / "link").symlink_to(outside)
    (workspace / "up").symlink_to(workspace.parent)
    os.mkfifo(workspace / "pipe")
    for name, arguments in (
        ("read_file", {"path": "link"}),
        ("read_file", {"path": "up/outside.txt"}),
        ("read_file", {"path": "pipe"}),
        ("write_file", {"path": "link", "content": "overwritten"}),
        ("write_file", {"path": "pipe", "content": "x"}),
        ("edit_file", {"path": "up/outside.txt", "old": "host", "new": "our"}),
        ("save_artifact", {"path": "link"}),
        ("list_files", {"path": "up"}),
    ):
        result = call(name, **arguments)
        assert result.observation.ok is False, (name, arguments, result.observation.text)
        assert result.artifacts == ()
    assert "host secret" not in call("search_files", pattern="secret").observation.text
    assert outside.read_text() == "host secret"


def test_a_regular_expression_that_never_ends_is_stopped(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualtrack.tools.workspace.WALL_S", 1.0)
    call("write_file", path="a.txt", content="a" * 60 + "!")
    observation = call("search_files", pattern="(a+)+$").observation
    assert (observation.ok, observation.text) == (False, "[killed: wall time limit 1 s]")


def test_long_files_come_in_pages_that_stay_in_context(call: Call) -> None:
    call("write_file", path="long.txt", content="".join(f"{n} {'x' * 50}\n" for n in range(1, 533)))
    first = call("read_file", path="long.txt").observation.text
    assert len(first) <= PlatformLimits().observation_chars
    last = first.splitlines()[-1]
    assert "of 532; continue with offset_line=" in last
    following = int(last.rstrip("]").split("=")[1])
    assert call("read_file", path="long.txt", offset_line=following).observation.text.startswith(f"{following} x")
