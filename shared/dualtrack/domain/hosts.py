"""Names of hosts and rules about them. No IO: nothing is looked up here.

Programs read odd spellings of addresses differently (`0x7f.1`, `2130706433`, `127.1`), which is how checks are got around. So a host is
either a name whose last label can't be a number, or an address in its one canonical form (WHATWG URL, 3.5, calls the same names addresses).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Final, NoReturn

from pydantic import AfterValidator, StringConstraints

DEFAULT_PORTS: Final = frozenset({80, 443})
"""Those of a rule that names none."""
MAX_PORT: Final = 65535
HOST_CHARS: Final = 253
ANY: Final = "*"

_NAME: Final = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_AUTHORITY: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")


def canonical(host: str) -> str:
    """The one spelling of a host: a name in lower case without a final dot, or an address, IPv6 in brackets.

    Raises:
        ValueError: it is neither.
    """
    if host.startswith("[") and host.endswith("]"):
        try:
            address = IPv6Address(host[1:-1])
        except ValueError:
            _refuse(host)
        if address.scope_id is not None:
            _refuse(host)
        return f"[{address.compressed}]"
    name = host.lower().removesuffix(".")
    if len(name) > HOST_CHARS or not _NAME.fullmatch(name):
        _refuse(host)
    if _NUMBER.fullmatch(name.rsplit(".", 1)[-1]):
        try:
            return IPv4Address(name).compressed
        except ValueError:
            _refuse(host)
    return name


def _refuse(host: str) -> NoReturn:
    raise ValueError(f"{host[:HOST_CHARS]!r} is no host: write a name such as api.example.com (xn--… for others), or an address in full")


def is_address(host: str) -> bool:
    """Whether a canonical host is an address, not a name."""
    return host.startswith("[") or host.rsplit(".", 1)[-1].isdecimal()


def split(authority: str, default_port: int | None = None) -> tuple[str, int]:
    """Host (canonical) and port of what stands in a URL or a request between scheme and path.

    Raises:
        ValueError: it is no host and port, or holds a user name; without `default_port` also where the port is missing.
    """
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        raise ValueError(f"{authority[:HOST_CHARS]!r} is no host and port")
    port = int(found["port"]) if found["port"] else default_port
    if port is None or not 0 < port <= MAX_PORT:
        raise ValueError(f"{authority[:HOST_CHARS]!r} names no port from 1 to {MAX_PORT}")
    return canonical(found["host"]), port


@dataclass(frozen=True, slots=True)
class HostRule:
    """Hosts and ports that may be reached.

    Attributes:
        host: a canonical host; `*.name` for every name below it (itself not among them); `*` for every name. Neither of the two stands
            for an address.
        ports: those that it is about.
    """

    host: str
    ports: frozenset[int]

    def __str__(self) -> str:
        """As it is written in settings and profiles."""
        return self.host if self.ports == DEFAULT_PORTS else ", ".join(f"{self.host}:{port}" for port in sorted(self.ports))

    def permits(self, host: str, port: int) -> bool:
        """Whether a canonical host may be reached at a port."""
        return port in self.ports and self._fits(host)

    def covers(self, other: HostRule) -> bool:
        """Whether everything that the other rule permits is permitted by this one."""
        if not other.ports <= self.ports:
            return False
        if self.host == ANY:
            return other.host == ANY or other.host.startswith("*.") or not is_address(other.host)
        return self.host == other.host or (other.host != ANY and self._fits(other.host.removeprefix("*")))

    def _fits(self, host: str) -> bool:
        if self.host == ANY:
            return not is_address(host)
        if self.host.startswith("*."):
            return host.endswith(self.host[1:]) and len(host) > len(self.host) - 1
        return host == self.host


@lru_cache(maxsize=4096)
def rule(text: str) -> HostRule:
    """The rule that a text such as `pypi.org`, `*.example.com:443` or `[2001:db8::1]:8443` stands for; without a port it is 80 and 443.

    Raises:
        ValueError: it stands for none.
    """
    rest = text.removeprefix("*.") if text.startswith("*.") else text
    if rest.partition(":")[0] == ANY:
        _, port = split(f"any{rest[1:]}", 0xFFFF)
        host = ANY
    else:
        host, port = split(rest, 0xFFFF)
        if rest != text:
            if is_address(host):
                raise ValueError(f"{text[:HOST_CHARS]!r}: there are no names below an address")
            host = f"*.{host}"
    named = re.search(r":[0-9]+$", text) is not None and not text.endswith("]")
    return HostRule(host, frozenset({port}) if named else DEFAULT_PORTS)


def rules(texts: Iterable[str]) -> tuple[HostRule, ...]:
    """The rules of several texts. Raises `ValueError`."""
    return tuple(rule(text) for text in texts)


def permitted(allowed: Iterable[HostRule], host: str, port: int) -> bool:
    """Whether any of the rules permits it."""
    return any(one.permits(host, port) for one in allowed)


def _valid(text: str) -> str:
    rule(text)
    return text.lower()


HostPattern = Annotated[str, StringConstraints(min_length=1, max_length=HOST_CHARS + 8), AfterValidator(_valid)]
"""The text of a `HostRule`."""
