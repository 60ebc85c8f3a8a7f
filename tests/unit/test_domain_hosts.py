"""What counts as a host, and what rules about hosts permit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualtrack.domain.hosts import canonical, is_address, rule, split


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("pypi.org", "pypi.org"),
        ("PyPI.ORG.", "pypi.org"),
        ("localhost", "localhost"),
        ("a_b.example.com", "a_b.example.com"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]", "[::1]"),
        ("[0:0::1]", "[::1]"),
        ("[::FFFF:127.0.0.1]", "[::ffff:7f00:1]"),
        ("0x7f.example", "0x7f.example"),
        ("1password.com", "1password.com"),
    ],
)
def test_one_spelling(text: str, host: str) -> None:
    assert canonical(text) == host


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a..b",
        "-a.example",
        "a-.example",
        "a b",
        "bücher.example",
        "127.1",
        "0x7f.1",
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "1.2.3.4.5",
        "256.1.1.1",
        "a.1",
        "a.0x",
        "[::1",
        "[fe80::1%eth0]",
        "[127.0.0.1]",
        "::1",
        "a/b",
        "a@b",
        "a:80",
        "a%2eb",
        "x" * 64 + ".example",
        "a." * 130 + "example",
        "a\n",
        "a\x00b",
        "*",
        "*.example.com",
    ],
)
def test_no_host(text: str) -> None:
    with pytest.raises(ValueError, match="is no host"):
        canonical(text)


@pytest.mark.parametrize(
    "text", ["user@host:80", "host", "host:", "host:0", "host:65536", "host:+80", "host:8 0", "[::1]80", ":80", "a:b:80"]
)
def test_no_authority(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no host|names no port"):
        split(text)


def test_an_authority_may_leave_its_port_out() -> None:
    assert split("Example.com", 80) == ("example.com", 80)
    assert split("[::1]:8443", 80) == ("[::1]", 8443)


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        (
            "pypi.org",
            [("pypi.org", 443), ("pypi.org", 80)],
            [("pypi.org", 8080), ("evil-pypi.org", 443), ("pypi.org.evil", 443), ("a.pypi.org", 443)],
        ),
        ("PyPI.org:443", [("pypi.org", 443)], [("pypi.org", 80)]),
        (
            "*.example.com",
            [("a.example.com", 443), ("a.b.example.com", 80)],
            [("example.com", 443), ("badexample.com", 443), ("a.example.com.evil", 80)],
        ),
        ("*.example.com:8443", [("a.example.com", 8443)], [("a.example.com", 443)]),
        ("*", [("anything.example", 443)], [("8.8.8.8", 443), ("[2606:4700::1111]", 443), ("anything.example", 22)]),
        ("*:22", [("git.example", 22)], [("git.example", 443)]),
        ("10.1.2.3:3141", [("10.1.2.3", 3141)], [("10.1.2.4", 3141), ("10.1.2.3", 80)]),
        ("[::1]", [("[::1]", 80)], [("[::2]", 80)]),
    ],
)
def test_what_a_rule_permits(text: str, yes: list[tuple[str, int]], no: list[tuple[str, int]]) -> None:
    found = rule(text)
    assert all(found.permits(*place) for place in yes)
    assert not any(found.permits(*place) for place in no)


@pytest.mark.parametrize(
    "text", ["", "*.", "**.a", "a.*.b", "*a.example", "*.1.2.3.4", "*.10", "host:0", "http://host", "host/path", "127.1", "a, b"]
)
def test_no_rule(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no host|names no port|below an address"):
        rule(text)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("*", "pypi.org"),
        ("*", "*.example.com"),
        ("*", "*"),
        ("*", "*:443"),
        ("*.example.com", "*.a.example.com"),
        ("*.example.com", "a.example.com:443"),
        ("*.example.com", "*.example.com"),
        ("pypi.org", "pypi.org:80"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_a_rule_covers_what_is_narrower(wide: str, narrow: str) -> None:
    assert rule(wide).covers(rule(narrow))


@pytest.mark.parametrize(
    ("rule_text", "other"),
    [
        ("pypi.org:443", "pypi.org"),
        ("pypi.org", "pypi.org:8080"),
        ("*.example.com", "example.com"),
        ("*.example.com", "*.com"),
        ("*.example.com", "*"),
        ("*", "1.2.3.4"),
        ("*", "[::1]"),
        ("a.example.com", "*.example.com"),
        ("example.com", "*.example.com"),
        ("*:443", "*"),
    ],
)
def test_a_rule_does_not_cover_what_goes_beyond(rule_text: str, other: str) -> None:
    assert not rule(rule_text).covers(rule(other))


_LABELS = st.lists(st.sampled_from(["a", "b", "example", "com"]), min_size=1, max_size=3).map(".".join)
_RULES = st.builds(
    lambda star, name, port: f"{star}{name}{port}", st.sampled_from(["", "*."]), _LABELS, st.sampled_from(["", ":80", ":443", ":9000"])
)


@given(_RULES, _RULES, _LABELS, st.sampled_from([80, 443, 9000]))
def test_what_a_covered_rule_permits_the_covering_one_permits(one: str, other: str, host: str, port: int) -> None:
    if rule(one).covers(rule(other)) and rule(other).permits(host, port):
        assert rule(one).permits(host, port)


@given(st.text(max_size=40))
def test_a_host_has_one_spelling(text: str) -> None:
    try:
        host = canonical(text)
    except ValueError:
        return
    assert canonical(host) == host
    assert host.isascii()
    assert is_address(host) or not host[-1:].isspace()
