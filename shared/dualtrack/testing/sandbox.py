"""A sandbox that runs nothing: scripted outcomes for tests of what stands above it. Also workspaces that real drivers can use."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from dualtrack.domain.errors import SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.outcome import outcome_of
from dualtrack.sandbox.port import Command, Ended, Outcome
from dualtrack.sandbox.streams import Pumped, Stream

Answer = Outcome | Exception | Callable[[Command, Path, SandboxLimits, threading.Event], Outcome]


def completed(stdout: bytes = b"", stderr: bytes = b"", exit_code: int = 0) -> Outcome:
    """The outcome of a command that ended by itself."""
    return Outcome(Ended.EXITED, exit_code, None, stdout, stderr, 0, 0, 0.0)


class FakeSandbox:
    """Gives its answers in order: an outcome, an exception to raise, or a function that makes the outcome (and may write to the workspace).

    Once they are used up it knows `true`, `false`, `echo`, `cat` (its stdin) and `sleep`, with the limits on wall time and output; any
    other command is a mistake of the test. `commands` records what was asked for. Thread-safe.
    """

    name = "fake"

    def __init__(self, answers: Iterable[Answer] = (), *, unavailable: str | None = None) -> None:
        self.commands: list[Command] = []
        self._answers = iter(answers)
        self._unavailable = unavailable
        self._lock = threading.Lock()

    def check(self) -> None:
        if self._unavailable is not None:
            raise SandboxUnavailable(self._unavailable)

    def run(self, command: Command, workspace: Path, limits: SandboxLimits, cancel: threading.Event) -> Outcome:
        with self._lock:
            self.commands.append(command)
            answer = next(self._answers, None)
        if answer is None:
            return _builtin(command, limits, cancel)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Outcome) else answer(command, workspace, limits, cancel)


def _builtin(command: Command, limits: SandboxLimits, cancel: threading.Event) -> Outcome:
    program, *arguments = command.argv
    stopped = Ended.CANCELLED if cancel.is_set() else None
    output = b""
    if program == "echo":
        output = " ".join(arguments).encode() + b"\n"
    elif program == "cat":
        output = command.stdin
    elif program == "sleep" and stopped is None:
        wanted = float(arguments[0])
        if cancel.wait(min(wanted, limits.wall_time_s)):
            stopped = Ended.CANCELLED
        elif wanted > limits.wall_time_s:
            stopped = Ended.WALL_TIME
    elif program not in {"true", "false", "sleep"}:
        raise AssertionError(f"The fake sandbox has no answer left for {command.argv!r}.")
    stdout = Stream(limits.output_bytes)
    stdout.add(output)
    return outcome_of(Pumped(stopped, stdout, Stream(limits.output_bytes), 0.0), int(program == "false"), limits, out_of_memory=False)


@contextlib.contextmanager
def sandbox_workspace() -> Iterator[Path]:
    """An empty workspace directory that the sandbox's unprivileged user can reach (pytest's `tmp_path` is closed to others)."""
    with tempfile.TemporaryDirectory(prefix="dualtrack-test-", dir="/var/tmp") as directory:
        Path(directory).chmod(0o711)
        workspace = Path(directory) / "workspace"
        workspace.mkdir()
        yield workspace
