"""Where a request goes, taken from its URL. No IO."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from dualtrack.domain.errors import AddressRefused
from dualtrack.domain.limits import URL_CHARS

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """One address of HTTP.

    Attributes:
        host: name in ASCII, or an address without brackets.
        path: what the request line asks for, query included.
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Host and port as the header `Host` has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse(url: str, param: str = "url") -> Target:
    """The target of a URL; its fragment is left out.

    Raises:
        AddressRefused: not http(s), without a host, with a user name, or with characters no URL has (programs read such ones
            differently, which is how checks are got around).
    """
    if len(url) > URL_CHARS:
        raise AddressRefused(f"{param}: a URL may have {URL_CHARS} characters.", param=param)
    if not url.isascii() or not url.isprintable() or any(char in url for char in ' \\"<>^`{|}'):
        raise AddressRefused(f"{param}: holds characters that a URL has only escaped (%20 …); write names of hosts as xn--….", param=param)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise AddressRefused(f"{param}: is no URL: {error}.", param=param) from error
    if parts.scheme not in _PORTS or not host:
        raise AddressRefused(f"{param}: must be an address like https://host/path.", param=param)
    if "@" in parts.netloc:
        raise AddressRefused(f"{param}: must not hold a user name or password.", param=param)
    if port == 0 or "%" in host or (":" in host and not _is_address(host)):
        raise AddressRefused(f"{param}: is no host and port that can be reached.", param=param)
    path = parts.path or "/"
    return Target(parts.scheme, host, port or _PORTS[parts.scheme], f"{path}?{parts.query}" if parts.query else path)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
