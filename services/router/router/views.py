"""What the API shows of steps, messages, artifacts and files, and of usage: projections of domain values, nothing computed elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, Field

from dualtrack.domain.lifecycle import CallStatus
from dualtrack.domain.message import Message
from dualtrack.domain.step import Artifact, Call, Step, StoredFile
from dualtrack.domain.usage import Usage
from dualtrack.engine.ending import usage_data

Item = TypeVar("Item")


class UsageView(BaseModel):
    """Tokens and price of model calls."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = Field(description="Of the input tokens, those from the provider's prefix cache.")
    total_tokens: int
    cost_usd: str = Field(description="US dollars as a decimal string, so that nothing is rounded.")

    @classmethod
    def of(cls, usage: Usage) -> UsageView:
        """The view of a usage."""
        return cls.model_validate(usage_data(usage))


class CallView(BaseModel):
    """A tool call and what came back."""

    id: str
    tool: str
    arguments: dict[str, Any]
    status: CallStatus
    ok: bool | None = Field(description="Whether the command succeeded; null until it ended.")
    observation: str = Field(description="What came back, as kept in context; shortened when `truncated`.")
    truncated: bool = Field(description="Whether `…/calls/{call_id}/observation` has more.")
    details: Mapping[str, Any]
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    wall_s: float | None = Field(description="Seconds from its first start to its end.")

    @classmethod
    def of(cls, call: Call) -> CallView:
        """The view of a call."""
        return cls(
            id=call.id,
            tool=call.tool,
            arguments=dict(call.arguments),
            status=call.status,
            ok=call.ok,
            observation=call.preview,
            truncated=call.observation_key is not None,
            details=call.details,
            attempt=call.attempt,
            started_at=call.started_at,
            finished_at=call.finished_at,
            wall_s=(call.finished_at - call.started_at).total_seconds() if call.started_at and call.finished_at else None,
        )


class StepView(BaseModel):
    """One decision of the planner with its calls."""

    number: int
    object: Literal["step"] = "step"
    thought: str
    reflection: str
    note: str = Field(description="What the platform told the model after it.")
    model: str
    usage: UsageView
    latency_s: float
    created_at: datetime
    calls: list[CallView]

    @classmethod
    def of(cls, step: Step) -> StepView:
        """The view of a step."""
        return cls(
            number=step.number,
            thought=step.thought,
            reflection=step.reflection,
            note=step.note,
            model=step.model,
            usage=UsageView.of(step.usage),
            latency_s=step.latency_s,
            created_at=step.created_at,
            calls=[CallView.of(call) for call in step.calls],
        )


class StepPage(BaseModel):
    """A page of steps."""

    object: Literal["list"] = "list"
    data: list[StepView]
    has_more: bool
    next_cursor: int | None = Field(description="Value of `after` for the next page; null on the last.")
    next_after: int = Field(description="Value of `after` for what comes next, now or later.")


class MessageView(BaseModel):
    """What a job's user wrote to it."""

    number: int
    object: Literal["message"] = "message"
    job_id: str
    content: str
    added_by: str = Field(description="Id of the API key.")
    after_step: int | None = Field(description="The last step before the agent saw it (0: before the first); null until then.")
    created_at: datetime

    @classmethod
    def of(cls, message: Message) -> MessageView:
        """The view of a message."""
        return cls(
            number=message.number,
            job_id=message.job_id,
            content=message.content,
            added_by=message.added_by,
            after_step=message.after_step,
            created_at=message.created_at,
        )


class MessagePage(BaseModel):
    """A page of messages."""

    object: Literal["list"] = "list"
    data: list[MessageView]
    has_more: bool
    next_cursor: int | None = Field(description="Value of `after` for the next page; null on the last.")
    next_after: int = Field(description="Value of `after` for what comes next, now or later.")


class ArtifactView(BaseModel):
    """A file that a job kept."""

    id: str
    object: Literal["artifact"] = "artifact"
    job_id: str
    call_id: str
    name: str
    path: str = Field(description="Where it was in the workspace.")
    description: str
    size: int = Field(description="Bytes.")
    sha256: str
    content_type: str
    content_url: str = Field(description="Where to download it.")
    created_at: datetime

    @classmethod
    def of(cls, artifact: Artifact) -> ArtifactView:
        """The view of an artifact."""
        return cls(
            id=artifact.id,
            job_id=artifact.job_id,
            call_id=artifact.call_id,
            name=artifact.name,
            path=artifact.path,
            description=artifact.description,
            size=artifact.size,
            sha256=artifact.sha256,
            content_type=artifact.content_type,
            content_url=f"/v1/artifacts/{artifact.id}/content",
            created_at=artifact.created_at,
        )


class FileView(BaseModel):
    """An uploaded file, in OpenAI's shape."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int = Field(description="Unix seconds.")
    filename: str
    purpose: Literal["user_data"] = Field("user_data", description="Always this: files are inputs of jobs.")
    status: Literal["processed"] = "processed"
    sha256: str
    content_type: str

    @classmethod
    def of(cls, file: StoredFile) -> FileView:
        """The view of a file."""
        return cls(
            id=file.id,
            bytes=file.size,
            created_at=int(file.created_at.timestamp()),
            filename=file.filename,
            sha256=file.sha256,
            content_type=file.content_type,
        )


class ListView(BaseModel, Generic[Item]):
    """A page of a list, with OpenAI's fields."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None = Field(description="Id of the first row.")
    last_id: str | None = Field(description="Id of the last row.")
    has_more: bool
    next_cursor: str | None = Field(description="Value of `after` for the next page; null on the last.")


def listed(items: list[Item], ids: list[str], *, has_more: bool) -> ListView[Item]:
    """A page; `ids` are those of its rows."""
    last = ids[-1] if ids else None
    return ListView(data=items, first_id=ids[0] if ids else None, last_id=last, has_more=has_more, next_cursor=last if has_more else None)
