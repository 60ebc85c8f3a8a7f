"""The agent: starts what the host asks for, passes on what it prints, reports how it ended. One thread, one loop, nothing that blocks."""

from __future__ import annotations

import os
import resource
import select
import signal
import sys

from . import cells, children, interpreter, protocol
from .outputs import Drain
from .processes import Processes
from .protocol import Fields
from .tasks import Forked, Lasting, Task, exit_report
from .wire import Poller, Wire

_NO_USAGE = resource.struct_rusage((0.0, 0.0) + (0,) * 14)


class Agent:
    """Speaks the protocol over two descriptors until the host has gone."""

    def __init__(self, source: int, target: int, *, processes: Processes, workspace: str) -> None:
        self._poller = Poller()
        self._wire = Wire(self._poller, source, target, self._handle)
        self._drain = Drain(self._poller)
        self._processes = processes
        self._workspace = workspace
        self._tasks: dict[int, Task] = {}  # by process
        self._lasting: Lasting | None = None
        self._parts: dict[int, bytearray] = {}
        self._cells = 0
        self._answers = {
            protocol.EXEC: self._exec,
            protocol.CELL: self._cell,
            protocol.STDIN: self._stdin,
            protocol.STDIN_END: self._stdin_end,
            protocol.SIGNAL: self._signal,
            protocol.PING: self._ping,
            protocol.FREEZE: self._freeze,
            protocol.THAW: self._thaw,
        }
        self._wakeup, wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(wakeup, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        self._poller.add(self._wakeup, select.EPOLLIN, self._reap)

    def ready(self, **facts: object) -> None:
        """Tell the host."""
        self._wire.send(protocol.control(protocol.READY, 0, **facts))

    def run(self) -> None:
        """Serve.

        Raises:
            Closed: the host has gone.
            ProtocolError: the host does not keep to the protocol.
            Forked: in each child.
        """
        while True:
            self._poller.turn(self._drain.timeout())
            self._drain.turn()

    def _handle(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == protocol.PART:
            parts = self._parts.setdefault(channel, bytearray())
            parts += payload
            if len(parts) > protocol.MAX_REQUEST:
                raise protocol.ProtocolError("a request is larger than %d" % protocol.MAX_REQUEST)
            return
        if channel in self._parts:
            payload = bytes(self._parts.pop(channel)) + payload
        answer = self._answers.get(kind)
        if answer is None:
            raise protocol.ProtocolError("kind %d is out of place" % kind)
        answer(channel, payload)

    # --- starting -----------------------------------------------------------------------------------------------------

    def _exec(self, channel: int, payload: bytes) -> None:
        fields = Fields(payload)
        argv, env, limits = fields.texts("argv"), fields.mapping("env"), fields.numbers("limits")
        if not argv:
            raise protocol.ProtocolError("a command without a program")

        def job() -> int:
            return children.become(argv, {**os.environ, **env}, self._workspace, limits)

        self._start(channel, job, stdin=fields.flag("stdin"))

    def _cell(self, channel: int, payload: bytes) -> None:
        fields = Fields(payload)
        source, env, limits = fields.text("source"), fields.mapping("env"), fields.numbers("limits")
        self._cells += 1
        number = self._cells
        if fields.flag("persistent"):
            lasting = self._lasting or self._start_lasting(channel)
            if lasting is not None:
                lasting.run(channel, interpreter.request(source, number, limits, env))
            return
        self._start(channel, lambda: cells.run_file(source, number, limits, env, self._workspace), stdin=False)

    def _start(self, channel: int, job: cells.Job, *, stdin: bool) -> None:
        try:
            task = Task(self._poller, self._wire, self._drain, channel, stdin=stdin)
        except OSError as error:
            self._refuse(channel, error)
            return
        try:
            pid = os.fork()
        except OSError as error:
            task.abandon()
            self._refuse(channel, error)
            return
        if pid == 0:
            pipes = task.given
            raise Forked(lambda: self._child(pipes.stdin, pipes.stdout, pipes.stderr, job))
        self._tasks[pid] = task
        task.started()

    def _start_lasting(self, channel: int) -> Lasting | None:
        try:
            lasting = Lasting(self._poller, self._wire, self._drain, self._paused)
        except OSError as error:
            self._refuse(channel, error)
            return None
        try:
            pid = os.fork()
        except OSError as error:
            lasting.abandon()
            self._refuse(channel, error)
            return None
        if pid == 0:
            pipes = lasting.given
            control = lasting.control

            def job() -> int:
                os.chdir(self._workspace)
                cells.become_python()
                return interpreter.serve(self._workspace)

            raise Forked(lambda: self._child(pipes.stdin, pipes.stdout, pipes.stderr, job, control=control))
        self._processes.helpers.add(pid)
        self._lasting = lasting
        lasting.started(pid)
        return lasting

    def _child(self, stdin: int, stdout: int, stderr: int, job: cells.Job, *, control: int = -1) -> int:
        """In a new child: let go of the agent and run `job`, whose exit status it returns."""
        self._poller.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        children.settle(stdin, stdout, stderr, control)
        return job()

    def _refuse(self, channel: int, error: OSError) -> None:
        self._wire.send(protocol.control(protocol.REFUSED, channel, error=str(error), errno=error.errno or 0))

    # --- ending -------------------------------------------------------------------------------------------------------

    def _reap(self, _: int) -> None:
        try:
            while os.read(self._wakeup, 512):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._ended(pid, status, usage)

    def _ended(self, pid: int, status: int, usage: resource.struct_rusage) -> None:
        task = self._tasks.pop(pid, None)
        if task is not None:
            task.finish()
            self._report(task.channel, status, usage)
        elif self._lasting is not None and pid == self._lasting.pid:
            lasting, self._lasting = self._lasting, None
            self._processes.helpers.discard(pid)
            channel, new = lasting.channel, lasting.new
            lasting.finish()
            if channel:
                self._report(channel, status, usage, persistent=True, new=new)

    def _paused(self, lasting: Lasting, status: int) -> None:
        channel, new = lasting.channel, lasting.new
        lasting.pause()
        self._report(channel, status, _NO_USAGE, persistent=True, new=new)

    def _report(self, channel: int, status: int, usage: resource.struct_rusage, *, persistent: bool = False, new: bool = False) -> None:
        report = exit_report(status, usage, self._processes.background(), persistent=persistent, new=new)
        self._wire.send(protocol.control(protocol.EXIT, channel, **report))

    # --- the rest -----------------------------------------------------------------------------------------------------

    def _task(self, channel: int) -> tuple[int, Task] | None:
        for pid, task in self._tasks.items():
            if task.channel == channel:
                return pid, task
        return None

    def _stdin(self, channel: int, payload: bytes) -> None:
        found = self._task(channel)
        if found is not None and found[1].stdin is not None:
            found[1].stdin.add(payload)

    def _stdin_end(self, channel: int, _: bytes) -> None:
        found = self._task(channel)
        if found is not None and found[1].stdin is not None:
            found[1].stdin.end()

    def _signal(self, channel: int, payload: bytes) -> None:
        number = Fields(payload).number("signal", 1, 64)
        found = self._task(channel)
        pid = found[0] if found else self._lasting.pid if self._lasting is not None and self._lasting.channel == channel else 0
        if pid:
            try:
                os.killpg(pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    def _ping(self, channel: int, _: bytes) -> None:
        self._wire.send(protocol.frame(protocol.PONG, channel))

    def _freeze(self, channel: int, _: bytes) -> None:
        self._processes.freeze()
        self._wire.send(protocol.frame(protocol.DONE, channel))

    def _thaw(self, channel: int, _: bytes) -> None:
        self._processes.thaw()
        self._wire.send(protocol.frame(protocol.DONE, channel))


def version() -> str:
    """Of this Python."""
    return "%d.%d.%d" % sys.version_info[:3]
