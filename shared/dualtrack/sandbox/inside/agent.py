"""The agent: starts what the host asks for, passes on what it prints, reports how it ended. One thread, one loop, nothing that blocks."""

from __future__ import annotations

import os
import resource
import select
import signal
import sys

from . import children, commands, interpreter, protocol
from .files import Files
from .outputs import Drain
from .processes import Processes
from .protocol import Fields
from .tasks import Forked, Interpreter, Pipes, Task, exit_report
from .wire import Feeder, Poller, Wire

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
        self._interpreters: dict[int, Interpreter] = {}  # by process
        self._spare: Interpreter | None = None
        self._lasting: Interpreter | None = None
        """The one of the persistent cells."""
        self._parts: dict[int, bytearray] = {}
        self._cells = 1
        files = Files(self._wire)
        self._answers = {
            protocol.EXEC: self._exec,
            protocol.CELL: self._cell,
            protocol.STDIN: self._stdin,
            protocol.STDIN_END: self._stdin_end,
            protocol.SIGNAL: self._signal,
            protocol.PING: self._ping,
            protocol.FREEZE: self._freeze,
            protocol.THAW: self._thaw,
            protocol.LIST: files.list,
            protocol.GET: files.get,
            protocol.PUT: files.put,
            protocol.DATA: files.data,
            protocol.DATA_END: files.data_end,
            protocol.REMOVE: files.remove,
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
        try:
            task = Task(self._poller, self._wire, self._drain, channel, stdin=fields.flag("stdin"))
        except OSError as error:
            self._refuse(channel, error)
            return
        pipes = task.pipes
        try:
            pid = commands.spawn(argv, {**os.environ, **env}, pipes.stdin, pipes.stdout, pipes.stderr, limits)
        except OSError as error:
            task.abandon()
            self._refuse(channel, error)
            return
        self._tasks[pid] = task
        task.started()

    def _cell(self, channel: int, payload: bytes) -> None:
        fields = Fields(payload)
        persistent = fields.flag("persistent")
        request = interpreter.request(
            fields.text("source"), self._cells, fields.numbers("limits"), fields.mapping("env"), persistent=persistent
        )
        self._cells += 1
        self._reap(0)  # what has ended is not to be given anything
        chosen = self._lasting if persistent else None
        if chosen is None:
            try:
                chosen = self._spare or self._fork()
            except OSError as error:
                self._refuse(channel, error)
                return
            self._spare = None
            if persistent:
                self._lasting = chosen
            else:
                self._processes.helpers.discard(chosen.pid)
        os.kill(chosen.pid, signal.SIGCONT)  # a command may have stopped all it could
        chosen.run(channel, request, persistent=persistent)

    def prepare(self) -> None:
        """Have an interpreter wait for the next cell, so that it finds one warm.

        Raises:
            Forked: in the new child.
        """
        if self._spare is None:
            try:
                self._spare = self._fork()
            except OSError:  # no room for it now: it is made when it is needed
                pass

    def _fork(self) -> Interpreter:
        new = Interpreter(self._poller, self._wire, self._drain, self._paused)
        try:
            pid = os.fork()
        except OSError:
            new.abandon()
            raise
        if pid == 0:
            raise Forked(lambda: self._child(new.pipes, new.control))
        new.started(pid)
        self._processes.helpers.add(pid)
        self._interpreters[pid] = new
        return new

    def _child(self, pipes: Pipes, control: int) -> int:
        """In a new child: let go of the agent, and wait for cells."""
        self._poller.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        children.settle(pipes.stdin, pipes.stdout, pipes.stderr, control)
        return interpreter.serve(self._workspace)

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
            return
        ended = self._interpreters.pop(pid, None)
        if ended is None:
            return  # an orphan that became ours
        self._processes.helpers.discard(pid)
        if ended is self._spare:
            self._spare = None
        if ended is self._lasting:
            self._lasting = None
        channel = ended.channel
        ended.finish()
        if channel:
            self._report(channel, status, usage, persistent=ended.persistent, new=ended.ran == 1)
            self.prepare()

    def _paused(self, paused: Interpreter, status: int) -> None:
        channel = paused.channel
        paused.pause()
        self._report(channel, status, _NO_USAGE, persistent=True, new=paused.ran == 1)
        self.prepare()

    def _report(self, channel: int, status: int, usage: resource.struct_rusage, *, persistent: bool = False, new: bool = False) -> None:
        report = exit_report(status, usage, self._processes.background(), persistent=persistent, new=new)
        self._wire.send(protocol.control(protocol.EXIT, channel, **report))

    # --- the rest -----------------------------------------------------------------------------------------------------

    def _input(self, channel: int) -> Feeder | None:
        """Of a command that still runs."""
        return next((task.stdin for task in self._tasks.values() if task.channel == channel), None)

    def _stdin(self, channel: int, payload: bytes) -> None:
        found = self._input(channel)
        if found is not None:
            found.add(payload)

    def _stdin_end(self, channel: int, _: bytes) -> None:
        found = self._input(channel)
        if found is not None:
            found.end()

    def _signal(self, channel: int, payload: bytes) -> None:
        number = Fields(payload).number("signal", 1, 64)
        running = [pid for pid, task in self._tasks.items() if task.channel == channel]
        running += [pid for pid, one in self._interpreters.items() if one.channel == channel]
        for pid in running:
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
