"""Stands for an executor that starts sandboxes until it is killed. Arguments: workspaces, stand-in, its marker, with groups or not."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from dualtrack.domain.limits import MIB, SandboxLimits
from dualtrack.objects.process_dir import ProcessDirectory
from dualtrack.sandbox.bubblewrap import BubblewrapRung
from dualtrack.sandbox.rung import AgentProgram, LaunchSpec, Mount
from dualtrack.settings import SandboxSettings

TARGET = "/run/dualtrack/standin"
MISCHIEF = (
    b"import os, signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; "
    b"[os.fork() or (os.setsid(), os.fork(), time.sleep(1000)) for _ in range(3)]\n"
)


def main() -> None:
    workspaces, source, marker, kind = sys.argv[1:]
    agent = AgentProgram(Mount(Path(source), TARGET), ("python3", "-I", "-S", f"{TARGET}/standin.py", marker))
    rung = BubblewrapRung(SandboxSettings(workspaces=Path(workspaces)), SandboxLimits(), agent, cgroups=kind == "groups")
    own = ProcessDirectory(Path(workspaces))

    def work(thread: int) -> None:
        number = 0
        while True:
            number += 1
            workspace = own.path / f"{thread}-{number}"
            workspace.mkdir(mode=0o700)
            launched = rung.launch(LaunchSpec(workspace, SandboxLimits(memory_bytes=64 * MIB, processes=20)))
            os.write(launched.input, MISCHIEF)
            if number % 4 == 0:
                launched.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    print("started", flush=True)
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
