"""A sandbox session as the platform sees it: one sandbox, claimed by one owner for as long as it likes, then destroyed, never reused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.port import Command, Outcome

EGRESS_TARGET: Final = "/run/egress"
"""Where a sandbox sees the directory of its way out."""


class Start(StrEnum):
    """How a claim was served."""

    WARM = "warm"
    COLD = "cold"


class Channel(StrEnum):
    """Where a piece of output was written to."""

    STDOUT = "stdout"
    STDERR = "stderr"


class EndReason(StrEnum):
    """Why a session ended, for metrics, spans and what the agent is told."""

    DONE = "done"
    """Its owner closed it."""
    LIMIT = "limit"
    """A command reached a limit that only the end of the whole sandbox enforces."""
    CANCELLED = "cancelled"
    IDLE = "idle"
    BROKEN = "broken"
    """Its agent or the sandbox itself ended, or did not speak the protocol."""
    EVICTED = "evicted"
    """Another session needed the place."""
    SHUTDOWN = "shutdown"


Sink = Callable[[Channel, bytes], None]
"""Takes output as it comes, in order, in the thread that runs the command; must be quick. All bytes, also beyond `output_bytes`."""


@dataclass(frozen=True, slots=True)
class PythonCell:
    """Python source to run in a process of its own, forked from the agent's preloaded interpreter."""

    source: str
    persistent: bool = False
    """Run it in the session's one lasting interpreter, with the variables of earlier persistent cells; else in a fresh one."""


@dataclass(frozen=True, slots=True)
class SessionEgress:
    """The one way out of a sandbox, made by `dualtrack.egress.EgressProxy` for one session."""

    directory: Path
    """Host directory to show read-only at `/run/egress`; it holds `proxy.sock`."""
    environment: Mapping[str, str]
    """Added to the environment of everything that runs inside: the proxy's address, certificates, placeholders of secrets."""
    relay_port: int
    """Port on the sandbox's loopback that the agent relays to that socket."""


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What is claimed."""

    limits: SandboxLimits
    template: str | None = None
    """What the sandbox is made of; None: the operator's choice (`sandbox.template`)."""
    writable: bool = True
    egress: SessionEgress | None = None
    """None: no network at all. With it the session is started for this request, never taken from the warm ones, which have no way out."""


class Session(Protocol):
    """A claimed sandbox. One command at a time; `close` may come from any thread.

    Background processes that a command leaves behind live until the session ends. A command that reaches wall time, CPU time, memory (where
    the kernel killed the agent), output or disk, that finds no room for a process, or that is cancelled, ends the whole session: that is
    certain to leave no process.
    """

    id: str
    start: Start
    workspace: Path
    """Host directory of what is `/workspace` inside (a mirror of it where the rung shares no files)."""

    @property
    def ended(self) -> EndReason | None:
        """Why it is over; None while it can still be used."""
        ...

    def run(self, command: Command, limits: SandboxLimits, cancel: threading.Event, sink: Sink | None = None) -> Outcome:
        """Run a command to its end, a limit, or `cancel` (all processes gone within 2 s of it).

        Raises:
            SandboxFailed: the sandbox itself failed, or the session is over; nothing is known of the command.
        """
        ...

    def python(self, cell: PythonCell, limits: SandboxLimits, cancel: threading.Event, sink: Sink | None = None) -> Outcome:
        """Run Python source; as `run`. `exit_code` 1 after an exception, whose traceback is on stderr; what `sys.exit` says otherwise."""
        ...

    def overrun(self) -> str:
        """The limit (CPU time, disk) that its background processes exceed between two commands, in words.

        Empty: none, or a command is at work. Its owner asks about once a second, from any thread, and closes it then.
        """
        ...

    def quiet(self) -> AbstractContextManager[None]:
        """While it lasts no process inside runs (SIGSTOP), so that `workspace` stands still and can be saved."""
        ...

    def adopt(self, directory: Path, cancel: threading.Event | None = None) -> None:
        """Move everything in a host directory (same file system) into `/workspace`. Before the first command only.

        Raises:
            Cancelled: `cancel` was set before all of it was inside, where that takes time; the session is over.
        """
        ...

    def pull(self, cancel: threading.Event | None = None) -> None:
        """Bring `workspace` to the state of `/workspace` inside; nothing to do where they are one. Call within `quiet`.

        Raises:
            Cancelled: `cancel` was set before it was done; the session is over.
        """
        ...

    def close(self, reason: EndReason = EndReason.DONE, *, keep: Path | None = None) -> None:
        """End and remove it; may be repeated. `keep`: an empty directory that gets what is in `workspace` once all processes are gone."""
        ...


class Sessions(Protocol):
    """Where sessions are claimed: a pool of warm ones. Thread-safe."""

    def claim(self, request: SessionRequest) -> Session:
        """A session of its own for the caller: warm if one is ready, else started now.

        Raises:
            SandboxFailed: it could not be started this time.
            SandboxUnavailable: no such template, or the rung can't work here.
        """
        ...

    def close(self) -> None:
        """End all sessions, claimed or not."""
        ...
