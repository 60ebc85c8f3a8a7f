"""What PostgreSQL can hold: its text and jsonb take neither NUL nor halves of surrogate pairs, its jsonb no infinite numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT: Final = "\ufffd"


def storable(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """The same JSON value with every character that can't be stored replaced by U+FFFD, and NaN and infinities by their names.

    Models and commands may say anything.
    """
    if isinstance(value, str):
        return _UNSTORABLE.sub(_REPLACEMENT, value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {storable(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value
