"""Which addresses an outgoing request may go to: public ones, and what the operator allows besides. No IO.

Sources: the IANA special-purpose registries (RFC 6890 and its updates); RFC 6052 (NAT64), RFC 3056 (6to4). Python's own `is_global`
is not enough: it calls NAT64, 6to4 and some multicast addresses global, and its lists differ between releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final, Self

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_CLOSED_V4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' NAT; Alibaba's metadata service
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's host services: a public address that is none
        "169.254.0.0/16",  # link-local; the clouds' metadata services
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata service
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",
    )
)
_OPEN_V6: Final = IPv6Network("2000::/3")
"""Global unicast: mapped, NAT64, unique-local, link-local and multicast addresses all lie outside."""
_CLOSED_V6: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments, Teredo
        "2001:db8::/32",
        "2002::/16",  # 6to4: holds an IPv4 address
        "2620:4f:8000::/48",
        "3fff::/20",
    )
)
_HOST_PORT: Final = re.compile(r"^(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})$")
_MAX_PORT: Final = 65535


def is_public(address: Address) -> bool:
    """Whether it is a unicast address of the public internet."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _CLOSED_V4)
    return address.scope_id is None and address in _OPEN_V6 and not any(address in network for network in _CLOSED_V6)


@dataclass(frozen=True, slots=True)
class AllowList:
    """What may be reached although it is not public.

    Attributes:
        hosts: (host in lower case, port): whatever addresses that name has.
        networks: any port of these addresses.
    """

    hosts: frozenset[tuple[str, int]] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> Self:
        """From entries like `hooks.internal:8443`, `[fd00::1]:80` or `10.1.0.0/16` (a single address is a network of its own).

        Raises:
            ValueError: naming the entry that is neither.
        """
        hosts: set[tuple[str, int]] = set()
        networks: list[Network] = []
        for entry in entries:
            found = _HOST_PORT.match(entry)
            if found and 0 < int(found["port"]) <= _MAX_PORT:
                hosts.add((found["host"].strip("[]").lower(), int(found["port"])))
                continue
            try:
                networks.append(ip_network(entry))
            except ValueError as error:
                raise ValueError(f"{entry!r} is neither host:port nor a network such as 10.1.0.0/16") from error
        return cls(frozenset(hosts), tuple(networks))

    def permits(self, host: str, port: int, address: Address) -> bool:
        """Whether a request for `host` and `port` may go to `address`."""
        return is_public(address) or (host.lower(), port) in self.hosts or any(address in network for network in self.networks)
