"""The messages of a chat, as OpenAI describes them: what is no message is refused here, by name, and reaches no provider.

Fields that are not described pass: providers have some of their own, such as `cache_control` or `reasoning_content`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Loose(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Text(_Loose):
    type: Literal["text"]
    text: str


class _Refusal(_Loose):
    type: Literal["refusal"]
    refusal: str


class _ImageUrl(_Loose):
    url: str
    detail: str | None = None


class _Image(_Loose):
    type: Literal["image_url"]
    image_url: _ImageUrl


class _AudioData(_Loose):
    data: str
    format: str


class _Audio(_Loose):
    type: Literal["input_audio"]
    input_audio: _AudioData


class _FileData(_Loose):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class _File(_Loose):
    type: Literal["file"]
    file: _FileData


class _Function(_Loose):
    name: str
    arguments: str


class _FunctionCall(_Loose):
    type: Literal["function"]
    id: str
    function: _Function


class _Custom(_Loose):
    name: str
    input: str


class _CustomCall(_Loose):
    type: Literal["custom"]
    id: str
    custom: _Custom


class _AudioAnswer(_Loose):
    id: str


_Asked = Annotated[_Text | _Image | _Audio | _File, Field(discriminator="type")]
_Said = Annotated[_Text | _Refusal, Field(discriminator="type")]
_ToolCall = Annotated[_FunctionCall | _CustomCall, Field(discriminator="type")]


class _Message(_Loose):
    name: str | None = None


class _Orders(_Message):
    role: Literal["system", "developer"]
    content: str | list[_Text]


class _User(_Message):
    role: Literal["user"]
    content: str | list[_Asked]


class _Assistant(_Message):
    role: Literal["assistant"]
    content: str | list[_Said] | None = None
    refusal: str | None = None
    audio: _AudioAnswer | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


class _Tool(_Message):
    role: Literal["tool"]
    tool_call_id: str
    content: str | list[_Asked]
    """OpenAI takes text only, other providers images too."""


class _FunctionAnswer(_Message):
    role: Literal["function"]
    name: str
    content: str | None = None


ChatMessage = Annotated[_Orders | _User | _Assistant | _Tool | _FunctionAnswer, Field(discriminator="role")]
"""One message."""
