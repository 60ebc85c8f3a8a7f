"""What a job's user writes to it on its way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from pydantic import AfterValidator, StringConstraints


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


Content = Annotated[str, StringConstraints(min_length=1), AfterValidator(_not_blank)]
"""What may be written to a job."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message to a running job, unique by (job, number)."""

    job_id: str
    number: int
    """From 1, in the order they came."""
    content: str
    added_by: str
    """Id of the API key that sent it."""
    after_step: int | None
    """The last step before it was taken up; it is shown after that one for good. None: not yet taken."""
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said in a job, in order: what has its place for good, and what was not yet taken."""

    taken: Mapping[int, tuple[str, ...]]
    """By the step that it followed; 0: before the first."""
    last_step: int | None
    """The step that the last of it followed; None: nothing was taken yet."""
    new: tuple[Message, ...] = ()

    def unanswered(self, step: int) -> bool:
        """Whether something was said since the decision of that step, the job's last, was begun."""
        return bool(self.new) or self.last_step == step

    def shown(self, step: int) -> Mapping[int, tuple[str, ...]]:
        """All of it by step, once what is new is taken up after that step, the job's last."""
        if not self.new:
            return self.taken
        return {**self.taken, step: (*self.taken.get(step, ()), *(message.content for message in self.new))}


NOTHING_SAID: Final = Conversation({}, None)


def conversation(before: Conversation, messages: Iterable[Message]) -> Conversation:
    """What was said, with the messages after those taken `before`, in order. Messages are taken in order, so new ones come last."""
    found: dict[int, list[str]] = {}
    last, new = before.last_step, []
    for message in messages:
        if message.after_step is None:
            new.append(message)
        else:
            found.setdefault(message.after_step, []).append(message.content)
            last = message.after_step
    taken = before.taken
    if found:
        taken = {**taken, **{step: (*taken.get(step, ()), *texts) for step, texts in found.items()}}
    return Conversation(taken, last, tuple(new))
