"""A sandbox that runs nothing: scripted outcomes for tests of what stands above it. Also workspaces that real drivers can use."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.outcome import note_of
from dualtrack.sandbox.port import Command, Ended, Outcome
from dualtrack.sandbox.session import ENDS
from dualtrack.sandbox.sessions import Channel, EndReason, PythonCell, SessionRequest, Sink, Start
from dualtrack.sandbox.streams import Stream
from dualtrack.sandbox.trees import move_entries

Answer = Outcome | Exception | Callable[[Command, Path, SandboxLimits, threading.Event], Outcome]


def completed(stdout: bytes = b"", stderr: bytes = b"", exit_code: int = 0, *, background: int = 0) -> Outcome:
    """The outcome of a command that ended by itself."""
    return Outcome(Ended.EXITED, exit_code, None, stdout, stderr, 0, 0, 0.0, background=background)


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
    ended = stopped or Ended.EXITED
    exit_code = int(program == "false") if ended is Ended.EXITED else None
    return Outcome(ended, exit_code, None, stdout.kept, b"", stdout.dropped, 0, 0.0, note_of(ended, None, limits))


SessionAnswer = Outcome | Exception | Callable[[Command | PythonCell, Path, SandboxLimits, threading.Event], Outcome]


class FakeSession:
    """A session that runs nothing: what it is asked for gets the next answer of its `FakeSessions`, which is passed to the sink as well."""

    def __init__(self, owner: FakeSessions, id: str, directory: Path, request: SessionRequest) -> None:  # noqa: A002
        self.id = id
        self.start = Start.WARM
        self.workspace = directory
        self.request = request
        self.asked: list[Command | PythonCell] = []
        self.quiets = 0
        """Times it was made quiet."""
        self.exceeds = ""
        """What `overrun` says."""
        self.ended: EndReason | None = None
        self._owner = owner
        self._lock = threading.Lock()
        self._closed = False

    def run(self, command: Command, limits: SandboxLimits, cancel: threading.Event, sink: Sink | None = None) -> Outcome:
        return self._answer(command, limits, cancel, sink)

    def python(self, cell: PythonCell, limits: SandboxLimits, cancel: threading.Event, sink: Sink | None = None) -> Outcome:
        return self._answer(cell, limits, cancel, sink)

    def _answer(self, asked: Command | PythonCell, limits: SandboxLimits, cancel: threading.Event, sink: Sink | None) -> Outcome:
        with self._lock:
            if self.ended is not None:
                raise SandboxFailed(f"The sandbox session is over ({self.ended}).")
            self.asked.append(asked)
            answer = self._owner.next_answer(asked)
            try:
                if isinstance(answer, Exception):
                    raise answer
                if answer is None:
                    if isinstance(asked, PythonCell):
                        raise AssertionError(f"The fake session has no answer left for {asked!r}.")
                    outcome = _builtin(asked, limits, cancel)
                else:
                    outcome = answer if isinstance(answer, Outcome) else answer(asked, self.workspace, limits, cancel)
            except SandboxFailed:
                self.ended = EndReason.BROKEN
                raise
            if sink is not None:
                for channel, data in ((Channel.STDOUT, outcome.stdout), (Channel.STDERR, outcome.stderr)):
                    if data:
                        sink(channel, data)
            if outcome.ended in ENDS:
                self.ended = EndReason.CANCELLED if outcome.ended is Ended.CANCELLED else EndReason.LIMIT
            return outcome

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        if self.ended is not None:
            raise SandboxFailed(f"The sandbox session is over ({self.ended}).")
        self.quiets += 1
        yield

    def overrun(self) -> str:
        return self.exceeds

    def adopt(self, directory: Path, cancel: threading.Event | None = None) -> None:
        move_entries(directory, self.workspace)

    def pull(self, cancel: threading.Event | None = None) -> None:
        pass

    def close(self, reason: EndReason = EndReason.DONE, *, keep: Path | None = None) -> None:
        if self.ended is None:
            self.ended = reason
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if keep is not None:
                move_entries(self.workspace, keep)
            shutil.rmtree(self.workspace)


class FakeSessions:
    """`Sessions` whose sessions give `answers` in order, whichever of them is asked: an outcome, an exception to raise, or a function.

    Once these are used up they know the commands of `FakeSandbox`. `claimed` holds every session ever claimed. Thread-safe.
    """

    def __init__(self, root: Path, answers: Iterable[SessionAnswer] = (), *, refusals: Iterable[Exception] = ()) -> None:
        """`root`: where the sessions' directories are made; `refusals` are raised by the first claims."""
        self.claimed: list[FakeSession] = []
        self.asked: list[Command | PythonCell] = []
        """Of all sessions, in order."""
        self._root = root
        self._answers = iter(answers)
        self._refusals = iter(refusals)
        self._lock = threading.Lock()

    def claim(self, request: SessionRequest) -> FakeSession:
        with self._lock:
            refusal = next(self._refusals, None)
            if refusal is not None:
                raise refusal
            name = f"fake-{len(self.claimed)}"
            self._root.mkdir(parents=True, exist_ok=True)
            session = FakeSession(self, name, Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._root)), request)
            self.claimed.append(session)
            return session

    def next_answer(self, asked: Command | PythonCell) -> SessionAnswer | None:
        """For the sessions themselves."""
        with self._lock:
            self.asked.append(asked)
            return next(self._answers, None)

    def close(self) -> None:
        for session in self.claimed:
            session.close(EndReason.SHUTDOWN)


@contextlib.contextmanager
def sandbox_workspace() -> Iterator[Path]:
    """An empty workspace directory that the sandbox's unprivileged user can reach (pytest's `tmp_path` is closed to others)."""
    with tempfile.TemporaryDirectory(prefix="dualtrack-test-", dir="/var/tmp") as directory:
        Path(directory).chmod(0o711)
        workspace = Path(directory) / "workspace"
        workspace.mkdir()
        yield workspace
