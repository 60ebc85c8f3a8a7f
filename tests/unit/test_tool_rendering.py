from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from dualtrack.domain.errors import NotFound, ObjectMissing, SandboxFailed
from dualtrack.domain.limits import PlatformLimits, SandboxLimits
from dualtrack.sandbox.outcome import note_of, size_text
from dualtrack.sandbox.port import Ended, Outcome
from dualtrack.sandbox.sessions import PythonCell
from dualtrack.testing.bench import FakeBench
from dualtrack.testing.sandbox import completed
from dualtrack.tools.port import ToolContext
from dualtrack.tools.registry import Registry
from dualtrack.tools.rendering import command_result

LIMITS = PlatformLimits()
registry = Registry()


def context(*answers: Outcome | Exception, limits: PlatformLimits = LIMITS, observations: dict[str, str] | None = None) -> ToolContext:
    def read(call_id: str) -> str:
        if call_id not in (observations or {}):
            raise NotFound("no such call")
        return (observations or {})[call_id]

    return ToolContext(FakeBench(answers), limits, threading.Event(), read, "call_0")


def outcome(ended: Ended, exit_code: int | None = None, signal: int | None = None) -> Outcome:
    return Outcome(ended, exit_code, signal, b"", b"", 0, 0, 0.5, note_of(ended, signal, SandboxLimits(wall_time_s=5)))


@pytest.mark.parametrize(
    ("stdout", "stderr", "code", "text"),
    [
        (b"4\n", b"", 0, "4"),
        (b"", b"", 0, "(no output)"),
        (b"a\n", b"b\n", 0, "a\n[stderr]\nb"),
        (b"", b"Traceback\nValueError: x\n", 1, "[stderr]\nTraceback\nValueError: x\n[exit status 1]"),
        (b"\xff\x00z", b"", 0, "��z"),
    ],
)
def test_observations(stdout: bytes, stderr: bytes, code: int, text: str) -> None:
    result = command_result(completed(stdout, stderr, code), LIMITS)
    assert (result.observation.ok, result.observation.text) == (code == 0, text)
    assert result.details["exit_code"] == code


def test_a_limit_is_named() -> None:
    result = command_result(outcome(Ended.WALL_TIME), LIMITS)
    assert (result.observation.ok, result.observation.text) == (False, "[killed: wall time limit 5 s]")
    assert result.details["ended"] == "wall_time_limit"


def test_what_is_to_be_known_of_a_command_that_exited() -> None:
    found = replace(completed(b"some\n", exit_code=2), note="reached: process limit 128")
    assert command_result(found, LIMITS).observation.text == "some\n[exit status 2]\n[reached: process limit 128]"


ENDS: dict[Ended, tuple[Outcome, str]] = {
    Ended.EXITED: (outcome(Ended.EXITED, 3), "exit status 3"),
    Ended.SIGNALLED: (outcome(Ended.SIGNALLED, signal=11), "killed: signal 11 (SIGSEGV)"),
    Ended.WALL_TIME: (outcome(Ended.WALL_TIME), "killed: wall time limit 5 s"),
    Ended.CPU_TIME: (outcome(Ended.CPU_TIME), "killed: CPU time limit 120 s"),
    Ended.MEMORY: (outcome(Ended.MEMORY), "killed: memory limit 1024 MiB"),
    Ended.OUTPUT: (outcome(Ended.OUTPUT), "killed: output limit, 64 x 1 MiB"),
    Ended.DISK: (outcome(Ended.DISK), "killed: workspace limit 1024 MiB"),
    Ended.DISK_FILES: (outcome(Ended.DISK_FILES), "killed: workspace limit 100000 files"),
    Ended.DISK_DEPTH: (outcome(Ended.DISK_DEPTH), "killed: workspace limit 100 directories deep"),
    Ended.PROCESSES: (outcome(Ended.PROCESSES), "not started: process limit 128"),
    Ended.CANCELLED: (outcome(Ended.CANCELLED), "killed: cancelled"),
}


@pytest.mark.parametrize("ended", Ended)
@pytest.mark.parametrize("tool", ["shell", "check", "execute_python"])
def test_a_command_that_printed_nothing_still_says_how_it_ended(tool: str, ended: Ended) -> None:
    answer, note = ENDS[ended]
    assert (answer.ended, answer.stdout, answer.stderr) == (ended, b"", b"")
    result = registry.tool(tool).run({"command": "x", "code": "x"}, context(answer))
    assert result.observation.ok is False
    assert result.observation.text.startswith(f"[{note}")
    assert result.details["ended"] == ended.value


@pytest.mark.parametrize("ended", [ended for ended in Ended if ended is not Ended.EXITED])
@pytest.mark.parametrize("tool", ["read_file", "write_file", "edit_file", "list_files", "search_files", "save_artifact"])
def test_a_file_operation_that_was_stopped_says_so(tool: str, ended: Ended) -> None:
    arguments = {"path": "a", "content": "", "old": "a", "new": "b", "pattern": "x"}
    answer, note = ENDS[ended]
    result = registry.tool(tool).run(arguments, context(answer))
    assert (result.observation.ok, result.artifacts) == (False, ())
    assert result.observation.text.startswith(f"[{note}")


