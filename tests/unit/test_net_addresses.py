"""Which addresses an outgoing request may go to, and what counts as a URL."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualtrack.domain.errors import AddressRefused
from dualtrack.net.addresses import AllowList, is_public
from dualtrack.net.target import parse


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.0.1", "168.63.129.16", "169.254.169.254",
        "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.168.1.1", "192.88.99.1", "198.18.0.1", "203.0.113.5", "224.0.0.1", "224.0.1.1",
        "239.255.255.250", "240.0.0.1", "255.255.255.255",
        "::", "::1", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b::8.8.8.8", "64:ff9b:1::1",
        "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%1",
        "fec0::1", "ff02::1", "ff0e::1",
    ],
)  # fmt: skip
def test_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize(
    "text", ["1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "2a00:1450:4001::1"]
)
def test_public(text: str) -> None:
    assert is_public(ip_address(text))


@given(st.ip_addresses())
def test_whatever_python_calls_private_is_not_public(address: object) -> None:
    found = ip_address(str(address))
    if not found.is_global or found.is_multicast or found.is_reserved or found.is_link_local or found.is_loopback or found.is_unspecified:
        assert not is_public(found)


def test_what_the_operator_allows() -> None:
    allow = AllowList.parse(["Hooks.internal:8443", "10.1.0.0/16", "fd00::/8", "192.168.1.7", "[fd99::1]:80"])
    inside = ip_address("192.168.0.1")
    assert allow.permits("hooks.INTERNAL", 8443, inside)
    assert not allow.permits("hooks.internal", 443, inside)
    assert not allow.permits("other.internal", 8443, inside)
    assert allow.permits("any", 1, ip_address("10.1.2.3"))
    assert not allow.permits("any", 1, ip_address("10.2.0.1"))
    assert allow.permits("any", 1, ip_address("192.168.1.7"))
    assert allow.permits("any", 1, ip_address("fd00::1"))
    assert AllowList().permits("any", 1, ip_address("8.8.8.8"))


@pytest.mark.parametrize("entry", ["", "hooks.internal", "host:0", "host:70000", "10.1.0.1/16", "http://host:80", "*.internal:80"])
def test_an_entry_that_is_neither_is_refused_by_name(entry: str) -> None:
    with pytest.raises(ValueError, match="neither host:port nor a network"):
        AllowList.parse([entry])


@pytest.mark.parametrize(
    "url",
    [
        "", "host", "ftp://host/", "file:///etc/passwd", "gopher://host:70/_x", "http://", "http:///x", "https://user@host/",
        "https://user:pass@host/", "http://host:0/", "http://host:99999/", "http://host\\@other/", "http://ho st/", "http://host/\r\nX: 1",
        "http://h\tost/", "http://höst/", "http://[fe80::1%25eth0]/", "http://[::1/", "http://a%2eb/", "http://" + "x" * 3000,
    ],
)  # fmt: skip
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(AddressRefused) as refused:
        parse(url)
    assert not refused.value.sent
    assert refused.value.param == "url"


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("http://Host.Example", "host.example", "/"),
        ("https://host:443/a?b=c#d", "host", "/a?b=c"),
        ("http://host:8080?x", "host:8080", "/?x"),
        ("https://[2606:4700::1]:444/a%20b", "[2606:4700::1]:444", "/a%20b"),
    ],
)
def test_a_url_is_taken_apart(url: str, authority: str, path: str) -> None:
    assert (parse(url).authority, parse(url).path) == (authority, path)
