"""The in-sandbox agent as a plain child process, isolated from nothing: for tests of all that is above a rung. No rung of the product."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from dualtrack.domain.errors import SandboxFailed
from dualtrack.sandbox.bundle import write_agent
from dualtrack.sandbox.rung import Counters, Enforced, LaunchSpec, RungName, RungReport
from dualtrack.sandbox.session import AgentSession

PYTHON: Final = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or "python3"
_GONE_S: Final = 60.0
READY_S: Final = 60.0


class BareLaunched:
    """`Launched` without isolation: its processes are found by a variable in their environment, and killed one by one."""

    enforced = Enforced(memory=False, processes=False)
    own_processes = False
    scratch: Path | None = None

    def __init__(self, spec: LaunchSpec, agent: Path, *, shares_files: bool) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="dualtrack-bare-"))
        workspace = spec.workspace if shares_files else self._scratch / "workspace"
        workspace.mkdir(exist_ok=True)
        self.inside = str(workspace)
        self._mark = f"DUALTRACK_BARE={self._scratch.name}".encode()
        self._said = (self._scratch / "said").open("w+b")
        (self._scratch / "tmp").mkdir()
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": self.inside,
            "LANG": "C.UTF-8",
            "TMPDIR": str(self._scratch / "tmp"),
            "DUALTRACK_BARE": self._scratch.name,
            **spec.environment,
        }
        self._process = subprocess.Popen(
            [PYTHON, "-I", "-B", str(agent)],
            env=environment,
            cwd=workspace,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,
            start_new_session=True,
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("both are pipes")
        self.input = self._process.stdin.fileno()
        self.output = self._process.stdout.fileno()
        self.agent_pid = self._process.pid
        self.counted = Counters()
        """What `counters` says; tests set it."""

    def counters(self) -> Counters:
        return self.counted

    def said(self) -> str:
        return os.pread(self._said.fileno(), 2000, 0).decode(errors="replace").strip() if not self._said.closed else ""

    def kill(self) -> None:
        deadline = time.monotonic() + _GONE_S
        while time.monotonic() < deadline:  # a process that forks meanwhile is found the next time
            found = self._processes()
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not found:
                return
            time.sleep(0.002)

    def _processes(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):
                if self._mark in (path / "environ").read_bytes().split(b"\0") and (path / "stat").read_text().rpartition(") ")[2][0] != "Z":
                    found.append(int(path.name))
        if self._process.poll() is None:
            found.append(self._process.pid)
        return found

    def close(self) -> None:
        self.kill()
        try:
            self._process.wait(_GONE_S)
        except subprocess.TimeoutExpired as error:
            raise SandboxFailed("The bare agent was still there after it was killed.") from error
        for file in (self._process.stdin, self._process.stdout, self._said):
            if file is not None:
                file.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


class BareRung:
    """`Rung` for tests. Use as a context manager, which removes the agent's directory."""

    name = RungName.LANDLOCK  # there is no name for none

    def __init__(self, *, shares_files: bool = True) -> None:
        self.shares_files = shares_files
        self._directory = tempfile.TemporaryDirectory(prefix="dualtrack-agent-")
        self._agent = write_agent(Path(self._directory.name) / "agent")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()

    def probe(self) -> RungReport:
        found: Mapping[str, str] = {"python": PYTHON}
        return RungReport(self.name, True, "none: for tests", found)

    def launch(self, spec: LaunchSpec) -> BareLaunched:
        return BareLaunched(spec, self._agent, shares_files=self.shares_files)

    def sweep(self) -> Sequence[str]:
        return ()

    def session(self, spec: LaunchSpec, name: str = "bare") -> AgentSession:
        """A session that is ready."""
        session = AgentSession(self.launch(spec), spec, name, shares_files=self.shares_files)
        try:
            session.wait_ready(READY_S)
        except BaseException:
            session.close()
            raise
        return session
