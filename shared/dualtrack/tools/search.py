"""`search_files`."""

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

DEFAULT_MATCHES: Final = 50


class SearchFiles:
    """Lines by regular expression."""

    spec = ToolSpec(
        "search_files",
        "Search the workspace's text files for a Python regular expression; returns path:line: text. `glob` such as '*.py' narrows it.",
        schema(
            {"pattern": {"type": "string", "minLength": 1, "maxLength": 1000}},
            {
                "path": PATH,
                "glob": {"type": "string", "minLength": 1, "maxLength": 200},
                "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
            },
        ),
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
            "search",
            path=path,
            pattern=arguments["pattern"],
            glob=arguments.get("glob"),
            limit=arguments.get("limit", DEFAULT_MATCHES),
            limit_chars=page_chars(context),
        )
