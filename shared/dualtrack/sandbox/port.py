"""The sandbox as the platform sees it: run one command over a workspace directory, with limits. Adapters: `sandbox.bubblewrap`,
`sandbox.docker`, `testing.sandbox`; all pass `dualtrack.testing.contracts.sandbox`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from dualtrack.domain.limits import SandboxLimits


class Ended(StrEnum):
    """Why a command ended."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    WALL_TIME = "wall_time_limit"
    CPU_TIME = "cpu_time_limit"
    MEMORY = "memory_limit"
    PROCESSES = "process_limit"
    """It could not even be started, because those in the background are as many as there may be."""
    OUTPUT = "output_limit"
    DISK = "disk_limit"
    DISK_FILES = "disk_files_limit"
    DISK_DEPTH = "disk_depth_limit"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `argv[0]` is looked up on the sandbox's own PATH."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    writable: bool = True
    """Whether the workspace may be changed; a read-only view otherwise."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a command. A non-zero exit is an outcome, not an error."""

    ended: Ended
    exit_code: int | None
    """None unless `ended` is `EXITED`."""
    signal: int | None
    stdout: bytes
    stderr: bytes
    stdout_dropped: int
    """Bytes beyond the output limit, counted and dropped."""
    stderr_dropped: int
    wall_s: float
    note: str = ""
    """For a person and the model, also of a command that exited: which limit ended it (`killed: wall time limit 5 s`), which limits it
    reached without being ended (`reached: process limit 128`), and whether Python's state was lost. Empty for an ordinary exit."""
    reached: tuple[str, ...] = ()
    """Limits that it reached, by name and figure, without being ended: the kernel refused or killed something below it."""
    background: int = 0
    """Processes that go on in the session after it, started by it or by earlier commands."""


class Sandbox(Protocol):
    """Runs commands nobody has read. Thread-safe.

    The command sees the workspace at `/workspace` (its working directory), the system's programs read-only, an empty `/tmp`,
    no network, no process but its own, and no environment but `PATH HOME LANG TMPDIR` and `Command.env`. No process of it
    is left once `run` has returned.
    """

    name: str

    def check(self) -> None:
        """Prove by a real run that it works here. Raises `SandboxUnavailable`, saying why and what to do."""
        ...

    def run(self, command: Command, workspace: Path, limits: SandboxLimits, cancel: threading.Event) -> Outcome:
        """Run to its end, a limit, or `cancel` (all processes gone within 2 s of it).

        Raises:
            SandboxFailed: the sandbox itself failed; nothing is known of the command.
        """
        ...
