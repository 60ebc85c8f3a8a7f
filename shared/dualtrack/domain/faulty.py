"""Which fields of what was sent Pydantic's errors are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

KEY: Final = "[key]"
"""Where Pydantic means an object's key, not its value."""
_TAG_ERRORS: Final = frozenset({"union_tag_invalid", "union_tag_not_found"})
"""At fault is the field that says which of several shapes an object has; Pydantic names the object."""

Error = Mapping[str, Any]
"""One of `ValidationError.errors()`."""


def place(error: Error, loc: Sequence[Any], body: object) -> str:
    """`("limits", "steps")` as `limits.steps`.

    Pydantic adds the branches of a union (`messages.0.content.str`): only what the client sent, or left out, is named.
    """
    rest = list(loc)
    if rest and rest[-1] == KEY:  # a key itself is at fault: its object is named
        rest = rest[:-2]
    found = []
    for n, part in enumerate(rest):
        if (isinstance(body, dict) and part in body) or (isinstance(body, list) and isinstance(part, int) and part < len(body)):
            body = body[part]
        elif n < len(rest) - 1 or error["type"] != "missing":
            continue
        found.append(str(part))
    if error["type"] in _TAG_ERRORS:
        found.append(str(error["ctx"]["discriminator"]).strip("'"))
    return ".".join(found) or ".".join(map(str, rest))


def telling(placed: Sequence[tuple[str, Error]]) -> list[tuple[str, Error]]:
    """Those that say most, with their places: every branch of a union complains, the one that came deepest knows why."""
    return [(at, error) for at, error in placed if not any(other.startswith(f"{at}.") for other, _ in placed)]
