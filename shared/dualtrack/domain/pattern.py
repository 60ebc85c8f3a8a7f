"""Regular expressions of users over text of models: matched by RE2, in time linear in the text and with little memory, whatever they say.

Syntax: https://github.com/google/re2/wiki/Syntax (no back-references, no look-around; `$` is the end of the text).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Final

import re2
from pydantic import AfterValidator, StringConstraints

PATTERN_CHARS: Final = 500
_MEMORY_BYTES: Final = 64 * 1024
"""For a compiled pattern: what needs more (`(x{0,90}){0,90}`) is refused; 256 KiB of text take some seconds at the very worst."""


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> Any:  # noqa: ANN401 - the package has no types
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    return re2.compile(pattern, options)


def found(pattern: str, text: str) -> bool:
    """Whether the pattern matches anywhere in the text. Raises `ValueError` where it is none."""
    try:
        return _compiled(pattern).search(text) is not None
    except re2.error as error:
        raise ValueError(f"is no regular expression that RE2 takes: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)


def _valid(pattern: str) -> str:
    found(pattern, "")
    return pattern


Pattern = Annotated[str, StringConstraints(min_length=1, max_length=PATTERN_CHARS), AfterValidator(_valid)]
"""A regular expression that `found` takes."""
