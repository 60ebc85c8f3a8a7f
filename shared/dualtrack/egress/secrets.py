"""The values of the operator's secrets. Only the executor reads them; they stay in its memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final

from dualtrack.domain.errors import InvalidRequest
from dualtrack.domain.network import SecretDefinition

MIN_CHARS: Final = 8
"""A shorter value would be found by chance in answers, and guessed."""
MAX_CHARS: Final = 8192
_SETTING: Final = "DUALTRACK_EGRESS__SECRETS"


class SecretValues(Mapping[str, str]):
    """Values by name. Shows nothing of them when printed, logged or pickled."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"SecretValues({', '.join(self._values)})"

    def __reduce__(self) -> str:
        raise TypeError("secrets are not pickled")


def read(definitions: Mapping[str, SecretDefinition], environment: Mapping[str, str] | None = None) -> SecretValues:
    """The values that the operator's definitions name.

    Raises:
        InvalidRequest: a variable or file is missing, or holds nothing that a header can; naming the setting, never the value.
    """
    variables = os.environ if environment is None else environment
    return SecretValues({name: _value(name, definition, variables) for name, definition in definitions.items()})


def _value(name: str, definition: SecretDefinition, environment: Mapping[str, str]) -> str:
    param = f"{_SETTING}.{name}"
    if definition.value_env is not None:
        text = environment.get(definition.value_env, "")
        place = f"the variable {definition.value_env}"
    else:
        place = f"the file {definition.value_file}"
        try:
            text = definition.value_file.read_text(encoding="ascii").rstrip("\r\n") if definition.value_file is not None else ""
        except (OSError, UnicodeError) as error:
            problem = error.strerror if isinstance(error, OSError) else "it is no ASCII text"
            raise InvalidRequest(f"{param}: {place} can't be read: {problem}.", param=param) from None
    if not (MIN_CHARS <= len(text) <= MAX_CHARS and text.isascii() and text.isprintable() and text == text.strip()):
        raise InvalidRequest(f"{param}: {place} must hold {MIN_CHARS} to {MAX_CHARS} printable ASCII characters on one line.", param=param)
    return text
