"""Policies: which tool calls run by themselves, which need a person's consent, which never run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from dualtrack.domain.limits import Seconds
from dualtrack.domain.pattern import Pattern, found
from dualtrack.domain.tool import Effect, OnUnknown, Risk, ToolSpec

MAX_RULES: Final = 50
MAX_EXPIRES_S: Final = 30 * 24 * 3600
NO_REASON: Final = "no reason is given"
"""Of a rule without a message."""

ToolGlob = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._/:*?-]{1,128}$")]
FieldPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64}){0,7}$")]


class Action(StrEnum):
    """What becomes of a call."""

    ALLOW = "allow"
    ASK = "ask"
    """it waits for a person's consent"""
    DENY = "deny"
    """it is not run, and the agent is told so"""


class PolicyRule(BaseModel):
    """One rule: it applies to a call that all of `tool`, `arguments` and `risk` fit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tool: ToolGlob = Field("*", description="Name of the tool; `*` stands for any characters, `?` for one.")
    arguments: dict[FieldPath, Pattern] = Field(
        default_factory=dict,
        max_length=8,
        description="Field of the arguments (`command`, `headers.Accept`) to a regular expression (RE2) found in it; all must fit. "
        "A field that is no text is looked at as JSON; one that is not there never fits.",
    )
    risk: Risk = Field(Risk.LOW, description="Tools of at least this risk.")
    action: Action = Field(description="allow, ask a person first, or deny.")
    message: str = Field("", max_length=500, description="Why: shown to whoever decides, and to the agent where it is denied.")
    on_unknown: OnUnknown | None = Field(
        None, description="What becomes of such an external call of which nobody knows whether it happened; empty: what the agent says."
    )
    expires_s: Seconds | None = Field(
        None, le=MAX_EXPIRES_S, description="Seconds for the decision; empty: `limits.approval_s`. Nobody's decision is a no."
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the policies say of a call."""

    action: Action
    message: str = ""
    expires_s: float | None = None
    on_unknown: OnUnknown | None = None

    @property
    def refusal(self) -> str:
        """What the agent reads of a denied call."""
        return f"Denied by policy: {self.message or NO_REASON}. It was not run; do it another way, or finish without it."


def judge(rules: Iterable[PolicyRule], spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict:
    """The first rule that fits decides; without one a call is allowed.

    What only changes the job itself (`Effect.CONTROL`) is never asked for: a rule that asks lets it through.
    """
    for rule in rules:
        if _fits(rule, spec, arguments):
            action = Action.ALLOW if rule.action is Action.ASK and spec.effect is Effect.CONTROL else rule.action
            return Verdict(action, rule.message.strip().rstrip("."), rule.expires_s, rule.on_unknown)
    return Verdict(Action.ALLOW)


def _fits(rule: PolicyRule, spec: ToolSpec, arguments: Mapping[str, Any]) -> bool:
    if not fnmatchcase(spec.name, rule.tool) or not spec.risk.reaches(rule.risk):
        return False
    return all((text := _field(arguments, path)) is not None and found(pattern, text) for path, pattern in rule.arguments.items())


def _field(arguments: Mapping[str, Any], path: str) -> str | None:
    value: Any = arguments
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
