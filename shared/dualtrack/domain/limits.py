"""Every limit of the platform, in one place (design rule 7).

`PlatformLimits` is set by the operator (environment `DUALTRACK_LIMITS__…`), `JobLimits` by whoever submits a job, within
the platform's ceiling. Sizes are bytes, times seconds, money US dollars unless a name says otherwise.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictInt,
    ValidationInfo,
    model_validator,
)

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

URL_CHARS = 2048
"""Longest URL that the platform sends a request to."""

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


GARBAGE_S = 24 * 3600.0
"""An object that nothing refers to may be deleted once it is older than this."""
FRESH_S = GARBAGE_S / 4
"""An object that was last put longer ago is put again rather than relied upon, unless something recorded refers to it."""
IDEMPOTENCY_S = 30 * 24 * 3600.0
"""Idempotency keys hold for at least this long."""
DELIVERY_LOG_S = 30 * 24 * 3600.0
"""A tenant's webhook keeps what became of its deliveries for at least this long."""
FAMILY_JOBS = 10_000
"""Jobs below one that are added up when it is shown; platforms whose limits allow larger families are told so in the answer."""
SUSPECT_TRIES = 2
"""Claims without a record after which a row may be what kills its workers: from then on a process of its own works on it."""
CLOCK_SKEW_S = 24 * 3600.0
"""A router's clock may be this far from the database's, and lists of jobs by time of creation still show all of them."""
PRESENCE_RETURN_S = 6.0
"""After a start of the database server, workers have this long to come back before a missing session lock means death."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


LARGEST: Final = {"steps": 10_000, "tokens": 1_000_000_000, "cost_usd": 100_000, "wall_time_s": 30 * 24 * 3600}
"""The most that a job may be given."""
Steps = Annotated[StrictInt, Field(ge=1, le=LARGEST["steps"], description="Decisions of the planner.")]
Tokens = Annotated[StrictInt, Field(ge=1, le=LARGEST["tokens"], description="Input and output tokens of all model calls together.")]
SMALLEST_USD: Final = Decimal("1e-9")
"""The unit that prices are kept in."""
STORED: Final = {"stored": True}
"""Pydantic's context for reading a record: what an earlier release took is read, whatever is taken today."""
_PLAIN_DECIMAL: Final = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


def _number(value: object, info: ValidationInfo) -> object:
    """Of text only amounts as the API itself writes them."""
    if isinstance(value, str) and info.context != STORED and _PLAIN_DECIMAL.fullmatch(value) is None:
        raise ValueError("must be a number, or one in plain digits as a string, such as 2.50")
    return value


def _amount(value: Decimal, info: ValidationInfo) -> Decimal:
    if 0 < value < SMALLEST_USD and info.context != STORED:
        raise ValueError(f"must be 0 or at least {SMALLEST_USD:f}")
    return Decimal(_plain(abs(value.quantize(SMALLEST_USD)).normalize()))


def _plain(amount: Decimal) -> str:
    return format(amount, "f")


CostUsd = Annotated[
    Decimal,
    BeforeValidator(_number),
    Field(ge=0, le=LARGEST["cost_usd"], description="Price of all model calls together, US dollars."),
    AfterValidator(_amount),
    PlainSerializer(_plain, return_type=str, when_used="json"),
]
WallTimeS = Annotated[
    StrictInt,
    Field(ge=1, le=LARGEST["wall_time_s"], description="Seconds from acceptance to the end, without those in which it waited."),
]


class JobLimits(_Frozen):
    """What one job and its children together may use."""

    steps: Steps = 50
    tokens: Tokens = 2_000_000
    cost_usd: CostUsd = Decimal(10)
    wall_time_s: WallTimeS = 3600
    on_limit: Literal["wait", "fail"] = Field(
        "wait", description="What reaching a limit does: the job waits until it is extended or cancelled, or it ends."
    )


class LimitsChange(_Frozen):
    """New ceilings of a job, absolute, so that asking twice changes nothing; what is left out stays as it is."""

    steps: Steps | None = None
    tokens: Tokens | None = None
    cost_usd: CostUsd | None = None
    wall_time_s: WallTimeS | None = None

    @model_validator(mode="after")
    def _something(self) -> LimitsChange:
        if not self.given:
            raise ValueError("must name at least one of steps, tokens, cost_usd, wall_time_s")
        return self

    @property
    def given(self) -> dict[str, Any]:
        """The limits that are to change."""
        return self.model_dump(exclude_none=True)


