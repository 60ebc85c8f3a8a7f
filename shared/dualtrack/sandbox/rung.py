"""A rung of the ladder: one way to isolate a process, with a stated strength. Drivers start the in-sandbox agent behind it and know how to
end everything it started; all that happens inside goes through the agent (`sandbox.inside`), so that it is the same on every rung.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from dualtrack.domain.limits import SandboxLimits


class RungName(StrEnum):
    """The rungs, from the weakest to the strongest boundary."""

    LANDLOCK = "landlock"
    BUBBLEWRAP = "bubblewrap"
    DOCKER = "docker"
    GVISOR = "gvisor"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True)
class Mount:
    """A host file or directory that is shown read-only inside."""

    source: Path
    target: str
    """Absolute path inside."""


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """The in-sandbox agent, as a rung starts it."""

    mount: Mount
    argv: Sequence[str]
    """With the path inside; `argv[0]` is looked up on the sandbox's PATH."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What a sandbox is started with. Nothing of the host is in it but what is named here."""

    workspace: Path
    """Host directory that is `/workspace` inside; empty at the start. A rung without a shared file system (`Rung.shares_files` false)
    ignores it: files then go through the agent."""
    limits: SandboxLimits
    """Those of the whole session: memory, processes. Those of one command are set by the agent and watched from outside."""
    mounts: Sequence[Mount] = ()
    """Template directories, the egress proxy's directory."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside PATH, HOME, LANG and TMPDIR."""
    preload: Sequence[str] = ()
    """Python modules that the agent imports before it reports ready."""
    relay_port: int | None = None
    """Port on the sandbox's loopback that the agent relays to `/run/egress/proxy.sock`; None: no network at all."""
    writable: bool = True
    """Whether the workspace may be changed."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What the kernel (or the engine) has counted since the launch, of all processes inside; None: nothing counts it on this machine."""

    cpu_s: float | None = None
    """User and system seconds, of ended processes too."""
    memory_peak_bytes: int | None = None
    out_of_memory: int | None = None
    """Processes that the kernel killed for memory."""
    forks_refused: int | None = None
    """Times the limit on processes was hit."""
    disk_exceeded: int | None = None
    """Times that the sandbox was ended from outside for the size of its files."""


@dataclass(frozen=True, slots=True)
class Enforced:
    """Which of the session's limits hold from outside, for all processes together, whatever they do. Those that don't are the agent's to
    set as resource limits of each process it starts (address space, processes of the user).
    """

    memory: bool
    processes: bool


WORKSPACE: Final = "/workspace"
"""Path of the workspace inside, on every rung that can show a directory under another name."""


class Launched(Protocol):
    """One started sandbox: the agent's stdin and stdout, the kernel's counters, and the certain end. One caller at a time."""

    input: int
    """Descriptor, blocking: what is written reaches the agent."""
    output: int
    """Descriptor, blocking: what the agent writes. Ends (EOF) when the sandbox has."""
    inside: str
    """Path of the workspace inside: `WORKSPACE`, or the host's own where there is no mounting."""
    scratch: Path | None
    """Host directory of its temporary files, which counts to the workspace's limits on disk; None: they are in memory, or limited by
    themselves."""
    enforced: Enforced
    own_processes: bool
    """Whether `kill(-1)` inside reaches the sandbox's own processes and no others (it has a pid namespace of its own). Where not, the agent
    must go through the tree of its descendants to stop them."""

    def counters(self) -> Counters:
        """As of now; after the end the last ones."""
        ...

    def said(self) -> str:
        """What the driver's own machinery printed, for the message of a failure; bounded, never the command's output."""
        ...

    def kill(self) -> None:
        """End every process inside at once, whatever state it is in. May be called again, and from any thread."""
        ...

    def close(self) -> None:
        """Kill, wait until nothing is left (processes, groups, mounts, containers, sockets), close the descriptors. May be repeated.

        Raises:
            SandboxFailed: something was still there after the time a driver gives it; says what.
        """
        ...


@dataclass(frozen=True, slots=True)
class RungReport:
    """What a probe by a real run found out about a rung on this machine."""

    rung: RungName
    works: bool
    strength: str
    """One line: what the boundary is."""
    found: Mapping[str, str]
    """Facts for a person: versions, what counts memory, what is missing of its defences."""
    gaps: Sequence[str] = ()
    """Defences this machine does not give it, each in one line."""
    problem: str = ""
    """Why it does not work and what to do; empty if it works."""


class Rung(Protocol):
    """A driver. Thread-safe. It never becomes a weaker one by itself: what it can't do is an error."""

    name: RungName
    shares_files: bool
    """Whether `/workspace` inside is `LaunchSpec.workspace`; else files are sent through the agent."""

    def probe(self) -> RungReport:
        """Start a sandbox, run Python in it, end it. Never raises for a rung that does not work: the report says why."""
        ...

    def launch(self, spec: LaunchSpec) -> Launched:
        """Start a sandbox whose agent is starting up (it reports ready by a frame).

        Raises:
            SandboxFailed: it could not be started this time.
            SandboxUnavailable: it can't work on this machine; says what to do.
        """
        ...

    def sweep(self) -> Sequence[str]:
        """Remove what executors that are dead have left of this rung, and return a line for each thing removed. Called at start and then
        now and again; never touches what belongs to a living process.
        """
        ...
