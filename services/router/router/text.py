"""Text that can be stored and sent on: JSON can spell strings that neither PostgreSQL nor UTF-8 can hold."""

from __future__ import annotations

import math
from typing import Any, Final

from dualtrack.domain.errors import InvalidRequest

_SHOWN_CHARS: Final = 100
"""Of a key that is at fault."""

_Place = tuple[Any, object] | None
"""Where a value is: its parent's place and its key there. Linked, so that deep nesting costs no more than wide."""


def _name(place: _Place) -> str:
    parts = []
    while place is not None:
        place, key = place
        parts.append(str(key))
    return ".".join(reversed(parts))


def _fault(text: str) -> str | None:
    if "\x00" in text:
        return "must not hold the NUL character (\\u0000)"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "holds half of a surrogate pair (\\ud800 to \\udfff), which is no character"
    return None


def require_clean(value: object, param: str = "") -> None:
    """Refuse a decoded JSON value with strings that no database or wire can hold, or numbers that are none (NaN, Infinity).

    Raises:
        InvalidRequest: naming the field, such as `metadata.team` or `messages.0.content`.
    """
    waiting: list[tuple[object, _Place]] = [(value, (None, param) if param else None)]
    while waiting:
        item, place = waiting.pop()
        fault = None
        if isinstance(item, str):
            fault = _fault(item)
        elif isinstance(item, float):
            fault = None if math.isfinite(item) else "must be a finite number"
        elif isinstance(item, dict):
            for key in item:
                if isinstance(key, str) and (fault := _fault(key)):
                    fault = f"the key {key[:_SHOWN_CHARS]!a} {fault}"
                    break
            waiting.extend((inner, (place, key)) for key, inner in item.items())
        elif isinstance(item, list | tuple):
            waiting.extend((inner, (place, n)) for n, inner in enumerate(item))
        if fault:
            name = _name(place)
            raise InvalidRequest(f"{name or 'The body'}: {fault}.", param=name or None)