class SandboxLimits(_Frozen):
    """What one command in a sandbox, and a whole session, may use. All are enforced; which one ended a command is reported by name."""

    wall_time_s: Seconds = Field(120.0, le=24 * 3600, description="Wall-clock seconds.")
    cpu_time_s: Positive = Field(
        120,
        le=24 * 3600,
        description="CPU seconds of a command with all its processes, and of all that goes on between two, by the control group; "
        "of each process by itself too.",
    )
    memory_bytes: Positive = Field(1 * GIB, description="Memory of the whole command (cgroup) or address space of each process.")
    processes: Positive = Field(128, description="Processes and threads at once.")
    output_bytes: Positive = Field(
        1 * MIB,
        description="Bytes shown of stdout and of stderr each; the rest is kept up to `spool_bytes`, and dropped beyond. "
        "What writes 64 times as much is killed.",
    )
    file_bytes: Positive = Field(256 * MIB, description="Largest single file a process may write.")
    open_files: Positive = Field(512, description="Open file descriptors of each process.")
    disk_bytes: Positive = Field(1 * GIB, description="All files of the workspace together, looked at about once a second.")
    disk_files: Positive = Field(100_000, description="Files and directories of the workspace, looked at with `disk_bytes`.")
    spool_bytes: int = Field(
        16 * MIB, ge=0, description="Bytes of stdout and stderr together beyond `output_bytes` that are kept all the same, as an artifact."
    )
    idle_s: Seconds = Field(
        600.0, description="A session in which nothing was run for this long ends, and with it its background processes."
    )
    sessions_kept: int = Field(
        32, ge=0, le=4096, description="Sessions that jobs keep between two calls; of more, those used least recently end."
    )
    sessions: int = Field(
        64, ge=1, le=4096, description="Sandboxes of one executor process at once: those of its jobs, warm ones, and those being removed."
    )


class EgressLimits(_Frozen):
    """What one sandbox session may do over the network, where its agent is allowed any (docs/network.md)."""

    connections: int = Field(32, ge=1, le=512, description="Connections of a session to its proxy at once; further ones are refused.")
    requests: Positive = Field(10_000, description="Requests and tunnels of a session.")
    head_bytes: int = Field(64 * KIB, ge=4 * KIB, le=MIB, description="Request line and headers, or status line and headers.")
    head_fields: Positive = Field(100, description="Headers of a request.")
    head_s: Seconds = Field(15.0, description="Seconds for a request's line and headers, or a TLS handshake.")
    connect_s: Seconds = Field(15.0, description="Seconds to look a host up and connect to it.")
    idle_s: Seconds = Field(300.0, description="A connection on which nothing is sent or received for this long is closed.")
    lifetime_s: Seconds = Field(3600.0, description="Longest life of a connection.")
    events: Positive = Field(50, description="Events of requests that one tool call leaves; further requests are added up by host.")


