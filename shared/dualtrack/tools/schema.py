"""Short JSON Schemas: each word of them is in every prompt."""

from __future__ import annotations

from typing import Any, Final

TIMEOUT: Final = {"type": "number", "exclusiveMinimum": 0, "maximum": 86400}
PATH: Final = {"type": "string", "minLength": 1, "maxLength": 1024}
COMMAND_CHARS: Final = 30_000
"""Longest shell command: in UTF-8 it stays below Linux's 128 KiB for one argument."""


def schema(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """The schema of an object with these members and no others."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }
