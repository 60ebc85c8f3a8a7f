"""A session over any started sandbox: the host's side of the protocol with its agent, and the certain end of both."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import Cancelled, SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.objects.cancelling import check_of
from dualtrack.objects.trees import WorkspaceTooLarge
from dualtrack.sandbox.access import give_workspace
from dualtrack.sandbox.disk import DiskWatch
from dualtrack.sandbox.execution import Execution
from dualtrack.sandbox.inside import protocol
from dualtrack.sandbox.mirror import Mirror
from dualtrack.sandbox.outcome import grew, note_of, outcome_of
from dualtrack.sandbox.port import Command, Ended, Outcome
from dualtrack.sandbox.rung import WORKSPACE, Counters, Launched, LaunchSpec
from dualtrack.sandbox.sessions import EndReason, PythonCell, Sink, Start
from dualtrack.sandbox.trees import move_entries
from dualtrack.sandbox.watch import BackgroundWatch, LimitWatch
from dualtrack.sandbox.wire import AgentLost, AgentWire

_REPLY_S: Final = 10.0
_OWN_PROCESSES: Final = 3
"""Processes beside the command's where the agent limits their number: the agent, its waiting interpreter, the relay."""
_STAYS: Final = frozenset({Ended.EXITED, Ended.SIGNALLED, Ended.MEMORY})
ENDS: Final = frozenset(Ended) - _STAYS
"""What ends the whole session. So does memory, where the kernel killed the agent for it. A command that finds no room for a process is
among them: nothing could be started that would make room."""
_NEW_PYTHON: Final = "new Python session: the variables, functions and imports of earlier cells are gone"


