"""What pydantic found wrong, in words for somebody who doesn't know pydantic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cli.text import one_line

if TYPE_CHECKING:
    from pydantic import ValidationError

_SHOWN: Final = 3
"""Faults named in one message; as many as the router names."""
_WORDS: Final = {
    "missing": "is missing",
    "extra_forbidden": "there is no such field",
    "string_type": "must be text",
    "string_unicode": "must be valid UTF-8 text",
    "string_pattern_mismatch": "must be a name: at most 128 letters, digits and . _ / : -, starting with a letter or digit",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "int_from_float": "must be a whole number",
    "decimal_type": "must be a number",
    "decimal_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}


def plain(error: ValidationError) -> str:
    """The faults as one sentence, `limits.steps: must be at least 1; priority: must be a whole number.` for instance."""
    everything = error.errors(include_url=False, include_input=False)
    places = [item["loc"] for item in everything]
    # A list whose entry is wrong is called empty as well: the deepest fault says most.
    found = [item for item in everything if not any(_is_inside(at, item["loc"]) for at in places)]
    sentences = [_sentence(item) for item in found[:_SHOWN]]
    more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
    return "; ".join(sentences) + f"{more}."


def _sentence(item: Mapping[str, Any]) -> str:
    where: Sequence[int | str] = item["loc"]
    # Pydantic marks a mapping's faulty key by a last part `[key]`, which nobody wrote.
    is_key = len(where) > 1 and where[-1] == "[key]"
    place = ".".join(one_line(part, 80) for part in (where[:-2] if is_key else where))
    words = _words(str(item["type"]), item.get("ctx") or {}) or str(item["msg"]).removeprefix("Value error, ")
    words = ("a key " if is_key else "") + (words[:1].lower() + words[1:]).rstrip(".")
    return f"{place}: {words}" if place else words


def _is_inside(place: tuple[int | str, ...], other: tuple[int | str, ...]) -> bool:
    return len(place) > len(other) and place[: len(other)] == other


def _words(kind: str, context: Mapping[str, Any]) -> str | None:
    match kind:
        case "too_short" | "string_too_short":
            least = context["min_length"]
            return "must not be empty" if least == 1 else f"must have at least {least} {_unit(kind)}"
        case "too_long" | "string_too_long":
            return f"may have at most {context['max_length']} {_unit(kind)}"
    words = _WORDS.get(kind)
    return None if words is None else words.format_map(context)


def _unit(kind: str) -> str:
    return "characters" if kind.startswith("string") else "entries"