class PlatformLimits(_Frozen):
    """The operator's ceilings."""

    request_bytes: Positive = Field(8 * MIB, description="Largest JSON body of a request.")
    upload_bytes: Positive = Field(512 * MIB, description="Largest uploaded file.")
    instructions_chars: Positive = Field(100_000, description="Longest instructions of a job.")
    job_inputs: Positive = Field(100, description="Input files of a job.")
    job_checks: Positive = Field(20, description="Check commands of a job.")
    job_outputs: Positive = Field(100, description="Output files of a job.")
    metadata_entries: Positive = Field(16, description="Entries of a job's metadata (as in OpenAI's API).")
    message_chars: Positive = Field(20_000, description="Longest message to a running job.")
    messages: Positive = Field(1000, description="Messages to a job.")
    page_size: Positive = Field(100, description="Most rows on a page of a list.")
    event_page_size: Positive = Field(1000, description="Most events on a page.")
    calls_per_step: Positive = Field(16, description="Tool calls taken from one decision.")
    arguments_bytes: Positive = Field(256 * KIB, description="Arguments of one tool call, as JSON.")
    observation_chars: Positive = Field(4000, description="Characters of an observation kept in context; all of it is kept as an object.")
    observation_bytes: Positive = Field(8 * MIB, description="Largest observation kept as an object.")
    workspace_bytes: Positive = Field(1 * GIB, description="All files of a workspace together.")
    workspace_files: Positive = Field(100_000, description="Files and directories of a workspace.")
    artifact_bytes: Positive = Field(1 * GIB, description="Largest artifact.")
    artifacts: Positive = Field(1000, description="Artifacts of a job.")
    context_tokens: Positive = Field(
        100_000, description="Context at which the older steps are summarised; for a model with a small window, 0.7 of that if it is less."
    )
    context_steps: int = Field(200, ge=10, description="Steps in context after which the older ones are summarised, however short.")
    summary_chars: int = Field(12_000, ge=1000, description="Longest summary of older steps.")
    history_chars: Positive = Field(
        64 * MIB,
        description="Characters of running jobs' steps and messages that a planner process keeps in memory, to read each only once.",
    )
    malformed_actions: Positive = Field(3, description="Malformed model answers in a row before a job fails.")
    children: Positive = Field(20, description="Child jobs that one job may start with `delegate`.")
    child_depth: Annotated[int, Field(ge=0, le=10)] = Field(2, description="How deep child jobs may be nested; 0: no job may start one.")
    same_failure: Positive = Field(3, description="Times the same call may fail the same way in a row before a job is stopped.")
    attempts: Positive = Field(
        5, description="Attempts of a step or call after crashes or failures of our machinery; outages (provider, storage) are waited out."
    )
    key_day_tokens: Positive | None = Field(
        None, description="Tokens that the jobs and chats of a key may use in a day (UTC), where the key has no limit of its own."
    )
    key_day_cost_usd: Annotated[Decimal, Field(ge=0)] | None = Field(
        None, description="US dollars that the jobs and chats of a key may cost in a day (UTC), where the key has no limit of its own."
    )
    waiting_s: Seconds = Field(
        7 * 24 * 3600,
        description="A job that waits for a person or a budget for this long expires; the rest of its key's day is not counted.",
    )
    approval_s: Seconds = Field(
        24 * 3600, le=30 * 24 * 3600, description="An approval or question that nobody decides for this long is a no."
    )
    approval_chars: Positive = Field(4000, description="Characters of a reason, note or answer that a person gives.")
    lease_s: Seconds = Field(15.0, description="A claim without a heartbeat for this long is free for another worker.")
    heartbeat_s: Seconds = Field(
        2.0, description="Seconds between heartbeats; also how late a running call hears of a cancel whose notification was lost."
    )
    ring_s: Seconds = Field(5.0, description="Seconds after which work that nobody claimed is rung again (doubling up to ten times this).")
    backoff_s: Seconds = Field(1.0, description="First pause after a failure of our machinery; doubles, with jitter.")
    backoff_max_s: Seconds = Field(60.0, description="Longest such pause.")
    stream_poll_s: Seconds = Field(0.2, description="Seconds between two looks for new events while somebody watches a stream.")
    streams: Positive = Field(1000, description="Event streams and waiting requests (`wait_s`) that one router process keeps open at once.")
    long_poll_s: Seconds = Field(60.0, description="Longest time that a request for a job may wait for its end (`wait_s`).")
    stream_keepalive_s: Seconds = Field(15.0, description="Seconds of silence after which a stream carries a comment line.")
    presign_s: Positive = Field(900, description="Life of a presigned download address.")
    webhooks: Positive = Field(50, description="Webhook endpoints of a tenant, besides those of single jobs.")
    webhook_timeout_s: Seconds = Field(15.0, description="Longest wait for a webhook's answer.")
    webhook_retry_s: Seconds = Field(24 * 3600.0, description="A delivery that fails is tried again for this long.")
    webhook_backoff_s: Seconds = Field(5.0, description="Longest pause before the second attempt; triples with each, half of it jitter.")
    webhook_backoff_max_s: Seconds = Field(4 * 3600.0, description="Longest pause between two attempts.")
    webhook_rotation_s: Seconds = Field(24 * 3600.0, description="After a rotation the old secret signs beside the new one for this long.")
    webhook_in_flight: Positive = Field(16, description="Deliveries that one scheduler sends at once.")
    webhook_in_flight_each: Positive = Field(2, description="Deliveries to one endpoint at once.")
    webhook_answer_bytes: Positive = Field(1000, description="Bytes of a webhook's answer that the delivery log keeps.")
    scheduler_threads: int = Field(
        4, ge=1, le=64, description="Threads of a scheduler that merge children's files, and as many that submit jobs of schedules."
    )
    schedules: Positive = Field(1000, description="Schedules of a tenant.")
    schedule_queue: Positive = Field(10, description="Times of a schedule that wait for its earlier jobs to end; further ones are skipped.")
    schedule_runs: Positive = Field(1000, description="Times of a schedule that its history keeps.")
    schedule_grace_s: Seconds = Field(60.0, description="A time that the scheduler comes to later than this counts as missed.")
    sandbox: SandboxLimits = SandboxLimits()
    egress: EgressLimits = EgressLimits()

    @model_validator(mode="after")
    def _a_lease_outlives_its_heartbeats(self) -> PlatformLimits:
        if self.lease_s < 2 * self.heartbeat_s:
            raise ValueError("lease_s must be at least twice heartbeat_s, or every claim is lost before it is renewed")
        return self
