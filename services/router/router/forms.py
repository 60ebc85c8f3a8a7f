"""The form of an upload, and what is wrong with one in plain words: the framework's say neither which field it is nor what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dualtrack.domain.errors import InvalidRequest
from dualtrack.domain.limits import KIB

FORM: Final = "multipart/form-data"
FILE_FIELD: Final = "file"
FORM_FIELDS: Final = (FILE_FIELD, "purpose")
MAX_FIELDS: Final = 8
"""Fields of an upload form."""
MAX_FIELD_BYTES: Final = 4 * KIB
"""One of them, but for the file."""

_HOW: Final = "let your client make the form, such as curl -F file=@report.csv"
_UNREADABLE: Final = f"the form can't be read, or is broken off: {_HOW}"
_SAID: Final[Mapping[str, str]] = {
    "Too many files": "a form takes one file: send each in a request of its own",
    "Too many fields": f"the form has more than {MAX_FIELDS} fields: it takes {' and '.join(FORM_FIELDS)}",
    "Part exceeded": f"what is longer than {MAX_FIELD_BYTES} bytes must be sent as a file, with a file name",
    "The Content-Disposition": f"a part of the form has no name: {_HOW}",
}
"""By how the framework's refusal begins."""


def no_boundary() -> InvalidRequest:
    """The header does not say where the parts of the form begin."""
    return InvalidRequest(f"Content-Type: has no boundary: {_HOW}, and don't set this header yourself.", param="Content-Type")


def fault(said: str) -> InvalidRequest:
    """The framework's refusal of a form as one of ours."""
    if said.startswith("Missing boundary"):
        return no_boundary()
    text = next((ours for theirs, ours in _SAID.items() if said.startswith(theirs)), _UNREADABLE)
    return InvalidRequest(f"{FILE_FIELD}: {text}.", param=FILE_FIELD)
