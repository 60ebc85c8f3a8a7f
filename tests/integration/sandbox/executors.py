"""Executors as child processes, for tests of the janitor."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from dualtrack.sandbox.rung import AgentProgram

PROGRAM = Path(__file__).with_name("rung_executor.py")


@contextlib.contextmanager
def executor(rung: str, workspaces: Path, agent: AgentProgram, marker: str) -> Iterator[subprocess.Popen[str]]:
    """One whose sandbox is at work; killed at the end at the latest."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), rung, str(workspaces), str(agent.mount.source), marker], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        yield process
    finally:
        process.kill()
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()
