"""A stand-in for the in-sandbox agent, for tests of the rungs alone: runs lines of Python from its stdin, and prints."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from dualtrack.sandbox.rung import AgentProgram, Counters, Launched, Mount

TARGET = "/run/dualtrack/standin"
PROGRAM = r"""
import os, sys
print("ready", flush=True)
space = {}
for line in sys.stdin:
    try:
        exec(line.replace("\x1f", "\n"), space)
    except BaseException as error:
        print(type(error).__name__, str(error)[:200])
    print("\x04", flush=True)
"""


def standin(directory: Path) -> tuple[AgentProgram, str]:
    """The program, below a new host directory, and a word of its command line that finds its processes on the host."""
    marker = f"standin-{os.getpid()}-{secrets.token_hex(4)}"
    source = directory / marker
    source.mkdir()
    source.chmod(0o755)
    (source / "standin.py").write_text(PROGRAM)
    return AgentProgram(Mount(source, TARGET), ("python3", "-I", "-S", f"{TARGET}/standin.py", marker)), marker


def read_line(launched: Launched) -> str:
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(launched.output, 1)
        if not data:
            raise EOFError(f"the sandbox ended: {launched.said()}")
        line += data
    return line.decode().rstrip("\n")


def await_ready(launched: Launched) -> None:
    assert read_line(launched) == "ready"


def ask(launched: Launched, source: str) -> list[str]:
    """Run Python in the sandbox; the lines it printed."""
    os.write(launched.input, source.strip().replace("\n", "\x1f").encode() + b"\n")
    lines = []
    while (line := read_line(launched)) != "\x04":
        lines.append(line)
    return lines


def counted(counters: Counters) -> Mapping[str, bool]:
    """Which of them there are."""
    names = ("cpu_s", "memory_peak_bytes", "out_of_memory", "forks_refused")
    return {name: getattr(counters, name) is not None for name in names}
