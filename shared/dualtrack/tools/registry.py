"""The tools by name, and the check of arguments against their schemas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from dualtrack.domain.errors import UnknownTool
from dualtrack.domain.tool import ToolSpec
from dualtrack.tools.artifacts import ReadArtifact, SaveArtifact
from dualtrack.tools.control import ASK_HUMAN, FINISH, UPDATE_PLAN
from dualtrack.tools.delegate import DELEGATE
from dualtrack.tools.files import EditFile, ListFiles, ReadFile, WriteFile
from dualtrack.tools.port import Tool
from dualtrack.tools.python import ExecutePython
from dualtrack.tools.search import SearchFiles
from dualtrack.tools.shell import Check, Shell

TOOLS: Final[tuple[Tool, ...]] = (
    ExecutePython(),
    Shell(),
    ReadFile(),
    WriteFile(),
    EditFile(),
    ListFiles(),
    SearchFiles(),
    ReadArtifact(),
    SaveArtifact(),
)

_SHOWN_CHARS: Final = 200


class Fault(NamedTuple):
    """What is wrong with arguments."""

    field: str
    message: str


class Registry:
    """All tools of the platform. Immutable, thread-safe."""

    def __init__(self, tools: Iterable[Tool] = TOOLS, *, internal: Iterable[Tool] = (Check(),)) -> None:
        """Takes the executable tools on offer, and those that only the engine calls."""
        offered = tuple(tools)
        self._tools = {tool.spec.name: tool for tool in (*offered, *internal)}
        own = (UPDATE_PLAN, FINISH, ASK_HUMAN, DELEGATE)
        self._specs = {tool.spec.name: tool.spec for tool in offered} | {spec.name: spec for spec in own}

    def spec(self, name: str, *, param: str | None = None) -> ToolSpec:
        """The tool on offer of that name.

        Raises:
            UnknownTool: there is none; the message lists those there are.
        """
        if name not in self._specs:
            raise UnknownTool(f"There is no tool {name[:_SHOWN_CHARS]!r}. The tools are: {', '.join(self._specs)}.", param=param)
        return self._specs[name]

    def specs(self, names: Iterable[str], *, param: str = "agent.tools") -> tuple[ToolSpec, ...]:
        """The tools on offer of those names, in that order. Raises `UnknownTool`; `param` is the field that named them."""
        return tuple(self.spec(name, param=param) for name in names)

    def on_offer(self, names: Iterable[str]) -> tuple[ToolSpec, ...]:
        """Those of the tools that are on offer, in that order: an agent may name some that the operator has taken away since."""
        return tuple(self._specs[name] for name in names if name in self._specs)

    def tool(self, name: str) -> Tool:
        """The executable tool of that name, the engine's own included. Raises `UnknownTool`."""
        if name not in self._tools:
            raise UnknownTool(f"There is no tool {name[:_SHOWN_CHARS]!r} that can be executed. There are: {', '.join(self._tools)}.")
        return self._tools[name]

    def validate(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> str | None:
        """What is wrong with the arguments, naming the field; None when they fit the schema and can be stored and passed on as text."""
        wrong = self.fault(spec, arguments)
        return None if wrong is None else f"{wrong.field}: {wrong.message}" if wrong.field else wrong.message

    def fault(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Fault | None:
        """The same in two parts: the field (empty: the arguments as a whole) and what is wrong with it."""
        from jsonschema import Draft202012Validator

        errors = sorted(Draft202012Validator(spec.parameters).iter_errors(dict(arguments)), key=lambda error: list(map(str, error.path)))
        if errors:
            field = ".".join(str(part) for part in errors[0].absolute_path)
            message = errors[0].message
            if len(message) > _SHOWN_CHARS:  # it quotes the value at fault first, the rule last
                message = f"{message[: _SHOWN_CHARS // 2]}…{message[-_SHOWN_CHARS // 2 :]}"
            return Fault(field, message)
        return _unstorable(arguments, "")


def _unstorable(value: Any, field: str) -> Fault | None:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        if "\x00" in value:
            return Fault(field, "must not hold the character NUL")
        try:
            value.encode()
        except UnicodeEncodeError:
            return Fault(field, "must be valid Unicode (it holds half of a surrogate pair)")
    if isinstance(value, float) and not math.isfinite(value):
        return Fault(field, "must be a finite number")
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        wrong = _unstorable(key, f"a key of {field or 'the arguments'}") or _unstorable(item, f"{field}.{key}" if field else str(key))
        if wrong is not None:
            return wrong
    return None
