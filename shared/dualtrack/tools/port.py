"""What a tool is given and what it gives back, and the registry that finds it by name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dualtrack.domain.limits import PlatformLimits, SandboxLimits
from dualtrack.domain.tool import Observation, ToolSpec
from dualtrack.sandbox.port import Command, Outcome
from dualtrack.sandbox.sessions import PythonCell


class Bench(Protocol):
    """The job's sandbox for the time of one call: its workspace is restored, and is saved after the call, by the engine."""

    def run(self, command: Command, limits: SandboxLimits) -> Outcome:
        """Run a command to its end, a limit, or the call's cancel. Raises `SandboxFailed`: nothing is known of the command."""
        ...

    def python(self, cell: PythonCell, limits: SandboxLimits) -> Outcome:
        """The same for Python source."""
        ...


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a call may use."""

    bench: Bench
    """Host code must not follow what it finds in a workspace, so tools work inside the sandbox only."""
    limits: PlatformLimits
    cancel: threading.Event
    """Set when the job was cancelled or the claim was lost: stop at once."""
    read_observation: Callable[[str], str]
    """The full text of an earlier call's observation by its call id (of this job only). Raises `NotFound`."""
    idempotency_key: str
    """The same for every attempt of this call, and for no other call: an external tool passes it on."""


@dataclass(frozen=True, slots=True)
class ArtifactRequest:
    """A workspace file the call wants kept as an artifact."""

    path: str
    """Normal workspace path of a regular file."""
    name: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call did."""

    observation: Observation
    artifacts: tuple[ArtifactRequest, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """Facts for events and spans (exit code, reason of end, bytes dropped); never shown to the model."""


class Tool(Protocol):
    """A tool that the executor runs. Stateless and thread-safe.

    `run` never raises for what the *command* did (that is an observation with `ok=False`), only for our machinery
    (`SandboxFailed`, `StorageUnavailable`).

    An external tool's call is written down as begun before `run`. When it raises, an `OutgoingError` that was not `sent` means that
    it surely did nothing and is tried again; after anything else nobody knows: the call's outcome is unknown (`engine.ledger`).
    """

    @property
    def spec(self) -> ToolSpec:
        """Name, description, schema, effect."""
        ...

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run the call; `arguments` have passed the spec's schema."""
        ...
