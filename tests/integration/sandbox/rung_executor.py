"""Stands for an executor that is killed while its sandboxes are at work. Arguments: rung, workspaces, stand-in, its marker."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from dualtrack.domain.limits import MIB, SandboxLimits
from dualtrack.objects.process_dir import ProcessDirectory
from dualtrack.sandbox.docker import DockerRung
from dualtrack.sandbox.gvisor import GvisorRung
from dualtrack.sandbox.rung import AgentProgram, LaunchSpec, Mount
from dualtrack.settings import SandboxSettings

RUNGS = {"docker": DockerRung, "gvisor": GvisorRung}
TARGET = "/run/dualtrack/standin"
MISCHIEF = (
    b"import os, signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; "
    b"os.fork() or (os.setsid(), time.sleep(1000)); print('at work', flush=True); time.sleep(1000)\n"
)


def main() -> None:
    kind, workspaces, source, marker = sys.argv[1:]
    agent = AgentProgram(Mount(Path(source), TARGET), ("python3", "-I", "-S", f"{TARGET}/standin.py", marker))
    rung = RUNGS[kind](SandboxSettings(workspaces=Path(workspaces)), SandboxLimits(), agent)
    own = ProcessDirectory(Path(workspaces))
    workspace = own.path / "workspace"
    workspace.mkdir(mode=0o700)
    launched = rung.launch(LaunchSpec(workspace, SandboxLimits(memory_bytes=128 * MIB, processes=20)))
    os.write(launched.input, MISCHIEF)
    said = b""
    while b"at work" not in said:
        said += os.read(launched.output, 100)
    print("started", flush=True)
    time.sleep(1000)


if __name__ == "__main__":
    main()
