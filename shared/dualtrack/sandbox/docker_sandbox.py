"""One container, from its start to the certainty that nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxFailed
from dualtrack.sandbox.access import strip_setid
from dualtrack.sandbox.cgroups import groups_of
from dualtrack.sandbox.docker_command import complaint, docker, inspect, remove
from dualtrack.sandbox.docker_options import Image, create_options
from dualtrack.sandbox.group_counters import read_counters
from dualtrack.sandbox.rung import WORKSPACE, Counters, LaunchSpec

_GONE_S: Final = 10.0
_SAID_BYTES: Final = 2000


@dataclass(frozen=True, slots=True)
class Groups:
    """The control groups of a container, where they can be seen from here."""

    memory: Path | None
    pids: Path | None
    cpu: Path | None

    def there(self) -> bool:
        """Whether the container still has them."""
        return any(path is not None and path.is_dir() for path in (self.memory, self.pids, self.cpu))


class DockerSandbox:
    """`rung.Launched` by a container, whose first process is the agent."""

    own_processes = True
    inside: str = WORKSPACE
    scratch: Path | None = None

    def __init__(self, image: Image, spec: LaunchSpec, argv: Sequence[str], labels: Mapping[str, str]) -> None:
        """Start `argv` in a container.

        Args:
            image: what it is made of.
            spec: its workspace, limits, all that is mounted, and environment.
            argv: the program, looked up on the image's PATH.
            labels: tell whose it is.

        Raises:
            SandboxFailed: the engine did not create it. Nothing is left then.
        """
        self.enforced = image.enforced
        self._counts_processes = not image.own_kernel
        self._workspace = spec.workspace if spec.writable and image.seccomp is None else None
        self._lock = threading.Lock()
        self._killer: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._said = b""
        self._groups: Groups | None = None
        self._sought = False
        self._last = Counters()
        try:
            done = docker("container", "create", *create_options(image, spec, argv, labels))
        except ValueError as error:
            raise SandboxFailed(str(error)) from error
        if done.returncode != 0:
            raise SandboxFailed(f"Docker did not create the sandbox's container: {complaint(done)}")
        self._container = done.stdout.decode().strip()
        try:
            self._client = subprocess.Popen(
                ["docker", "container", "start", "--attach", "--interactive", self._container],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # Ctrl-C at the executor's terminal is the executor's business
            )
        except BaseException as error:
            remove(self._container)
            if isinstance(error, OSError):
                raise SandboxFailed(f"The docker command can't be run: {error}.") from error
            raise
        if self._client.stdin is None or self._client.stdout is None or self._client.stderr is None:
            raise AssertionError("all three are pipes")
        self.input = self._client.stdin.fileno()
        self.output = self._client.stdout.fileno()
        os.set_blocking(self._client.stderr.fileno(), False)

    def counters(self) -> Counters:
        """See `Launched.counters`. Where the engine is on another machine, only kills for memory are known, and only after the end."""
        with self._lock:
            if self._closed:
                return self._last
            self._find_groups()
            if not self._read_groups() and self._client.poll() is not None and not self._last.out_of_memory:
                state = inspect(self._container)
                if state is not None and not state["Running"]:
                    self._last = replace(self._last, out_of_memory=int(state["OOMKilled"]))
            return self._last

    def _read_groups(self) -> bool:
        """Whether the container still has them, here."""
        if self._groups is None or not self._groups.there():
            return False
        found = read_counters(self._groups.memory, self._groups.pids, self._groups.cpu)
        if found != Counters():  # else it has just ended
            self._last = found if self._counts_processes else replace(found, forks_refused=None)
        return True

    def _find_groups(self) -> None:
        """Found once, when the container runs: the engine tells its first process's number, which may mean nothing here."""
        if not self._sought:
            state = inspect(self._container)
            if state is not None and state["Running"]:
                self._sought = True
                found = groups_of(int(state["Pid"]))
                if any(self._container in str(path) for path in found.values()):
                    both = found.get("")
                    self._groups = Groups(found.get("memory", both), found.get("pids", both), found.get("cpuacct", both))

    def said(self) -> str:
        """The end of what the docker command has printed so far, and the agent before it was ready."""
        with self._lock:
            if not self._closed:
                self._read_errors()
        return self._said.decode(errors="replace").strip()

    def _read_errors(self) -> None:
        if self._client.stderr is not None:
            while data := self._client.stderr.read(_SAID_BYTES):
                self._said = (self._said + data)[-_SAID_BYTES:]

    def wait_ended(self, patience_s: float) -> bool:
        """Whether it has ended by then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._client.wait(patience_s)
            return True
        return False

    def kill(self) -> None:
        """See `Launched.kill`. Does not wait for the engine (some 50 ms)."""
        with self._lock:
            if not self._closed and self._killer is None and self._client.poll() is None:
                self._client.kill()  # the engine ends a container only once its output is read, or nobody is left to read it
                null = subprocess.DEVNULL
                command = ["docker", "container", "kill", self._container]
                with contextlib.suppress(OSError):  # then `close` says so
                    self._killer = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)

    def close(self) -> None:
        """See `Launched.close`."""
        with self._lock:
            if self._closed:
                return
            self._read_groups()
            self._read_errors()
            self._client.kill()  # see `kill`
            problem = remove(self._container)
            for process in (self._client, self._killer):
                if process is not None:
                    process.wait(_GONE_S)
            for pipe in (self._client.stdin, self._client.stdout, self._client.stderr):
                if pipe is not None:
                    pipe.close()
            if problem:
                raise SandboxFailed(f"The sandbox's container {self._container[:12]} can't be removed: {problem}")
            self._closed = True
            if self._workspace is not None:
                strip_setid(self._workspace)
