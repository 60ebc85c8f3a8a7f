"""Signing secrets at rest: encrypted with the operator's keys before they reach the database, since signing needs them back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dualtrack.domain.errors import RecordUnreadable

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

MARK: Final = "sealed:"
"""What every encrypted secret begins with; one in clear begins with `whsec_`."""
_KEY_BYTES: Final = 32
_KEY_CHARS: Final = 44


class SecretUnreadable(RecordUnreadable):
    """A secret that none of the keys opens."""

    code = "secret_unreadable"


def require_key(text: str) -> None:
    """Raise `ValueError` unless it is a key: the base64 (URL alphabet) of 32 bytes."""
    try:
        size = len(base64.b64decode(text, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        size = 0
    if size != _KEY_BYTES or len(text) != _KEY_CHARS:
        raise ValueError(f"every key must be the base64 (URL alphabet, with padding) of {_KEY_BYTES} random bytes")


class Sealer:
    """Encrypts and authenticates with the first key (Fernet: AES-128-CBC and HMAC-SHA256), opens with any. Thread-safe.

    Without keys it leaves secrets as they are. What was stored in clear is read whatever the keys.
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        """Raises `ValueError` for a key that is none."""
        for key in keys:
            require_key(key)
        self._keys = tuple(keys)
        self._all: Final = _fernet(self._keys)
        self._first: Final = _fernet(self._keys[:1])

    @property
    def seals(self) -> bool:
        """Whether there is a key."""
        return self._first is not None

    def seal(self, secret: str) -> str:
        """A secret as it is to be stored."""
        return secret if self._first is None else MARK + self._first.encrypt(secret.encode()).decode()

    def sealed(self, stored: str) -> str:
        """A secret as stored, encrypted if it was in clear; no key is needed to take over one that is encrypted."""
        return stored if stored.startswith(MARK) else self.seal(stored)

    def open(self, stored: str) -> str:
        """The secret. Raises `SecretUnreadable`."""
        return stored if not stored.startswith(MARK) else _opened(self._all, stored)

    def is_current(self, stored: str) -> bool:
        """Whether `seal` would encrypt it with the key that it is encrypted with already."""
        if self._first is None or not stored.startswith(MARK):
            return False
        try:
            _opened(self._first, stored)
        except SecretUnreadable:
            return False
        return True


def _fernet(keys: Sequence[str]) -> MultiFernet | None:
    if not keys:
        return None
    from cryptography.fernet import Fernet, MultiFernet  # not loaded where nothing is sealed

    return MultiFernet([Fernet(key) for key in keys])


def _opened(fernet: MultiFernet | None, stored: str) -> str:
    if fernet is None:
        raise SecretUnreadable("A webhook's secret is encrypted, and this process has no key: set DUALTRACK_WEBHOOKS__SECRET_KEYS.")
    from cryptography.fernet import InvalidToken

    try:
        return fernet.decrypt(stored.removeprefix(MARK)).decode()
    except InvalidToken as error:
        raise SecretUnreadable(
            "A webhook's secret is encrypted with a key that DUALTRACK_WEBHOOKS__SECRET_KEYS does not have: put that key back, at the end."
        ) from error
