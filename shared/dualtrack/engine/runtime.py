"""What the engine works with, put together once by `dualtrack.bootstrap`."""

from __future__ import annotations

from dataclasses import dataclass, field

from dualtrack.db.engine import Database
from dualtrack.db.presence import Presence
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.network import EgressCeiling
from dualtrack.domain.policy import PolicyRule
from dualtrack.engine.leases import Leases
from dualtrack.engine.quarantine import Quarantine
from dualtrack.net.addresses import AllowList
from dualtrack.objects.port import ObjectStore
from dualtrack.queues.port import Doorbell
from dualtrack.tools.registry import Registry
from dualtrack.webhooks.sealing import Sealer


@dataclass(frozen=True, slots=True)
class Runtime:
    """Shared by planner, executor, scheduler and router."""

    database: Database
    doorbell: Doorbell
    store: ObjectStore
    registry: Registry
    limits: PlatformLimits
    allow: AllowList = field(default_factory=AllowList)
    """What outgoing requests may reach although it is not public."""
    policies: tuple[PolicyRule, ...] = ()
    """The operator's, before those of any agent's profile."""
    egress: EgressCeiling = field(default_factory=EgressCeiling)
    """What the operator lets sandboxes reach."""
    sealer: Sealer = field(default_factory=Sealer)
    """Webhooks' secrets on their way to and from the database."""
    templates: frozenset[str] | None = None
    """Names of all that sandboxes can be made of; None: not known here."""


@dataclass(frozen=True, slots=True)
class WorkerRuntime:
    """What a claiming process has besides."""

    base: Runtime
    presence: Presence
    leases: Leases
    quarantine: Quarantine | None = None
    """Where suspect rows go; None: this process works on them like on any other."""
