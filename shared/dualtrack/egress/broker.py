"""Secrets of one session: placeholders that the sandbox sees, and their values, put into requests to the hosts they are bound to."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote_to_bytes

from dualtrack.domain.egress import EgressReason
from dualtrack.domain.network import EgressPolicy, SecretGrant
from dualtrack.egress.redaction import Redactor, spellings
from dualtrack.egress.refusal import Refusal

PREFIX: Final = "dualtrack-secret-"
_PLACEHOLDER: Final = re.compile(rb"dualtrack-secret-[a-z0-9-]{1,40}-[0-9a-f]{32}")
_BASIC: Final = re.compile(rb"(?i)(basic +)([A-Za-z0-9+/=_-]+)\s*")

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request goes.

    Attributes:
        host: canonical.
    """

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """As the header Host has it."""
        return self.host if self.port == (443 if self.scheme == "https" else 80) else f"{self.host}:{self.port}"

    @property
    def name(self) -> str:
        """The host for a resolver or TLS: an IPv6 address without its brackets."""
        return self.host.strip("[]")


@dataclass(frozen=True, slots=True)
class Filled:
    """A request's headers with the secrets in them.

    Attributes:
        names: of the secrets that were put in.
        echoes: what a server must not give back, and what it is replaced by.
    """

    headers: list[tuple[bytes, bytes]] = field(repr=False)
    names: tuple[str, ...]
    echoes: Mapping[bytes, bytes] = field(repr=False)


class Broker:
    """Placeholders and values of one session. Thread-safe: nothing changes."""

    def __init__(self, policy: EgressPolicy, values: Mapping[str, str]) -> None:
        """Grants whose value is not there are left out."""
        self._policy = policy
        self._values = values
        self._grants = {grant.name: grant for grant in policy.secrets if grant.name in values}
        self._placeholders = {name: f"{PREFIX}{name}-{secrets.token_hex(16)}" for name in self._grants}
        self._names = {text.encode(): name for name, text in self._placeholders.items()}

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for the sandbox: the placeholders."""
        return {grant.variable: self._placeholders[name] for name, grant in self._grants.items()}

    def bound(self, host: str, port: int) -> bool:
        """Whether requests to a canonical host may carry a secret, so that the proxy must look into them."""
        return any(grant.permits(host, port) for grant in self._grants.values())

    def redactor(self, origin: Origin, echoes: Mapping[bytes, bytes]) -> Redactor:
        """What takes the secrets bound to a host out of its answers."""
        found = dict(echoes)
        for name, grant in self._grants.items():
            if grant.permits(origin.host, origin.port):
                found.update(dict.fromkeys(spellings(self._values[name]), self._placeholders[name].encode()))
        return Redactor(found)

    def fill(self, origin: Origin, target: bytes, headers: Headers) -> Filled:
        """A request's headers with values in the place of placeholders.

        Raises:
            Refusal: a placeholder that is none of this session's, that is not bound to this host, or in another place than its headers.
        """
        if PREFIX.encode() in unquote_to_bytes(target):
            raise _refused("A secret's placeholder stands in the address: send it in a header.")
        filled: list[tuple[bytes, bytes]] = []
        used: dict[str, None] = {}
        echoes: dict[bytes, bytes] = {}
        for name, value in headers:
            basic = _BASIC.fullmatch(value)
            plain = _decoded(basic.group(2)) if basic else None
            if basic and plain is not None and _PLACEHOLDER.search(plain):
                blob = base64.b64encode(self._replaced(origin, name, plain, used))
                echoes[blob] = basic.group(2)
                filled.append((name, basic.group(1) + blob))
            else:
                filled.append((name, self._replaced(origin, name, value, used)))
        return Filled(filled, tuple(used), echoes)

    def _replaced(self, origin: Origin, header: bytes, value: bytes, used: dict[str, None]) -> bytes:
        def put(match: re.Match[bytes]) -> bytes:
            name = self._names.get(match.group())
            if name is None:
                raise _refused("A secret's placeholder is none of this session's: read it from the environment again.")
            self._check(self._grants[name], origin, header.decode().lower())
            used[name] = None
            return self._values[name].encode()

        return _PLACEHOLDER.sub(put, value)

    @staticmethod
    def _check(grant: SecretGrant, origin: Origin, header: str) -> None:
        if not grant.permits(origin.host, origin.port):
            raise _refused(f"The secret {grant.name} is not bound to {origin.host}:{origin.port}.")
        if origin.scheme != "https" and not grant.plain_http:
            raise _refused(f"The secret {grant.name} is sent over TLS only: use https.")
        if header not in grant.headers:
            raise _refused(f"The secret {grant.name} is not put into the header {header}, only into {', '.join(sorted(grant.headers))}.")


def _refused(message: str) -> Refusal:
    return Refusal(403, EgressReason.SECRET_NOT_BOUND, message)


def _decoded(text: bytes) -> bytes | None:
    """Base64 of any alphabet, with or without its padding."""
    try:
        return base64.b64decode(
            text.rstrip(b"=") + b"=" * (-len(text.rstrip(b"=")) % 4), altchars=b"-_" if set(text) & set(b"-_") else None, validate=True
        )
    except (ValueError, binascii.Error):
        return None
