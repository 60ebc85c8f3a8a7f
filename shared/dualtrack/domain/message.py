"""What a job's user writes to it on its way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

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


def by_step(messages: Iterable[Message]) -> dict[int, tuple[str, ...]]:
    """What was said, oldest first, by the step that it followed (0: before the first); what is not yet taken is left out."""
    found: dict[int, tuple[str, ...]] = {}
    for message in messages:
        if message.after_step is not None:
            found[message.after_step] = (*found.get(message.after_step, ()), message.content)
    return found
