"""Feed a started process and read it until it ends, a limit is reached, or somebody cancels; memory stays bounded whatever it prints."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Final

from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.port import Ended
from dualtrack.sandbox.streams import FLOOD_FACTOR, Pumped, Stream

_CHUNK: Final = 256 * 1024
_TICK_S: Final = 0.1
_DRAIN_S: Final = 2.0
_DEATH_S: Final = 30.0


class Pump:
    """One process and its three pipes (`process` has all three as unbuffered pipes). Runs in the calling thread."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        stdin: bytes,
        limits: SandboxLimits,
        cancel: threading.Event,
        *,
        kill: Callable[[], None],
        watch: Callable[[], Ended | None] = lambda: None,
    ) -> None:
        """Takes the process.

        Args:
            process: the started process.
            stdin: all of its input.
            limits: wall time and output.
            cancel: set by others to stop it.
            kill: ends the process and all it started; called once at most by `run`, and again harmlessly by the caller.
            watch: looked at about ten times a second; a reason stops the process.
        """
        self._process = process
        self._stdin = memoryview(stdin)
        self._limits = limits
        self._cancel = cancel
        self._kill = kill
        self._watch = watch
        self._stdout = Stream(limits.output_bytes)
        self._stderr = Stream(limits.output_bytes)
        self._selector = selectors.DefaultSelector()

    def run(self) -> Pumped:
        """Until the process has ended and its pipes are empty, or will not get empty (2 s).

        Raises:
            SandboxFailed: when it is still there 30 s after it was killed.
        """
        started = time.monotonic()
        stopped: Ended | None = None
        patience = started
        with self._selector:
            with self._exit_descriptor():
                self._register()
                while not self._ended():
                    self._turn()
                    now = time.monotonic()
                    if stopped is None:
                        stopped = self._reason(now - started)
                        if stopped is not None:
                            self._kill()
                            patience = now + _DEATH_S
                    elif now > patience:
                        raise SandboxFailed(f"The sandbox was still there {_DEATH_S:g} s after it was killed ({stopped}).")
            wall = time.monotonic() - started
            self._kill()  # what it left in the background
            deadline = time.monotonic() + _DRAIN_S
            while self._selector.get_map() and time.monotonic() < deadline:
                self._turn()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        return Pumped(stopped, self._stdout, self._stderr, wall)

    def _reason(self, elapsed: float) -> Ended | None:
        if self._cancel.is_set():
            return Ended.CANCELLED
        if elapsed >= self._limits.wall_time_s:
            return Ended.WALL_TIME
        if self._stdout.total + self._stderr.total > FLOOD_FACTOR * self._limits.output_bytes:
            return Ended.OUTPUT
        return self._watch()

    @contextlib.contextmanager
    def _exit_descriptor(self) -> Iterator[None]:
        """Make the process's end wake the selector at once, where the system can (Linux)."""
        if not hasattr(os, "pidfd_open"):
            yield
            return
        descriptor = os.pidfd_open(self._process.pid)
        try:
            self._selector.register(descriptor, selectors.EVENT_READ, self._take_end)
            yield
        finally:
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
            os.close(descriptor)

    def _ended(self) -> bool:
        return self._process.poll() is not None

    def _take_end(self) -> None:
        self._process.wait()

    def _register(self) -> None:
        process = self._process
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ValueError("The process must have all three pipes.")
        for pipe, stream in ((process.stdout, self._stdout), (process.stderr, self._stderr)):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, partial(self._read, pipe, stream))
        if self._stdin:
            os.set_blocking(process.stdin.fileno(), False)
            self._selector.register(process.stdin, selectors.EVENT_WRITE, partial(self._write, process.stdin))
        else:
            process.stdin.close()

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TICK_S):
            key.data()

    def _read(self, pipe: IO[bytes], stream: Stream) -> None:
        try:
            data = os.read(pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return
        if data:
            stream.add(data)
        else:
            self._selector.unregister(pipe)

    def _write(self, pipe: IO[bytes]) -> None:
        try:
            self._stdin = self._stdin[os.write(pipe.fileno(), self._stdin[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._stdin = self._stdin[:0]
        if not self._stdin:
            self._selector.unregister(pipe)
            pipe.close()
