"""Going on from an earlier point of a job as a new one: what may be changed, and from which step a retry goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints

from dualtrack.domain.job import AgentProfile, Command, JobSpec, WorkspaceFile
from dualtrack.domain.lifecycle import CallStatus
from dualtrack.domain.limits import JobLimits
from dualtrack.domain.message import Content
from dualtrack.domain.policies import same_failures
from dualtrack.domain.reasons import Reason
from dualtrack.domain.step import Step

LAST_STEP = 2**31 - 1
"""Steps are numbered by 32-bit integers."""


class Changes(BaseModel):
    """What a new job asks for otherwise than the one it goes on from; what is left out stays as it is there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    instructions: str | None = Field(None, min_length=1, description="What to do, instead.")
    agent: AgentProfile | None = Field(None, description="Of its fields, only those given are changed.")
    limits: JobLimits | None = Field(
        None, description="Of its fields, only those given are changed. Steps count on from those copied; tokens, cost and time from zero."
    )
    checks: tuple[Command, ...] | None = Field(None, description="Instead of the checks there; an empty list for none.")
    outputs: tuple[WorkspaceFile, ...] | None = Field(None, description="Instead of the outputs there; an empty list for none.")
    metadata: (
        dict[Annotated[str, StringConstraints(min_length=1, max_length=64)], Annotated[str, StringConstraints(max_length=512)]] | None
    ) = Field(None, description="Instead of the metadata there.")
    message: Content | None = Field(None, description="A first message to the new job, which its agent sees at its first decision.")


class Fork(Changes):
    """A point of a job to go on from, and what is to be otherwise."""

    step: StrictInt = Field(ge=0, le=LAST_STEP, description="The last step to keep; 0: none, begin anew.")


def changed(spec: JobSpec, limits: JobLimits, changes: Changes) -> JobSpec:
    """The specification with the changes made; `limits` are those in force, which may have been extended.

    Raises:
        pydantic.ValidationError: what comes of it is no specification.
    """
    given = changes.model_dump(exclude_none=True, include={"instructions", "checks", "outputs", "metadata"})
    old = spec.model_dump() | {"limits": limits.model_dump()}
    for name in ("agent", "limits"):
        part: BaseModel | None = getattr(changes, name)
        if part is not None:
            given[name] = old[name] | part.model_dump(include=part.model_fields_set)
    return JobSpec.model_validate(old | given)


def cut_short(step: Step) -> bool:
    """Whether a step was not brought to its end: some of its calls were cancelled."""
    return any(call.status is CallStatus.CANCELLED for call in step.calls)


def retry_step(history: Sequence[Step], reason: str | None) -> int:
    """The step after which it makes sense to go on, of an ended job that did not succeed. `history`: its last steps, without a gap.

    A step whose calls were cut short is done again. Besides, by the reason: giving up is taken back; answers that were no action are
    forgotten; of calls that failed the same way again and again, none is kept. Whatever else ended the job, all that it did is kept.
    """
    kept = list(history)
    if kept and cut_short(kept[-1]):
        kept.pop()
    if reason == Reason.GAVE_UP and kept and kept[-1].finish is not None:
        kept.pop()
    elif reason == Reason.MALFORMED_ACTIONS:
        while kept and not kept[-1].calls:
            kept.pop()
    elif reason == Reason.NO_PROGRESS:
        kept = kept[: len(kept) - same_failures(kept)]
    if kept:
        return kept[-1].number
    return history[0].number - 1 if history else 0
