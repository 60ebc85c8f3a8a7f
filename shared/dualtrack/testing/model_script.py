"""Scripts: what a scripted model answers, chosen by how far a conversation has come and by nothing else.

A script is a list of steps; a conversation with N past steps (assistant messages) gets step N, so a question asked again
after a crash gets the same answer. It is given when the model is built, or travels inside the job's instructions as a fenced block:

    ```script
    [{"tool": "shell", "arguments": {"command": "ls"}}, {"tool": "finish", "arguments": {"answer": "done"}}]
    ```

Only failures that go away after some tries (`times`) need memory; `Failures` keeps it per conversation and step.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Failure = Literal["rate_limited", "server_error", "hang", "cut", "context_too_long", "refused"]

_FENCE: Final = re.compile(r"```script\s*\n(.*?)\n\s*```", re.DOTALL)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScriptedCall(_Frozen):
    """One tool call."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ScriptedStep(_Frozen):
    """One answer. `{"tool": …, "arguments": …}` is short for one call.

    A summary asked for at this point is `text`, else a sentence that says of how many steps; `error` befalls it too.
    """

    thought: str = ""
    reflection: str = Field("", description="Given only where the request asks for a reflection; empty: a fixed sentence.")
    calls: tuple[ScriptedCall, ...] = ()
    text: str | None = Field(None, description="Answer with this text instead of an action (it may be nonsense, to test malformed ones).")
    error: Failure | None = Field(None, description="Fail instead of answering.")
    times: int | None = Field(None, ge=1, description="How often it fails before it answers; empty: always.")
    delay_s: float = Field(0, ge=0, le=3600, description="Seconds before the answer.")
    input_tokens: int | None = Field(None, ge=0, description="Reported usage; empty: a quarter of the characters.")
    output_tokens: int | None = Field(None, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        if isinstance(data, dict) and "tool" in data:
            rest = {key: value for key, value in data.items() if key not in {"tool", "arguments"}}
            return rest | {"calls": [{"tool": data["tool"], "arguments": data.get("arguments", {})}]}
        return data

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.calls and self.text is None and (self.error is None or self.times is not None):
            raise ValueError("A step needs `calls`, `text`, or an `error` that never goes away.")
        return self


class Script(_Frozen):
    """What one conversation gets, step by step; past the end, a call of `finish`."""

    steps: tuple[ScriptedStep, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _bare_list(cls, data: Any) -> Any:
        return {"steps": data} if isinstance(data, list) else data

    def step(self, number: int) -> ScriptedStep:
        """The answer of a conversation with `number` past steps."""
        if number < len(self.steps):
            return self.steps[number]
        return ScriptedStep(
            thought="The script has ended.", calls=(ScriptedCall(tool="finish", arguments={"answer": "The script has ended."}),)
        )


def script_in(texts: Iterable[str]) -> Script | None:
    """The script in the first fenced `script` block of the texts, if there is one.

    Raises:
        ValueError: there is a block, but it is no script; the message says why.
    """
    for text in texts:
        found = _FENCE.search(text)
        if found:
            try:
                return Script.model_validate(json.loads(found.group(1)))
            except (ValidationError, json.JSONDecodeError) as error:
                raise ValueError(f"The fenced script block is no script: {error}") from error
    return None


class Failures:
    """Counts failures that go away after some tries. Thread-safe."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._lock = threading.Lock()

    def due(self, step: ScriptedStep, conversation: str, number: int) -> Failure | None:
        """The failure this try gets, or None when it is to be answered."""
        if step.error is None or step.times is None:
            return step.error
        key = hashlib.sha256(f"{number}\n{conversation}".encode()).hexdigest()
        with self._lock:
            seen = self._seen.get(key, 0)
            if seen >= step.times:
                return None
            self._seen[key] = seen + 1
        return step.error


def summary_of(step: ScriptedStep, number: int) -> str:
    """What a scripted model writes when it is asked for a summary of `number` steps and stands at `step`."""
    return step.text if step.text is not None else f"What was done in {number} steps."


def token_estimate(text: str) -> int:
    """Tokens that a scripted model reports for a text: a quarter of its characters, at least one."""
    return max(1, len(text) // 4)


def echo(text: str) -> str:
    """What a scripted model says to a message it has no script for."""
    return f"You said: {text}"