def test_dropped_output_is_said() -> None:
    cut = Outcome(Ended.EXITED, 0, None, b"x", b"", 123, 0, 0.1)
    assert "[stdout: 123 more bytes dropped" in command_result(cut, LIMITS).observation.text


def test_observations_are_bounded() -> None:
    limits = PlatformLimits(observation_bytes=1000)
    text = command_result(completed(b"a" * 900 + b"\xc3\xa9" * 500 + b"end"), limits).observation.text
    assert text.startswith("aaa")
    assert text.endswith("end")
    assert "bytes left out" in text
    assert len(text.encode()) < 1100


def test_sizes() -> None:
    assert [size_text(n) for n in (0, 1023, 1536, 20 * 1024 * 1024, 1 << 30)] == ["0 B", "1023 B", "1.5 KiB", "20 MiB", "1024 MiB"]


@pytest.mark.parametrize(("session", "persistent"), [({}, False), ({"session": "fresh"}, False), ({"session": "persistent"}, True)])
def test_python_gets_its_code_and_a_shorter_time(session: dict[str, str], *, persistent: bool) -> None:
    bench = FakeBench([completed()])
    tool = registry.tool("execute_python")
    arguments = {"code": "x = 1", "timeout_s": 3} | session
    assert registry.validate(tool.spec, arguments) is None
    result = tool.run(arguments, ToolContext(bench, LIMITS, threading.Event(), str, "call_0"))
    assert [(what, limits.wall_time_s) for what, limits in bench.asked] == [(PythonCell("x = 1", persistent=persistent), 3.0)]
    assert "print()" in result.observation.text


def test_a_call_can_not_take_longer_than_the_platform_allows() -> None:
    bench = FakeBench([completed()])
    registry.tool("shell").run({"command": "true", "timeout_s": 80_000}, ToolContext(bench, LIMITS, threading.Event(), str, "call_0"))
    assert [limits.wall_time_s for _, limits in bench.asked] == [LIMITS.sandbox.wall_time_s]


@pytest.mark.parametrize("tool", ["read_file", "write_file", "edit_file", "list_files", "search_files", "save_artifact"])
@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../b", "a\nb"])
def test_paths_outside_the_workspace_never_reach_the_sandbox(tool: str, path: str) -> None:
    given = context()
    result = registry.tool(tool).run({"path": path, "content": "", "old": "a", "new": "b", "pattern": "x"}, given)
    assert result.observation.ok is False
    assert given.bench.asked == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("tool", ["read_file", "list_files", "search_files", "save_artifact"])
def test_pure_tools_see_a_read_only_workspace(tool: str) -> None:
    given = context(completed(b"1"))
    registry.tool(tool).run({"path": "a", "pattern": "x"}, given)
    assert [command.writable for command, _ in given.bench.asked] == [False]  # type: ignore[attr-defined]


def test_a_broken_helper_is_our_failure_not_an_observation() -> None:
    with pytest.raises(SandboxFailed, match="status 1: Traceback"):
        registry.tool("read_file").run({"path": "a"}, context(completed(b"", b"Traceback", 1)))


def test_read_artifact_pages_through_a_long_result() -> None:
    limits = PlatformLimits(observation_chars=1160)
    text = "".join(str(n % 10) for n in range(2500))
    given = context(limits=limits, observations={"call_1": text, "call_0": ""})
    tool = registry.tool("read_artifact")
    pages, offset = [], 0
    for _ in range(3):
        page = tool.run({"call_id": "call_1", "offset": offset}, given).observation.text
        assert len(page) <= limits.observation_chars
        body, _, footer = page.rpartition("\n")
        pages.append(body)
        offset += len(body)
        assert (f"continue with offset={offset}" in footer) == (offset < 2500)
    assert "".join(pages) == text
    assert tool.run({"call_id": "call_1", "offset": 2500}, given).observation.ok is False
    assert tool.run({"call_id": "call_0"}, given).observation.text == "(empty)"
    missing = tool.run({"call_id": "call_9"}, given).observation
    assert missing.ok is False
    assert "call_9" in missing.text


def test_a_long_result_that_is_gone_is_told_without_its_key() -> None:
    def read(call_id: str) -> str:
        raise ObjectMissing(f"There is no object 'observations/ten_1/{call_id}'.")

    given = ToolContext(FakeBench(), LIMITS, threading.Event(), read, "call_0")
    observation = registry.tool("read_artifact").run({"call_id": "call_1"}, given).observation
    assert observation.ok is False
    assert observation.text == "The long result of call 'call_1' is missing from the object store: make the call again."


def test_save_artifact_names_what_to_keep() -> None:
    result = registry.tool("save_artifact").run({"path": "/workspace/out/report.md", "description": "d"}, context(completed(b"2048")))
    assert result.observation.text == "Saved out/report.md (2 KiB) as report.md."
    assert [(a.path, a.name, a.description) for a in result.artifacts] == [("out/report.md", "report.md", "d")]


@pytest.mark.parametrize(("answer", "name"), [(completed(b"missing", b"", 3), "x"), (completed(b"9" * 12), "x"), (completed(b"1"), "a/b")])
def test_save_artifact_refuses(answer: Outcome, name: str) -> None:
    result = registry.tool("save_artifact").run({"path": "a", "name": name}, context(answer))
    assert result.observation.ok is False
    assert result.artifacts == ()
