"""What a request asks for is understood in one way, whatever bytes it is made of."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualtrack.domain.hosts import canonical
from dualtrack.domain.limits import EgressLimits
from dualtrack.egress.asked import check, destination
from dualtrack.egress.broker import Origin
from dualtrack.egress.refusal import Refusal

TUNNEL = Origin("https", "api.example.com", 443)


def parsed(data: bytes) -> h11.Request | None:
    """The request in these bytes; None where h11 finds none."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return None
    return event if isinstance(event, h11.Request) else None


def asked(target: str, *, host: str = "x", fixed: Origin | None = None, method: str = "GET") -> tuple[Origin, bytes]:
    request = parsed(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert request is not None
    check(request, EgressLimits())
    return destination(request, fixed)


@pytest.mark.parametrize(
    ("target", "origin", "path"),
    [
        ("http://Example.com", Origin("http", "example.com", 80), b"/"),
        ("HTTP://example.com.:8080/a?b=c#d", Origin("http", "example.com", 8080), b"/a?b=c"),
        ("http://example.com?q", Origin("http", "example.com", 80), b"/?q"),
        ("http://[2001:DB8::1]:81/", Origin("http", "[2001:db8::1]", 81), b"/"),
        ("http://example.com/http://evil.example/", Origin("http", "example.com", 80), b"/http://evil.example/"),
    ],
)
def test_absolute_addresses(target: str, origin: Origin, path: bytes) -> None:
    assert asked(target) == (origin, path)


@pytest.mark.parametrize(
    "target",
    ["/", "*", "//example.com/", "http:/example.com/", "http:///x", "http://user@example.com/", "http://example.com:80:80/", "https://example.com/",
     "http://example.com\\@evil.example/", "http://exa%6dple.com/", "http://127.1/", "ftp://example.com/", "example.com:80"],
)  # fmt: skip
def test_what_names_no_one_place(target: str) -> None:
    with pytest.raises(Refusal):
        asked(target)


def test_in_a_tunnel_only_its_own_host_is_served() -> None:
    assert asked("/a", host="API.example.com", fixed=TUNNEL) == (TUNNEL, b"/a")
    assert asked("/a", host="api.example.com:443", fixed=TUNNEL) == (TUNNEL, b"/a")
    assert asked("https://api.example.com/a", fixed=TUNNEL) == (TUNNEL, b"/a")
    assert asked("*", host="api.example.com", fixed=TUNNEL, method="OPTIONS") == (TUNNEL, b"*")
    wrong = [("/", "evil.example"), ("/", "api.example.com:80"), ("https://evil.example/", "api.example.com"), ("*", "api.example.com")]
    for target, host in wrong:
        with pytest.raises(Refusal):
            asked(target, host=host, fixed=TUNNEL)


_PARTS = st.lists(
    st.sampled_from(
        ["http://", "https://", "HTTP:", "//", "/", "\\", "@", ":", ":80", ":443", "example.com", "evil.example", "127.0.0.1", "0x7f.1",
         "[::1]", "[", "]", "%2e", "..", ".", "*", "?", "#", "a", "1", "\t"]
    ),
    max_size=8,
)  # fmt: skip


@given(_PARTS.map("".join), st.sampled_from(["GET", "POST", "OPTIONS", "get"]), st.sampled_from([None, TUNNEL]), _PARTS.map("".join))
def test_whatever_is_asked_for_is_refused_or_is_one_place(target: str, method: str, fixed: Origin | None, host: str) -> None:
    request = parsed(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    if request is None:
        return
    try:
        check(request, EgressLimits())
        origin, path = destination(request, fixed)
    except Refusal:
        return
    assert origin.host == canonical(origin.host)
    assert path.startswith(b"/") or (path == b"*" and method == "OPTIONS")
    assert b"#" not in path
    assert fixed is None or origin == fixed


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_understood(data: bytes) -> None:
    request = parsed(b"GET http://example.com/ HTTP/1.1\r\nHost: x\r\n" + data + b"\r\n\r\n")
    if request is None:
        return
    try:
        check(request, EgressLimits())
    except Refusal:
        return
    assert destination(request, None) == (Origin("http", "example.com", 80), b"/")
