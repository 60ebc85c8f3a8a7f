"""A job: what is asked for (`JobSpec`) and how it stands (`Job`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, StringConstraints, field_validator, model_validator

from dualtrack.domain.errors import InvalidPath
from dualtrack.domain.lifecycle import JobStatus, Phase
from dualtrack.domain.limits import JobLimits
from dualtrack.domain.network import MAX_SECRETS, NetworkAccess, SecretUse
from dualtrack.domain.paths import workspace_path
from dualtrack.domain.policy import MAX_RULES, PolicyRule
from dualtrack.domain.tool import FINISH_TOOL, PLAN_TOOL, SAVE_TOOL, OnUnknown
from dualtrack.domain.usage import Usage
from dualtrack.domain.waiting import Hold
from dualtrack.domain.webhook import JobWebhook

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}$")]
Command = Annotated[str, StringConstraints(min_length=1, max_length=4000)]

DEFAULT_AGENT_TOOLS: Final = (
    "execute_python",
    "shell",
    "read_file",
    "write_file",
    "edit_file",
    "list_files",
    "search_files",
    "read_artifact",
    SAVE_TOOL,
    PLAN_TOOL,
    FINISH_TOOL,
)
"""What an agent gets where its profile names none: all but those that need a person, child jobs or the outside world
(`ask_human`, `delegate`, `http_request`)."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AgentProfile(_Frozen):
    """Who does the job: which model decides, which tools it may use."""

    name: Name = "default"
    model: Name = Field("deep", description="A track or a configured model.")
    tools: tuple[Name, ...] = Field(
        DEFAULT_AGENT_TOOLS,
        min_length=1,
        max_length=64,
        description="Tools on offer instead of the default set; `finish` is always one of them.",
    )
    on_unknown: OnUnknown = Field(
        OnUnknown.TELL, description="What becomes of an external call of which nobody knows whether it happened: tell, ask, retry or fail."
    )
    policies: tuple[PolicyRule, ...] = Field(
        (),
        max_length=MAX_RULES,
        description="Which calls need consent or are never run: the first rule that fits, after the operator's own.",
    )
    template: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")] | None = Field(
        None,
        description="Template of its sandboxes (packages, files, environment): `default`, `shell`, `python-data` or the operator's own.",
    )
    network: NetworkAccess = Field(NetworkAccess(), description="What its sandboxes may reach; by default nothing.")
    secrets: tuple[SecretUse, ...] = Field(
        (), max_length=MAX_SECRETS, description="Secrets of the operator that its requests may carry without its seeing them."
    )
    system_prompt: str | None = Field(None, max_length=50_000, description="Standing orders instead of the built-in ones.")

    @model_validator(mode="after")
    def _each_once_and_finish(self) -> AgentProfile:
        tools = tuple(dict.fromkeys((*self.tools, FINISH_TOOL)))
        return self if tools == self.tools else self.model_copy(update={"tools": tools})


def _file_path(text: str) -> str:
    try:
        path = workspace_path(text)
    except InvalidPath as error:
        raise ValueError(error.message) from error
    if path == ".":
        raise ValueError("must name a file, not the workspace itself")
    return path


WorkspaceFile = Annotated[str, AfterValidator(_file_path)]
"""The normal path of a file in the workspace."""


class JobInput(_Frozen):
    """An uploaded file and where the workspace shows it."""

    file_id: str = Field(max_length=64, description="Id of an uploaded file.")
    path: WorkspaceFile | None = Field(None, description="Path in the workspace; empty: the uploaded file's name.")


class JobSpec(_Frozen):
    """What a client asks for."""

    instructions: str = Field(min_length=1, description="What to do, in plain words.")
    inputs: tuple[JobInput, ...] = Field((), description="Files put into the workspace before the first step.")
    agent: AgentProfile = Field(AgentProfile(), description="Model, tools and standing orders.")
    limits: JobLimits = Field(JobLimits(), description="What the job may use.")
    checks: tuple[Command, ...] = Field((), description="Shell commands that must exit 0 in the workspace before the job may succeed.")
    outputs: tuple[WorkspaceFile, ...] = Field(
        (), description="Workspace paths of files that must exist at the end; they are saved as artifacts."
    )
    metadata: dict[Annotated[str, StringConstraints(min_length=1, max_length=64)], Annotated[str, StringConstraints(max_length=512)]] = (
        Field(default_factory=dict, description="Up to 16 strings of your own, returned and filtered on.")
    )
    webhook: JobWebhook | None = Field(None, description="Who is told of this job, besides the tenant's webhooks.")
    priority: StrictInt = Field(0, ge=0, le=9, description="Higher is taken up first where the broker supports it.")

    @field_validator("outputs")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(value))

    @field_validator("instructions")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must not be blank")
        return value


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the database holds it. Times are aware, UTC."""

    id: str
    tenant_id: str
    spec: JobSpec
    status: JobStatus
    phase: Phase
    reason: str | None
    """Why it ended as it did or waits: a stable code such as `limit_steps`; None while all is well."""
    message: str | None
    """The same for a person."""
    answer: str | None
    plan: tuple[Mapping[str, Any], ...]
    step: int
    """Decisions recorded."""
    workspace: str | None
    """Digest of the workspace snapshot; None: empty."""
    last_seq: int
    attempt: int
    """Fencing token of the planner's claim."""
    tries: int
    """Claims since anything was recorded: counts crashes."""
    failures: int
    """Recorded failures (of the provider, of our machinery) since the last progress."""
    malformed: int
    """Malformed actions in a row."""
    compacted_through: int
    """The last step that `summary` stands for; use `summarised_through`."""
    verified_step: int
    """The last step whose verifications (checks, outputs) were judged."""
    stopping: JobStatus | None
    """The end that was asked for (`cancelled`, `expired`) while work was still going on."""
    usage: Usage
    traceparent: str
    """W3C context of the job's `invoke_agent` span, which is exported when the job ends."""
    request_traceparent: str
    """W3C context of the request that submitted it: the parent of that span."""
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime
    """When the wall time is used up; moves on by the time it waited."""
    limits: JobLimits
    """Those of the specification, or as they were extended since."""
    key_id: str | None = None
    """The API key that submitted it, whose daily budget it uses."""
    hold: Hold | None = None
    """Asked to stop at the next boundary: what runs is finished, nothing new is started."""
    waiting_since: datetime | None = None
    waiting_until: datetime | None = None
    """When the wait ends by itself: the job expires."""
    parent_id: str | None = None
    parent_call_id: str | None = None
    """The call of `delegate` whose outcome it is."""
    root_id: str | None = None
    """The job at the top of its family, itself excluded; None where it has no parent."""
    depth: int = 0
    """0 for a job without a parent."""
    forked_from: str | None = None
    forked_step: int | None = None
    first_workspace: str | None = None
    """Workspace before its first step."""
    messages: int = 0
    """How many messages it was sent."""
    summary: str = ""
    """What stands for its older steps in the model's context; empty: all steps are shown."""
    context_tokens: int = 0
    """Tokens of the last decision's context and answer, as the provider counted them; 0: not known, since it was changed."""

    @property
    def summarised_through(self) -> int:
        """Steps up to this one are shown to the model no more, but as `summary`; the first release wrote none."""
        return self.compacted_through if self.summary else 0
