"""Starts programs from a small process of its own, the spawner, rather than from this one, and therefore quickly and safely.

* `fork` copies the page tables of an executor (20 ms and more), and `vfork` can't be used where the user is changed. The spawner is small
  and the unprivileged user already; it starts a program in about a millisecond.
* bubblewrap's `--die-with-parent` follows the thread that started it. The spawner has one thread, and ends when this process does,
  whatever way that is; so sandboxes may be asked for by any thread, however short-lived.
* What it starts has nothing of this process: no environment, no descriptor, no memory.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxFailed
from dualtrack.sandbox import spawner_child

_ANSWER_S: Final = 20.0  # a millisecond, unless the machine is overloaded
_END_S: Final = 10.0
_PROGRAM: Final = Path(spawner_child.__file__)


@dataclass(frozen=True, slots=True)
class Spawned:
    """A started program: a child of the spawner, which reaps it."""

    pid: int
    pidfd: int
    """Readable once it has ended. The receiver closes it."""


@cache
def spawner_for(uid: int | None) -> Spawner:
    """This process's spawner of programs that run as `uid` (None: the present user). It is ended at this process's exit at the latest."""
    spawner = Spawner(uid)
    atexit.register(spawner.close)
    return spawner


class Spawner:
    """One spawner process (share it: `spawner_for`), started at the first call, and again if it has ended. Thread-safe.

    A process that was forked from this one gets its own.
    """

    def __init__(self, uid: int | None) -> None:
        """Takes the user (and group) that programs run as; None: the present one."""
        self._uid = uid
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._owner = 0

    def spawn(self, executable: Path, argv: Sequence[str], descriptors: Sequence[int]) -> Spawned:
        """Start a program with an empty environment in `/`.

        Args:
            executable: its file.
            argv: its arguments, the name it is shown under first.
            descriptors: what it gets as descriptors 0, 1, 2 and so on, and no others; the caller keeps its own copies.

        Raises:
            SandboxFailed: it can't be started.
        """
        message = json.dumps({"executable": str(executable), "argv": list(argv)}).encode()
        if len(message) > spawner_child.MESSAGE_BYTES or len(descriptors) > spawner_child.MAX_DESCRIPTORS:
            raise ValueError("Too many arguments or descriptors for the spawner.")
        with self._lock:
            try:
                reply, received = self._ask(message, descriptors)
            except OSError as error:
                self._end()
                raise SandboxFailed(f"The process that starts sandboxes does not answer: {error}.") from error
        answer = json.loads(reply)
        if "error" in answer:
            raise SandboxFailed(f"{executable} could not be started: {answer['error']}.")
        return Spawned(answer["pid"], received[0])

    def close(self) -> None:
        """End the spawner process, and with it everything that it has started and that dies with its parent."""
        with self._lock:
            self._end()

    def _ask(self, message: bytes, descriptors: Sequence[int]) -> tuple[bytes, list[int]]:
        channel = self._connected()
        socket.send_fds(channel, [message], descriptors)
        reply, received = spawner_child.receive(channel)
        if not reply:
            raise ConnectionResetError("it ended")
        return reply, received

    def _connected(self) -> socket.socket:
        if self._channel is not None and self._process is not None:
            if self._owner == os.getpid() and self._process.poll() is None:
                return self._channel
            self._end()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            uid = -1 if self._uid is None else self._uid
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_PROGRAM), str(os.getpid()), str(uid)],
                    env={},
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    umask=0o022,
                    start_new_session=True,  # Ctrl-C at the executor's terminal is the executor's business
                )
            except BaseException:
                ours.close()
                raise
        ours.settimeout(_ANSWER_S)
        self._channel, self._owner = ours, os.getpid()
        return ours

    def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None and self._owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait(_END_S)
        self._process = None