class AgentSession:
    """`Session` by an agent behind a rung. Call `wait_ready` before the first command."""

    def __init__(
        self,
        launched: Launched,
        spec: LaunchSpec,
        id: str,  # noqa: A002 - the protocol's own name
        *,
        shares_files: bool = True,
        on_close: Callable[[AgentSession], None] = lambda _: None,
    ) -> None:
        """Takes a sandbox that was just started.

        Args:
            launched: the sandbox; closed with the session.
            spec: what it was started with.
            id: names it in logs and spans.
            shares_files: whether the workspace inside is that of `spec`; else `push` and `pull` send files through the agent.
            on_close: called once, by `close`, when nothing is left of the sandbox.
        """
        self.id = id
        self.start = Start.COLD
        self.workspace: Path = spec.workspace
        self._launched = launched
        self._spec = spec
        self._inside = launched.inside
        self._shares_files = shares_files
        self._on_close = on_close
        self._wire = AgentWire(launched.output, launched.input)
        self._lock = threading.Lock()
        self._state = threading.Lock()
        self._ended: EndReason | None = None
        self._closed = False
        self._channel = 0
        self._counters = Counters()
        self._cells = 0
        self._background: BackgroundWatch | None = None
        self._limits = spec.limits
        """Of the last command."""

    @property
    def ended(self) -> EndReason | None:
        """See `Session.ended`."""
        return self._ended

    def wait_ready(self, timeout_s: float) -> None:
        """Configure the agent and wait until it has preloaded its modules.

        Raises:
            SandboxFailed: it ended, or was not ready in time.
            SandboxUnavailable: a module of the template can't be imported inside, or the way out can't be opened.
        """
        request = protocol.control(
            protocol.START,
            0,
            preload=list(self._spec.preload),
            workspace=self._inside,
            own_processes=self._launched.own_processes,
            relay_port=self._spec.relay_port,
        )
        with self._talking():
            self._wire.send(request)
            ready = protocol.Fields(self._wire.answer(0, frozenset({protocol.READY}), timeout_s)[2])
            problems = ready.texts("problems")
            self._counters = self._launched.counters()
        if problems:
            raise SandboxUnavailable(f"{'; '.join(problems)}.")

    def ping(self, timeout_s: float = _REPLY_S) -> bool:
        """Whether the agent answers in time; if not, the session is over."""
        try:
            self._ask(protocol.PING, protocol.PONG, timeout_s)
        except SandboxFailed:
            return False
        return True

    def run(self, command: Command, limits: SandboxLimits, cancel: threading.Event, sink: Sink | None = None) -> Outcome:
        """See `Session.run`."""
        fields = {"argv": list(command.argv), "env": self._environment(command.env), "stdin": bool(command.stdin)}
        return self._execute(protocol.EXEC, fields, command.stdin, limits, cancel, sink)

    def python(self, cell: PythonCell, limits: SandboxLimits, cancel: threading.Event, sink: Sink | None = None) -> Outcome:
        """See `Session.python`. A persistent cell's last expression is echoed as in a notebook; a fresh one is run as a file is."""
        fields = {"source": cell.source, "env": {}, "persistent": cell.persistent}
        return self._execute(protocol.CELL, fields, b"", limits, cancel, sink)

    def _execute(
        self, kind: int, fields: Mapping[str, object], stdin: bytes, limits: SandboxLimits, cancel: threading.Event, sink: Sink | None
    ) -> Outcome:
        with self._talking():
            channel = self._next_channel()
            request = protocol.control(kind, channel, **fields, limits=self._inner(limits))
            execution = Execution(self._wire, channel, limits, stdin, sink)
            watch = LimitWatch(self._launched.counters, self._disk(limits), limits)
            self._background, self._limits = None, limits
            try:
                execution.run(request, cancel, partial(self._look, watch))
            except protocol.ProtocolError:
                if not self._ended_by_limit():
                    raise
            if execution.refusal is not None and execution.refusal.number("errno") != errno.EAGAIN:
                raise protocol.ProtocolError(f"the agent could not start it: {execution.refusal.text('error')}")
            before, self._counters = self._counters, self._launched.counters()
            outcome = outcome_of(execution, limits, before, self._counters, lost=self._lost(execution))
            if outcome.ended in ENDS or (execution.report is None and execution.refusal is None):
                self._end(EndReason.CANCELLED if outcome.ended is Ended.CANCELLED else EndReason.LIMIT)
                self._launched.close()
            return outcome

    def overrun(self) -> str:
        """See `Session.overrun`."""
        if not self._lock.acquire(blocking=False):
            return ""  # a command is at work, and watched
        try:
            if self._ended is not None:
                return ""
            if self._background is None:
                self._background = BackgroundWatch(self._launched.counters, self._disk(self._limits), self._limits)
            exceeded = self._background.look()
            return note_of(exceeded, None, self._limits) if exceeded is not None else ""
        finally:
            self._lock.release()

    def _disk(self, limits: SandboxLimits) -> DiskWatch | None:
        scratch = self._launched.scratch
        return DiskWatch(self.workspace, limits, scratch=scratch) if self._spec.writable or scratch is not None else None

    def _environment(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """Variables with paths in the workspace as they are inside."""
        if self._inside == WORKSPACE:
            return dict(wanted)
        return {name: _path_inside(value, self._inside) for name, value in wanted.items()}

    def _inner(self, limits: SandboxLimits) -> dict[str, int]:
        """The limits that the agent sets on each process."""
        result = {"cpu_s": limits.cpu_time_s, "file_bytes": limits.file_bytes, "open_files": limits.open_files}
        if not self._launched.enforced.memory:
            result["memory_bytes"] = limits.memory_bytes
        if not self._launched.enforced.processes:
            result["processes"] = limits.processes + _OWN_PROCESSES
        return result

    def _look(self, watch: LimitWatch) -> Ended | None:
        """The limit exceeded now. Raises `AgentLost` when another thread has closed the session, whose pipes may end later."""
        if self._ended is not None:
            raise AgentLost("it was closed meanwhile")
        return watch.look()

    def _ended_by_limit(self) -> bool:
        """Whether it was killed from outside for its memory, or its files, since the last command."""
        before, now = self._counters, self._launched.counters()
        return grew(before.out_of_memory, now.out_of_memory) or grew(before.disk_exceeded, now.disk_exceeded)

    def _lost(self, execution: Execution) -> str:
        """What to tell after a persistent cell that ran in a new interpreter, though it is not the first one."""
        if execution.report is None or not execution.report.flag("persistent"):
            return ""
        self._cells += 1
        return _NEW_PYTHON if execution.report.flag("new") and self._cells > 1 else ""

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """See `Session.quiet`.

        Raises:
            SandboxFailed: the processes could not be stopped.
        """
        self._ask(protocol.FREEZE, protocol.DONE)
        try:
            yield
        finally:
            with contextlib.suppress(SandboxFailed):  # then it is over, as the next use will say
                self._ask(protocol.THAW, protocol.DONE)

    def _ask(self, kind: int, answer: int, timeout_s: float = _REPLY_S) -> None:
        with self._talking():
            channel = self._next_channel()
            self._wire.send(protocol.frame(kind, channel))
            self._wire.answer(channel, frozenset({answer}), timeout_s)

    def adopt(self, directory: Path, cancel: threading.Event | None = None) -> None:
        """See `Session.adopt`. As root, all in `directory` is given to the workspace's owner first: the sandbox's user.

        Raises:
            SandboxFailed: an entry can't be given or moved.
        """
        owner = self.workspace.stat().st_uid
        if os.geteuid() == 0 and owner != 0:
            give_workspace(directory, owner)
        move_entries(directory, self.workspace)
        self.push(cancel)

    def push(self, cancel: threading.Event | None = None) -> None:
        """See `AgentLink.push`.

        Raises:
            SandboxFailed: it can't be read here or written inside; the session is over.
            Cancelled: so is it then.
        """
        if not self._shares_files:
            self._mirror(Mirror.push, cancel)

    def pull(self, cancel: threading.Event | None = None) -> None:
        """See `Session.pull`.

        Raises:
            SandboxFailed: it can't be read inside or written here; the session is over.
            Cancelled: so is it then.
            WorkspaceTooLarge: there is more inside than a workspace may hold.
        """
        if not self._shares_files and self._spec.writable:
            self._mirror(Mirror.pull, cancel)

    def _mirror(self, move: Callable[[Mirror], None], cancel: threading.Event | None) -> None:
        with self._talking():
            try:
                move(Mirror(self._wire, self._next_channel, self.workspace, self._spec.limits, check_of(cancel)))
            except OSError as error:
                raise SandboxFailed(f"The workspace could not be mirrored: {error}.") from error

    def close(self, reason: EndReason = EndReason.DONE, *, keep: Path | None = None) -> None:
        """See `Session.close`.

        Raises:
            SandboxFailed: something of it is still there, or can't be moved to `keep`.
        """
        self._end(reason)  # whoever is in a command now is woken by it
        with self._lock:
            if self._closed:
                return
            self._launched.close()
            self._closed = True
            if keep is not None:
                move_entries(self.workspace, keep)
            self._on_close(self)

    def _end(self, reason: EndReason) -> None:
        with self._state:
            if self._ended is None:
                self._ended = reason
        self._launched.kill()

    def _next_channel(self) -> int:
        self._channel += 1
        return self._channel

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        """Have the agent to oneself; what it does wrong ends the session.

        Raises:
            SandboxFailed: the session is over.
        """
        with self._lock:
            if self._ended is not None:
                raise SandboxFailed(f"The sandbox session is over ({self._ended}).")
            try:
                yield
            except protocol.ProtocolError as error:
                self._end(EndReason.BROKEN)
                raise SandboxFailed(f"The sandbox broke off ({self._ended}): {error}. {self._launched.said()}".strip()) from error
            except WorkspaceTooLarge:
                raise
            except Cancelled:
                self._end(EndReason.CANCELLED)
                raise
            except BaseException:
                self._end(EndReason.BROKEN)  # in the middle of a conversation, nobody could go on with it
                raise


def _path_inside(value: str, inside: str) -> str:
    parts = value.split(":")  # as in PATH
    return ":".join(inside + part[len(WORKSPACE) :] if part == WORKSPACE or part.startswith(f"{WORKSPACE}/") else part for part in parts)
