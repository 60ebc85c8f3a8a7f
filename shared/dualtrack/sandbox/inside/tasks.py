"""What is under way: the pipes of a command or an interpreter from the agent's side, and the report at its end."""

from __future__ import annotations

import os
import select
import socket

from . import interpreter, protocol
from .outputs import Drain, Output
from .wire import Feeder, Poller, Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from resource import struct_rusage

    Job = Callable[[], int]

_MICRO = 1_000_000


class Forked(BaseException):
    """Raised in a new child to leave the agent's loop: nothing of that is on the stack when `job` runs, which gives the exit status."""

    def __init__(self, job: Job) -> None:
        self.job = job


def exit_report(status: int, usage: struct_rusage, background: int, *, persistent: bool, new: bool) -> dict[str, object]:
    """The fields of an EXIT frame: the wait status and what the kernel counted of the process and the children it waited for."""
    return {
        "status": status,
        "user_us": int(usage.ru_utime * _MICRO),
        "system_us": int(usage.ru_stime * _MICRO),
        "max_rss_kib": usage.ru_maxrss,
        "background": background,
        "persistent": persistent,
        "new": new,
    }


class Pipes:
    """The ends that a child gets (`stdin`, `stdout`, `stderr`) and the agent's (`*_end`)."""

    def __init__(self, *, stdin: bool) -> None:
        """`stdin`: it gets input, else it is at its end.

        Raises:
            OSError: no more descriptors.
        """
        self._opened: list[int] = []
        try:
            if stdin:
                self.stdin, self.stdin_end = self._kept(os.pipe())
            else:
                self.stdin, self.stdin_end = self._kept((os.open(os.devnull, os.O_RDONLY),))[0], -1
            self.stdout_end, self.stdout = self._kept(os.pipe())
            self.stderr_end, self.stderr = self._kept(os.pipe())
        except OSError:
            for descriptor in self._opened:
                os.close(descriptor)
            raise

    def _kept(self, descriptors: tuple[int, ...]) -> tuple[int, ...]:
        self._opened += descriptors
        return descriptors

    def close(self) -> None:
        """Close the child's ends."""
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.close(descriptor)


class Outputs:
    """Stdout and stderr of one process: sent while a command runs, else drained."""

    def __init__(self, poller: Poller, wire: Wire, drain: Drain, pipes: Pipes) -> None:
        self._drain = drain
        self._both = (Output(poller, wire, pipes.stdout_end, protocol.STDOUT), Output(poller, wire, pipes.stderr_end, protocol.STDERR))

    def drain(self, *, lasting: bool) -> None:
        """Nobody wants them now; `lasting`: but may do so again."""
        for output in self._both:
            self._drain.remove(output)
            self._drain.add(output, lasting=lasting)

    def open(self, channel: int) -> None:
        """Send them to `channel`."""
        for output in self._both:
            self._drain.remove(output)
            output.open(channel)

    def finish(self, *, lasting: bool) -> None:
        """Send what was written until now, and nothing that comes later: background processes may write on."""
        for output in self._both:
            output.finish()
        self.drain(lasting=lasting)

    def close(self) -> None:
        """Close them."""
        for output in self._both:
            output.close()


class Task:
    """One command."""

    def __init__(self, poller: Poller, wire: Wire, drain: Drain, channel: int, *, stdin: bool) -> None:
        """Makes its pipes; `stdin`: it gets input.

        Raises:
            OSError: no more descriptors.
        """
        self.channel = channel
        self.pipes = Pipes(stdin=stdin)
        self._outputs = Outputs(poller, wire, drain, self.pipes)
        self.stdin: Feeder | None = None
        if stdin:
            self.stdin = Feeder(
                poller, self.pipes.stdin_end, lambda count: wire.send(protocol.control(protocol.TAKEN, channel, bytes=count))
            )

    def started(self) -> None:
        """Its process has its ends of the pipes."""
        self.pipes.close()
        self._outputs.open(self.channel)

    def finish(self) -> None:
        """Its process has ended."""
        self._outputs.finish(lasting=False)
        if self.stdin is not None:
            self.stdin.close()

    def abandon(self) -> None:
        """It could not be started."""
        self.pipes.close()
        self._outputs.close()
        if self.stdin is not None:
            self.stdin.close()


class Interpreter:
    """A child of the preloaded interpreter that waits for cells: forked ahead of the first, so that a cell starts at once."""

    def __init__(self, poller: Poller, wire: Wire, drain: Drain, paused: Callable[[Interpreter, int], None]) -> None:
        """Makes its pipes; `paused` is told the wait status of a persistent cell after which it goes on.

        Raises:
            OSError: no more descriptors.
        """
        self.pid = 0
        self.channel = 0
        """Of the cell it runs; 0: none."""
        self.persistent = False
        self.ran = 0
        """Cells before the one that it runs."""
        self._poller = poller
        self._paused = paused
        self.pipes = Pipes(stdin=False)
        self._outputs = Outputs(poller, wire, drain, self.pipes)
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            self.pipes.close()
            self._outputs.close()
            raise
        self.control = theirs.detach()
        """The child's end of the socket by which it is asked."""
        self._answers = os.dup(ours.fileno())  # the two ways are watched by themselves
        self._requests = Feeder(poller, ours.detach())

    def started(self, pid: int) -> None:
        """Its process has its ends."""
        self.pid = pid
        self.pipes.close()
        os.close(self.control)
        self._poller.add(self._answers, select.EPOLLIN, self._answer)
        self._outputs.drain(lasting=True)

    def run(self, channel: int, request: bytes, *, persistent: bool) -> None:
        """Run a cell."""
        self.channel = channel
        self.persistent = persistent
        self._outputs.open(channel)
        self._requests.add(request)

    def _answer(self, _: int) -> None:
        try:
            data = os.read(self._answers, 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # how it ends is told by its wait status
            self._poller.remove(self._answers)
        elif self.channel and self.persistent:
            self._paused(self, 0 if data == interpreter.DONE else 1 << 8)

    def pause(self) -> None:
        """The cell has ended, the interpreter goes on."""
        self.channel = 0
        self.ran += 1
        self._outputs.finish(lasting=True)

    def finish(self) -> None:
        """The interpreter has ended."""
        if self.channel:
            self.pause()
        self._outputs.drain(lasting=False)
        self._poller.remove(self._answers)
        os.close(self._answers)
        self._requests.close()

    def abandon(self) -> None:
        """It could not be started."""
        self.pipes.close()
        os.close(self.control)
        os.close(self._answers)
        self._outputs.close()
        self._requests.close()
