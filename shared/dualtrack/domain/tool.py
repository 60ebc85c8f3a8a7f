"""Tools as the model and the engine see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

FINISH_TOOL: Final = "finish"
PLAN_TOOL: Final = "update_plan"
ASK_TOOL: Final = "ask_human"
"""On offer only where the profile names it: somebody must be there to answer."""
DELEGATE_TOOL: Final = "delegate"
"""Starts a child job; on offer only where the profile names it."""
CHECK_TOOL: Final = "check"
"""The engine's own: runs one of a job's check commands; never on offer."""
SAVE_TOOL: Final = "save_artifact"


class Effect(StrEnum):
    """What running a call twice would do (design rule 4)."""

    PURE = "pure"
    """Changes nothing: may run beside others and again."""
    WORKSPACE = "workspace"
    """Changes the workspace only: runs alone, and again from the snapshot before it."""
    EXTERNAL = "external"
    """Changes the world: never silently twice."""
    CONTROL = "control"
    """Changes the job itself (`update_plan`, `finish`): carried out by the planner as it records the decision."""


class OnUnknown(StrEnum):
    """What becomes of an external call of which nobody knows whether it happened (its worker died, its answer never came)."""

    TELL = "tell"
    """the agent is told, and decides itself what to look at"""
    ASK = "ask"
    """a person is asked; the job waits"""
    RETRY = "retry"
    """it is made again, under the same idempotency key: for services that honour one"""
    FAIL = "fail"
    """the job fails"""


class Risk(StrEnum):
    """How much harm a call can do: what policies may go by."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"

    def reaches(self, other: Risk) -> bool:
        """Whether it is at least the other."""
        order = list(Risk)
        return order.index(self) >= order.index(other)


_RISKS: Final = {Effect.PURE: Risk.LOW, Effect.WORKSPACE: Risk.MEDIUM, Effect.EXTERNAL: Risk.HIGH, Effect.CONTROL: Risk.LOW}


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool on offer: what the model is told, and what the engine must know."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema (an object) of the arguments."""
    effect: Effect
    own_risk: Risk | None = None
    """Where it differs from what the effect says."""

    @property
    def risk(self) -> Risk:
        """Its own, or by its effect: pure low, workspace medium, external high."""
        return self.own_risk or _RISKS[self.effect]


@dataclass(frozen=True, slots=True)
class ProposedCall:
    """A tool call as the model asked for it; arguments not yet checked against the tool's schema."""

    tool: str
    arguments: Mapping[str, Any]
    provider_id: str | None = None
    """The id the model's own format gave the call, where it has one."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What came back from a call: this, and nothing else of it, is shown to the model."""

    ok: bool
    """False when the command failed: exit status, limit, wrong arguments."""
    text: str
