"""What of a chat request reaches a model.

Only OpenAI's own fields pass; all others are dropped, since LiteLLM would read some of them (`api_base`, `api_key`, `mock_response`)
as orders to itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dualtrack.domain import faulty
from dualtrack.domain.errors import InvalidRequest
from dualtrack.models.chat_messages import ChatMessage
from dualtrack.models.prompts import LOCAL_CHAT_SYSTEM_PROMPT

_STANDING_ORDERS: Final = frozenset({"system", "developer"})


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool | None = None


class ChatBody(BaseModel):
    """The fields of `POST /v1/chat/completions` that are passed on."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    max_completion_tokens: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(None, ge=1, le=16)
    parallel_tool_calls: bool | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None
    seed: int | None = None
    service_tier: str | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    tool_choice: str | dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    top_p: float | None = Field(None, ge=0, le=1)
    user: str | None = None
    verbosity: str | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to end with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def provider_fields(self, *, output_tokens: int, local: bool) -> dict[str, Any]:
        """The fields for one model: output limited to the model's own limit; the local model is told what it is unless the caller did."""
        fields = self.model_dump(exclude_none=True, exclude={"model", "stream", "stream_options", "max_tokens", "max_completion_tokens"})
        asked = self.max_completion_tokens or self.max_tokens
        fields["max_tokens"] = min(asked or output_tokens, output_tokens)
        if local and not any(message.role in _STANDING_ORDERS for message in self.messages):
            fields["messages"] = [{"role": "system", "content": LOCAL_CHAT_SYSTEM_PROMPT}, *fields["messages"]]
        return fields


def chat_body(body: Mapping[str, Any]) -> ChatBody:
    """The checked body.

    Raises:
        InvalidRequest: a field is missing or of the wrong type; `param` names it.
    """
    try:
        return ChatBody.model_validate(dict(body))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        param, first = faulty.telling([(faulty.place(fault, fault["loc"], body), fault) for fault in found])[0]
        raise InvalidRequest(f"{param}: {first['msg']}.", param=param) from error
