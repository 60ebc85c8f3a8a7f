"""`read_file`, `write_file`, `edit_file`, `list_files`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dualtrack.domain.errors import InvalidPath
from dualtrack.domain.paths import workspace_path
from dualtrack.domain.tool import Effect, ToolSpec
from dualtrack.tools.port import ToolContext, ToolResult
from dualtrack.tools.rendering import refusal
from dualtrack.tools.schema import PATH, schema
from dualtrack.tools.workspace import ask, page_chars

DEFAULT_LINES: Final = 200
DEFAULT_ENTRIES: Final = 200
_TEXT: Final = {"type": "string", "maxLength": 200_000}


class ReadFile:
    """A text file, page by page."""

    spec = ToolSpec(
        "read_file",
        f"Read a text file of the workspace. Long files come in pages of at most {DEFAULT_LINES} lines; the last line says how to go on.",
        schema(
            {"path": PATH},
            {"offset_line": {"type": "integer", "minimum": 1}, "limit_lines": {"type": "integer", "minimum": 1, "maximum": 10_000}},
        ),
        Effect.PURE,
    )

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """See `Tool.run`."""
        try:
            path = workspace_path(arguments["path"])
        except InvalidPath as error:
            return refusal(error.message)
        return ask(
            context,
            "read",
            path=path,
            offset_line=arguments.get("offset_line", 1),
            limit_lines=arguments.get("limit_lines", DEFAULT_LINES),
            limit_chars=page_chars(context),
        )


class WriteFile:
    """Creates or replaces a file."""

    spec = ToolSpec(
        "write_file",
        "Write a text file in the workspace, replacing it if it exists. Missing directories are created.",
        schema({"path": PATH, "content": _TEXT}),
        Effect.WORKSPACE,
    )

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """See `Tool.run`."""
        try:
            path = workspace_path(arguments["path"])
        except InvalidPath as error:
            return refusal(error.message)
        return ask(context, "write", writable=True, path=path, content=arguments["content"])


class EditFile:
    """Replaces an exact text."""

    spec = ToolSpec(
        "edit_file",
        "Replace an exact piece of text in a file. `old` must occur exactly once, unless replace_all is true.",
        schema({"path": PATH, "old": {**_TEXT, "minLength": 1}, "new": _TEXT}, {"replace_all": {"type": "boolean"}}),
        Effect.WORKSPACE,
    )

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """See `Tool.run`."""
        try:
            path = workspace_path(arguments["path"])
        except InvalidPath as error:
            return refusal(error.message)
        old, new = arguments["old"], arguments["new"]
        if old == new:
            return refusal("`old` and `new` are the same text: nothing to change.")
        return ask(context, "edit", writable=True, path=path, old=old, new=new, replace_all=arguments.get("replace_all", False))


class ListFiles:
    """Names and sizes."""

    spec = ToolSpec(
        "list_files",
        "List the files and directories of the workspace, or of the directory `path`, with sizes.",
        schema({}, {"path": PATH, "recursive": {"type": "boolean"}, "limit": {"type": "integer", "minimum": 1, "maximum": 10_000}}),
        Effect.PURE,
    )

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """See `Tool.run`."""
        try:
            path = workspace_path(arguments.get("path", "."))
        except InvalidPath as error:
            return refusal(error.message)
        return ask(
            context,
            "list",
            path=path if path == "." else f"./{path}",
            recursive=arguments.get("recursive", False),
            limit=arguments.get("limit", DEFAULT_ENTRIES),
            limit_chars=page_chars(context),
        )
