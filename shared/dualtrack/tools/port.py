"""What a tool is given and what it gives back, and the registry that finds it by name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.tool import Observation, ToolSpec
from dualtrack.sandbox.port import Sandbox


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a call may use. `workspace` is restored and is snapshot after the call by the engine, not by the tool."""

    workspace: Path
    """Host directory of the job's workspace; host code must not follow what it finds there, so tools work inside the sandbox."""
    sandbox: Sandbox
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
