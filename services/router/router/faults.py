"""What is wrong with a field, in plain words: Pydantic's own speak of Python's types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dualtrack.domain import faulty

_NUMBER: Final = "must be a number"
_WHOLE: Final = "must be a whole number"
_BOOLEAN: Final = "must be true or false"
_OBJECT: Final = "must be an object"
_LIST: Final = "must be a list"

_WORDS: Final[Mapping[str, str]] = {
    "missing": "is required",
    "extra_forbidden": "there is no such field",
    "string_type": "must be a string",
    "string_too_short": "must have at least {min_length} character(s)",
    "string_too_long": "may have at most {max_length} character(s)",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "int_parsing_size": "has too many digits",
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "decimal_type": _NUMBER,
    "decimal_parsing": _NUMBER,
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "bool_type": _BOOLEAN,
    "bool_parsing": _BOOLEAN,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "too_short": "must have at least {min_length} item(s)",
    "too_long": "may have at most {max_length} item(s)",
    "dict_type": _OBJECT,
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
    "union_tag_invalid": "must be one of {expected_tags}",
    "union_tag_not_found": "is required",
}
"""By Pydantic's error type, with the values of its context."""
_NO_FILE: Final = "Expected UploadFile"
"""How FastAPI begins to say that a form's field is no file."""


def words(error: Mapping[str, Any]) -> str:
    """What one of Pydantic's errors says, without the field's name; what the client sent is not repeated."""
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error" and message.startswith(_NO_FILE):
        return "must be sent as a file, with a file name, not as a text field"
    found = _WORDS.get(error["type"])
    text = found.format_map(error.get("ctx", {})) if found is not None else message.replace("Input should be", "must be")
    return f"one of its keys {text}" if error["loc"][-1] == faulty.KEY else text
