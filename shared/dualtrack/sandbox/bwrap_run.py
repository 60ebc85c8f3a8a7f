"""One bubblewrap process, from its start to the certainty that nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Final, Self

from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.bwrap_options import Descriptors, options
from dualtrack.sandbox.bwrap_sandbox import Setup
from dualtrack.sandbox.port import Command
from dualtrack.sandbox.rlimits import limited
from dualtrack.sandbox.rung import LaunchSpec
from dualtrack.sandbox.sandbox_group import SandboxGroup
from dualtrack.sandbox.system_view import GROUP, PASSWD

_NAME: Final = "sandbox"
_START_S: Final = 20.0  # from exec to a built sandbox: milliseconds, unless the machine is overloaded
_GONE_S: Final = 10.0
_STATUS_BYTES: Final = 64 * 1024
_MESSAGE_BYTES: Final = 2000


class BwrapRun:
    """Use as a context manager: on leaving, its processes are dead and its descriptors closed, whatever happened."""

    def __init__(self, setup: Setup, command: Command, workspace: Path, limits: SandboxLimits) -> None:
        self._setup = setup
        self._command = command
        self._workspace = workspace
        self._limits = limits
        self._kept = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._init: int | None = None
        """pidfd of the sandbox's init: when it has ended, so has every process in the sandbox."""
        self._status = -1

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The bubblewrap process outside; exists after `start`."""
        if self._process is None:
            raise SandboxFailed("The sandbox was not started.")
        return self._process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._kept:
            if self._process is not None:
                self.kill()
                self.wait_gone()
                for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                    if pipe is not None:
                        pipe.close()

    def start(self, group: SandboxGroup) -> None:
        """Build the sandbox, put it into its control groups, let the command go.

        Raises:
            SandboxFailed: when bubblewrap ended, or did not get ready in time.
            OSError: when it can't be started.
        """
        self._status, status = _pipe(self._kept, keep=0)
        block, release = _pipe(self._kept, keep=1)
        with contextlib.ExitStack() as given:  # what bubblewrap inherits; closed here once it runs
            given.callback(os.close, status)
            given.callback(os.close, block)
            descriptors = Descriptors(_file(given, PASSWD), _file(given, GROUP), _file(given, self._setup.seccomp), status, block)
            self._process = self._spawn(given, descriptors)
        self._init = os.pidfd_open(self._await_init())
        self._kept.callback(os.close, self._init)
        group.add(self._child)
        os.write(release, b"1")

    def _spawn(self, given: contextlib.ExitStack, descriptors: Descriptors) -> subprocess.Popen[bytes]:
        setup = self._setup
        spec = LaunchSpec(self._workspace.resolve(), self._limits, environment=self._command.env, writable=self._command.writable)
        listed = options(setup.variant, setup.interpreter, spec, descriptors)
        arguments = _file(given, b"".join(os.fsencode(option) + b"\0" for option in listed))
        argv = limited(self._command.argv, self._limits, address_space=setup.cgroups.memory is None, processes=setup.cgroups.pids is None)
        drop: dict[str, Any] = {} if setup.uid is None else {"user": setup.uid, "group": setup.uid, "extra_groups": []}
        return subprocess.Popen(
            # The sandbox's init keeps this command line, for all in it to read: it names nothing of the host.
            [_NAME, "--args", str(arguments), "--", *argv],
            executable=setup.binary,
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=(descriptors.passwd, descriptors.group, descriptors.seccomp, descriptors.status, descriptors.block or -1, arguments),
            start_new_session=True,  # Ctrl-C at the worker's terminal is the worker's business
            cwd="/",
            umask=0o022,
            **drop,
        )

    def _await_init(self) -> int:
        """Process number of the sandbox's init, as bubblewrap reports it."""
        deadline = time.monotonic() + _START_S
        report = b""
        while b"\n" not in report:
            ready, _, _ = select.select([self._status], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._status, _STATUS_BYTES) if ready else b""
            if not data:
                raise SandboxFailed(f"bubblewrap {'ended' if ready else f'was not ready after {_START_S:g} s'}: {self._said()}")
            report += data
        self._child = int(json.loads(report.splitlines()[0])["child-pid"])
        return self._child

    def _said(self) -> str:
        """What bubblewrap wrote to stderr, once it is dead."""
        self.process.kill()
        self.process.wait(_GONE_S)
        text = os.read(self.process.stderr.fileno(), _MESSAGE_BYTES) if self.process.stderr else b""
        return text.decode(errors="replace").strip() or "no message"

    def kill(self) -> None:
        """End every process in the sandbox; may be called again."""
        if self._init is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
        else:
            self.process.kill()

    def wait_gone(self) -> None:
        """Until every process in the sandbox has ended.

        Raises:
            SandboxFailed: when one still lives after 10 s.
        """
        if self._init is not None and not select.select([self._init], [], [], _GONE_S)[0]:
            raise SandboxFailed(f"Processes in the sandbox were still there {_GONE_S:g} s after they were killed.")
        try:
            self.process.wait(_GONE_S)
        except subprocess.TimeoutExpired as error:
            raise SandboxFailed(f"bubblewrap was still there {_GONE_S:g} s after its sandbox ended.") from error

    def exit_code(self) -> int | None:
        """The command's exit status; None when it has none (killed, or never started). Only after `wait_gone`."""
        report = b""
        while data := os.read(self._status, _STATUS_BYTES):
            report += data
        for line in report.splitlines():
            status = json.loads(line)
            if "exit-code" in status:
                return int(status["exit-code"])
        return None


def _pipe(kept: contextlib.ExitStack, *, keep: int) -> tuple[int, int]:
    """A pipe's two ends; end number `keep` is closed with `kept`, the other one by the caller."""
    ends = os.pipe()
    kept.callback(os.close, ends[keep])
    return ends


def _file(given: contextlib.ExitStack, content: bytes) -> int:
    """An anonymous file at its beginning."""
    descriptor = os.memfd_create("dualtrack", os.MFD_CLOEXEC)
    given.callback(os.close, descriptor)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
