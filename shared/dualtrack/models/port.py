"""The model gateway as the engine and the router see it. Adapters: `models.gateway` (LiteLLM), `testing.scripted_model`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dualtrack.domain.tool import ProposedCall, ToolSpec
from dualtrack.domain.usage import Usage


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of an earlier step with what came back, as kept in context."""

    tool: str
    arguments: Mapping[str, Any]
    ok: bool
    observation: str


@dataclass(frozen=True, slots=True)
class PastStep:
    """One earlier step: what the model said and did, and what came back."""

    thought: str
    calls: tuple[PastCall, ...]
    note: str = ""
    """What the platform said after it (a malformed action, failed checks); shown after the observations."""
    reflection: str = ""
    messages: tuple[str, ...] = ()
    """What the job's user wrote after this step and before the next, oldest first; shown after everything else of it."""


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """The context of one decision: system, task, messages, summary, steps.

    From one decision to the next it is only added to, so that prefix caches hit, until a new summary takes the place of older steps.
    """

    model: str
    """A track (`deep`) or a configured model."""
    system: str
    """The agent's standing orders, without the tools."""
    task: str
    """Instructions, input files, checks: fixed for the job."""
    tools: Sequence[ToolSpec]
    steps: Sequence[PastStep]
    messages: tuple[str, ...] = ()
    """What the job's user wrote before the first of `steps`, oldest first, word for word whatever was summarised since."""
    summary: str = ""
    """What stands for the steps before the first of `steps`."""
    summarised: int = 0
    """How many steps that are."""
    reflect: bool = False
    """Ask first for a reflection: what went wrong in the last step, what changes."""
    timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What the model decided: calls to make (at least one; `finish` is a call too)."""

    thought: str
    reflection: str
    calls: tuple[ProposedCall, ...]
    model: str
    """The configured model that answered (a fallback may have)."""
    usage: Usage
    latency_s: float


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """A context that is to be replaced by a summary of it; its own summary of still earlier steps is taken in."""

    context: DecisionRequest
    """As it was shown for decisions, so that prefix caches hit."""
    most_chars: int
    """Longest summary that is of use; the model is told, and may write more all the same."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a model wrote for its later self."""

    text: str
    model: str
    """The configured model that wrote it."""
    usage: Usage
    latency_s: float


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model on offer, for `GET /v1/models`."""

    id: str
    track: bool
    """True for a track name, which stands for an ordered list of models."""
    targets: tuple[str, ...]
    """The configured models behind a track, in order of preference; for a model, itself."""
    context_tokens: int
    """Context window; of a track, that of its preferred model."""


class ModelGateway(Protocol):
    """Tracks and models, with fallbacks, timeouts, retries and prices.

    Raises `UnknownModel`, or one of the `ModelError` family when no model of the track gave an answer.
    """

    def models(self) -> Sequence[ModelInfo]:
        """All tracks, then all models."""
        ...

    def usage(self, model: str, raw: Mapping[str, Any] | None) -> Usage:
        """Tokens and price of a chat by the `usage` object of its answer; `model` is the answer's own."""
        ...

    def decide(self, request: DecisionRequest) -> Decision:
        """One decision of the planner (blocking).

        Raises:
            MalformedAction: the model answered, but with no action that can be read; carries what was wrong, and
                `usage` has been spent: the error's attributes `usage`, `model`, `raw` tell.
        """
        ...

    def summarise(self, request: SummaryRequest) -> Summary:
        """A summary of a job so far, from which it can go on (blocking).

        Raises:
            MalformedAction: the model answered, but with no text; the error's attributes tell what it cost.
        """
        ...

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """OpenAI's `chat.completion` for a request body of the same API; `model` is a track or a model."""
        ...

    def chat_stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """OpenAI's `chat.completion.chunk`s for such a body; usage in the last one where `stream_options.include_usage` asks."""
        ...
