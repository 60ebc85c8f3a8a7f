"""Which of a tool call's arguments tells a reader what it does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from cli.text import one_line

_ESSENTIAL: Final = {
    "execute_python": ("code",),
    "shell": ("command",),
    "read_file": ("path",),
    "write_file": ("path",),
    "edit_file": ("path",),
    "list_files": ("path",),
    "search_files": ("pattern", "query", "path"),
    "read_artifact": ("call_id", "id", "artifact_id"),
    "save_artifact": ("path", "name"),
    "finish": ("answer",),
    "ask_human": ("question",),
}


def essential(tool: str, arguments: object) -> str:
    """The argument that tells what a call does, on one line: the command, the path, the first lines of code."""
    if not isinstance(arguments, Mapping):
        return ""
    for name in _ESSENTIAL.get(tool, ()):
        if arguments.get(name):
            return one_line(arguments[name], 80)
    if tool == "update_plan" or not arguments:
        return ""
    return one_line(json.dumps(dict(arguments), ensure_ascii=False, default=str), 80)
