"""Commands and cells that are under way: their process, their pipes, and the report at their end."""

from __future__ import annotations

import os
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


class Task:
    """One command or fresh cell."""

    def __init__(self, poller: Poller, wire: Wire, drain: Drain, channel: int, *, stdin: bool) -> None:
        """Makes its pipes; `stdin`: it gets input, else it is at its end.

        Raises:
            OSError: no more descriptors.
        """
        self.channel = channel
        self._drain = drain
        self.given = Pipes(stdin=stdin)
        self.outputs = [
            Output(poller, wire, self.given.stdout_end, protocol.STDOUT),
            Output(poller, wire, self.given.stderr_end, protocol.STDERR),
        ]
        self.stdin: Feeder | None = None
        if self.given.stdin_end >= 0:
            self.stdin = Feeder(
                poller, self.given.stdin_end, lambda count: wire.send(protocol.control(protocol.TAKEN, channel, bytes=count))
            )

    def started(self) -> None:
        """In the agent, once the child has its ends of the pipes."""
        self.given.close()
        for output in self.outputs:
            output.open(self.channel)

    def finish(self) -> None:
        """The process has ended: send what it wrote; background processes may write on."""
        for output in self.outputs:
            output.finish()
            descriptor = output.detach()
            if descriptor >= 0:
                self._drain.add(descriptor)
        if self.stdin is not None:
            self.stdin.close()

    def abandon(self) -> None:
        """It could not be started."""
        self.given.close()
        for output in self.outputs:
            output.close()
        if self.stdin is not None:
            self.stdin.close()


class Pipes:
    """The ends that a child gets (`stdin`, `stdout`, `stderr`) and the agent's (`*_end`)."""

    def __init__(self, *, stdin: bool) -> None:
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


class Lasting:
    """The interpreter of persistent cells, from the agent's side."""

    def __init__(self, poller: Poller, wire: Wire, drain: Drain, ended: Callable[[Lasting, int], None]) -> None:
        """Makes its pipes; `ended` is told the wait status of a cell after which the interpreter goes on.

        Raises:
            OSError: no more descriptors.
        """
        self.channel = 0
        self.pid = 0
        self.new = True
        self._drain = drain
        self._ended = ended
        self.given = Pipes(stdin=False)
        self.outputs = [
            Output(poller, wire, self.given.stdout_end, protocol.STDOUT),
            Output(poller, wire, self.given.stderr_end, protocol.STDERR),
        ]
        ours, theirs = socket.socketpair()
        self._answers = os.dup(ours.fileno())
        self._requests = Feeder(poller, ours.detach())
        self.control = theirs.detach()
        self._poller = poller

    def started(self, pid: int) -> None:
        """In the agent, once the child has its ends."""
        self.pid = pid
        self.given.close()
        os.close(self.control)
        self._poller.add(self._answers, 1, self._answer)  # EPOLLIN
        for output in self.outputs:
            self._drain.add(output.descriptor)

    def run(self, channel: int, request: bytes) -> None:
        """Run a cell."""
        self.channel = channel
        for output in self.outputs:
            if output.descriptor >= 0:
                output.descriptor = output.descriptor if self._drain.take(output.descriptor) else -1
            output.open(channel)
        self._requests.add(request)

    def _answer(self, _: int) -> None:
        try:
            data = os.read(self._answers, 1)
        except BlockingIOError:
            return
        if not data:  # its end is told by its wait status
            self._poller.remove(self._answers)
            return
        if self.channel:
            self._ended(self, 0 if data == interpreter.DONE else 1 << 8)

    def pause(self) -> None:
        """The cell has ended, the interpreter goes on."""
        self.channel = 0
        self.new = False
        for output in self.outputs:
            output.finish()
            if output.descriptor >= 0:
                self._drain.add(output.descriptor)

    def finish(self) -> None:
        """The interpreter has ended."""
        if self.channel:
            self.pause()
        for output in self.outputs:
            output.descriptor = -1  # drained until its last writer has gone
        self._requests.close()
        self._poller.remove(self._answers)
        os.close(self._answers)

    def abandon(self) -> None:
        """It could not be started."""
        self.given.close()
        os.close(self.control)
        os.close(self._answers)
        self._requests.close()
        for output in self.outputs:
            output.close()
