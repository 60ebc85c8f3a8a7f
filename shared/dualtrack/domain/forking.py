"""Going on from an earlier point of a job as a new one: what may be changed, and from which step a retry goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints

from dualtrack.domain.doubt import DOUBTED, OUTCOME, TOLD, UNKNOWN, may_have_happened
from dualtrack.domain.job import AgentProfile, Command, JobSpec, WorkspaceFile
from dualtrack.domain.lifecycle import CallStatus
from dualtrack.domain.limits import JobLimits
from dualtrack.domain.message import Content
from dualtrack.domain.policies import same_failures
from dualtrack.domain.reasons import Reason
from dualtrack.domain.step import CHILD, Call, Step

LAST_STEP = 2**31 - 1
"""Steps are numbered by 32-bit integers."""

NOT_RUN: Final = "not_run"
"""`details.outcome` of a copied call that was never begun."""
CUT_OFF: Final = "cut_off"
"""`details.outcome` of a copied call that was cancelled while it ran."""
_NOT_RUN: Final = "Not run: the job ended before its turn, and goes on from there. Call it again if it is still needed."
_CUT_OFF: Final = "Cut off: the job ended while it ran, and goes on from there. What it changed in the workspace is not kept."
_CHILD_CUT_OFF: Final = (
    "Cut off: the job ended before the result of its helper ({child}) was here, and goes on from there. The helper was stopped, unless it "
    "had ended. None of its files are here, but what it did elsewhere, if anything, is done: find out before you have it done again."
)


class CopiedEnd(NamedTuple):
    """How a call that was cancelled ends in a copy."""

    preview: str
    details: Mapping[str, Any]


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


def reached_out(step: Step) -> bool:
    """Whether going on from before a step would make the model do again what can't be taken back.

    An external call of it was begun, whatever came of it, or a child was started, which may have made some.
    """
    return any(may_have_happened(call) or CHILD in call.details for call in step.calls)


def retry_step(history: Sequence[Step], reason: str | None) -> int:
    """The step after which it makes sense to go on, of an ended job that did not succeed. `history`: its last steps, without a gap.

    A step whose calls were cut short is done again. Besides, by the reason: giving up is taken back; answers that were no action are
    forgotten; of calls that failed the same way again and again, none is kept. Whatever else ended the job, all that it did is kept. And
    so is, in every case, a step that reached out of the job: the model would not know of it and do it a second time.
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
    before = history[0].number - 1 if history else 0
    return max((before, *(step.number for step in kept[-1:]), *(step.number for step in history if reached_out(step))))


def as_copied(call: Call) -> CopiedEnd:
    """How a cancelled call ends in a copy of its step: as one that failed, which says to the model what became of it."""
    if may_have_happened(call):
        return CopiedEnd(TOLD, DOUBTED)
    child = call.details.get(CHILD)
    if child is not None:
        return CopiedEnd(_CHILD_CUT_OFF.format(child=child), {CHILD: child, OUTCOME: UNKNOWN})
    if call.started_at is None:
        return CopiedEnd(_NOT_RUN, {OUTCOME: NOT_RUN})
    said = f"\nUntil then it had said:\n{call.preview}" if call.preview else ""
    return CopiedEnd(_CUT_OFF + said, {OUTCOME: CUT_OFF})
