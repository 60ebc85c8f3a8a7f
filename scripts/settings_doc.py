"""Writes docs/settings.md from the settings model; `--check` only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Annotated, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dualtrack.settings import ENV_PREFIX, Settings

PATH = Path(__file__).parents[1] / "docs" / "settings.md"
PAGE = """\
# Settings

Written from `shared/dualtrack/settings.py` by `make docs`; a test fails when it is out of date.

Every setting is an environment variable, `{prefix}` and the path to it with two underscores between the parts; or a field of the YAML
file that `{prefix}CONFIG` names, under the same path in lower case. A variable wins over the file. Unknown fields and values out of range
are refused at the start, with the name of the setting. Lists and tables (`MODELS`, `TRACKS`) are JSON in a variable.

As a variable: `{prefix}LIMITS__SANDBOX__WALL_TIME_S=300`. The same in the file:

```yaml
limits:
  sandbox:
    wall_time_s: 300
```

Sizes are bytes, times seconds (`_s`), money US dollars unless a name says otherwise. `docs/compose.md` tells how to set them in the
compose stack.
{sections}"""
_SIGNS = {
    Ge: ("ge", "≥"),
    Gt: ("gt", ">"),
    Le: ("le", "≤"),
    Lt: ("lt", "<"),
    MinLen: ("min_length", "characters ≥"),
    MaxLen: ("max_length", "characters ≤"),
}

_KINDS: dict[object, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "`true` or `false`",
    Path: "path",
    SecretStr: "text, secret",
}


def page() -> str:
    return PAGE.format(prefix=ENV_PREFIX, sections="".join(_sections()))


def _sections() -> Iterator[str]:
    general = {name: field for name, field in Settings.model_fields.items() if not _models(field.annotation)}
    yield "\n## General\n\n" + _table(general, ENV_PREFIX)
    for name, field in Settings.model_fields.items():
        for model in _models(field.annotation):
            yield from _section(model, (name,))


def _section(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[str]:
    variant = model.model_fields.get("driver")
    chosen = f" (driver `{get_args(variant.annotation)[0]}`)" if variant and len(get_args(variant.annotation)) == 1 else ""
    plain = {name: field for name, field in model.model_fields.items() if not _models(field.annotation)}
    prefix = ENV_PREFIX + "".join(f"{part.upper()}__" for part in path)
    title = " · ".join(path).capitalize()
    about = " ".join((model.__doc__ or "").split())
    yield f"\n## {title}{chosen}\n\n{about}\n\n{_table(plain, prefix)}"
    for name, field in model.model_fields.items():
        entry = _entry(field.annotation)
        if entry is not None:
            about = " ".join((entry.__doc__ or "").split())
            yield f"\n## One {_one(entry)} of `{prefix}{name.upper()}`\n\n{about}\n\n{_table(entry.model_fields, '')}"
        for nested in _models(field.annotation):
            yield from _section(nested, (*path, name))


def _table(fields: dict[str, FieldInfo], prefix: str) -> str:
    rows = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        shown = f"{prefix}{name.upper()}" if prefix else name
        rows.append(f"| `{shown}` | {_default(field)} | {_values(field)} | {_escape(field.description or '')} |")
    return "\n".join(rows) + "\n"


def _models(annotation: object) -> list[type[BaseModel]]:
    """The sections that a field is, or may be one of."""
    if get_origin(annotation) in {dict, list}:
        return []
    candidates = get_args(annotation) or (annotation,)
    return [part for part in candidates if isinstance(part, type) and issubclass(part, BaseModel)]


def _entry(annotation: object) -> type[BaseModel] | None:
    """What a mapping of names to sections, or a list of them, holds."""
    found = _models(get_args(annotation)[-1]) if get_origin(annotation) in {dict, list} else []
    return found[0] if found else None


def _one(entry: type[BaseModel]) -> str:
    return entry.__name__.removesuffix("Settings").removesuffix("Definition").removeprefix("Policy").lower()


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ({}, [], ()):
        return ""
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, bool):
        value = str(value).lower()
    return f"`{_escape(str(value))}`"


def _values(field: FieldInfo) -> str:
    parts = [_kind(field.annotation)]
    for rule in field.metadata:
        for kind, (attribute, sign) in _SIGNS.items():
            if isinstance(rule, kind):
                counted = sign.replace("characters", "entries") if get_origin(field.annotation) in {dict, list, tuple} else sign
                parts.append(f"{counted} {getattr(rule, attribute)}")
        pattern = getattr(rule, "pattern", None)
        if pattern:
            parts.append(f"`{_escape(pattern)}`")
    return ", ".join(parts)


def _choices(annotation: object) -> list[str]:
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return [choice.value for choice in annotation]
    return list(get_args(annotation)) if get_origin(annotation) is Literal else []


def _kind(annotation: object) -> str:
    choices = _choices(annotation)
    if choices:
        return " or ".join(f"`{value}`" for value in choices)
    members = [part for part in get_args(annotation) if part is not NoneType]
    if NoneType in get_args(annotation) and len(members) == 1:
        return _kind(members[0])
    if get_origin(annotation) is dict:
        entry = _entry(annotation)
        return "table of names to " + (f"{_one(entry)}s" if entry is not None else _kind(get_args(annotation)[1]))
    if get_origin(annotation) in {list, tuple}:
        return "list of rules" if _entry(annotation) else f"list of {_kind(members[0])}"
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    names: dict[object, str] = {
        str: "text",
        int: "integer",
        float: "number",
        bool: "`true` or `false`",
        Path: "path",
        SecretStr: "text, secret",
    }
    return names.get(annotation) or str(getattr(annotation, "__name__", annotation)).lower()


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PATH.read_text(encoding="utf-8") == page() else f"{PATH.name} is out of date: run `make docs`")
    PATH.write_text(page(), encoding="utf-8")
