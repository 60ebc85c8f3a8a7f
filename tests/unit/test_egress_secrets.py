"""Placeholders of secrets: where they are replaced, where they are refused, and how values are taken out of answers."""

from __future__ import annotations

import base64
import itertools
import json
import pickle
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualtrack.domain.egress import EgressReason
from dualtrack.domain.errors import InvalidRequest
from dualtrack.domain.hosts import rules
from dualtrack.domain.network import EgressPolicy, SecretDefinition, SecretGrant
from dualtrack.egress import secrets
from dualtrack.egress.broker import Broker, Origin
from dualtrack.egress.redaction import Redactor, spellings
from dualtrack.egress.refusal import Refusal

VALUE = "s3cr3t-Value/with+chars"
API = Origin("https", "api.example.com", 443)


def broker(*, headers: tuple[str, ...] = ("authorization",), plain_http: bool = False, value: str = VALUE) -> Broker:
    grant = SecretGrant("github", "GITHUB_TOKEN", (rules(["api.example.com"]),), frozenset(headers), plain_http)
    unknown = SecretGrant("no-value", "OTHER", (rules(["api.example.com"]),), frozenset(headers))
    return Broker(EgressPolicy((rules(["*"]),), secrets=(grant, unknown)), {"github": value})


def test_a_placeholder_becomes_the_value() -> None:
    one = broker()
    placeholder = one.environment["GITHUB_TOKEN"]
    assert set(one.environment) == {"GITHUB_TOKEN"}
    assert VALUE not in placeholder
    filled = one.fill(API, b"/x", [(b"authorization", f"Bearer {placeholder}".encode()), (b"accept", b"*/*")])
    assert filled.headers == [(b"authorization", f"Bearer {VALUE}".encode()), (b"accept", b"*/*")]
    assert filled.names == ("github",)


@pytest.mark.parametrize("padding", [True, False])
def test_basic_authentication_is_opened_and_closed_again(padding: bool) -> None:
    one = broker()
    placeholder = one.environment["GITHUB_TOKEN"]
    blob = base64.b64encode(f"x-access-token:{placeholder}".encode())
    filled = one.fill(API, b"/", [(b"authorization", b"Basic " + (blob if padding else blob.rstrip(b"=")))])
    sent = filled.headers[0][1]
    assert base64.b64decode(sent.removeprefix(b"Basic ")) == f"x-access-token:{VALUE}".encode()
    echoed = one.redactor(API, filled.echoes).whole(b"you sent " + sent)
    assert sent.removeprefix(b"Basic ") not in echoed


def test_other_basic_authentication_goes_on_unchanged() -> None:
    for value in (b"Basic dXNlcjpwYXNz", b"Basic !!!", b"Basic", b"basic  abc"):
        assert broker().fill(API, b"/", [(b"authorization", value)]).headers == [(b"authorization", value)]


@pytest.mark.parametrize(
    ("origin", "target", "header", "says"),
    [
        (Origin("https", "evil.example", 443), b"/", b"authorization", "not bound to evil.example:443"),
        (Origin("https", "api.example.com", 8443), b"/", b"authorization", "not bound to"),
        (Origin("http", "api.example.com", 80), b"/", b"authorization", "over TLS only"),
        (API, b"/", b"x-note", "not put into the header x-note, only into authorization"),
        (API, b"/", b"cookie", "not put into the header cookie"),
    ],
)
def test_elsewhere_a_placeholder_is_refused(origin: Origin, target: bytes, header: bytes, says: str) -> None:
    one = broker()
    with pytest.raises(Refusal, match=says) as refused:
        one.fill(origin, target, [(header, b"token " + one.environment["GITHUB_TOKEN"].encode())])
    assert (refused.value.status, refused.value.reason) == (403, EgressReason.SECRET_NOT_BOUND)
    assert VALUE not in refused.value.message


def test_in_an_address_a_placeholder_is_refused_however_it_is_written() -> None:
    one = broker()
    placeholder = one.environment["GITHUB_TOKEN"]
    for text in (placeholder, placeholder.replace("-", "%2d"), "".join(f"%{ord(mark):02x}" for mark in placeholder)):
        with pytest.raises(Refusal, match="in the address"):
            one.fill(API, f"/x?token={text}".encode(), [])


def test_a_placeholder_of_another_session_is_refused() -> None:
    with pytest.raises(Refusal, match="none of this session"):
        broker().fill(API, b"/", [(b"authorization", broker().environment["GITHUB_TOKEN"].encode())])


def test_plain_http_is_the_operators_choice() -> None:
    one = broker(plain_http=True, headers=("x-api-key",))
    filled = one.fill(Origin("http", "api.example.com", 80), b"/", [(b"x-api-key", one.environment["GITHUB_TOKEN"].encode())])
    assert filled.headers == [(b"x-api-key", VALUE.encode())]


def test_answers_lose_the_value_in_each_spelling() -> None:
    one = broker(value='quote"d & /secret')
    placeholder = one.environment["GITHUB_TOKEN"].encode()
    value = 'quote"d & /secret'
    text = f"{value}|{json.dumps(value)}|{quote(value, safe='')}|{base64.b64encode(value.encode()).decode()}"
    assert one.redactor(API, {}).whole(text.encode()).count(placeholder) == 4
    assert one.redactor(Origin("https", "other.example", 443), {}).whole(value.encode()) == value.encode()


@given(
    st.lists(st.sampled_from([b"aab", b"a", b"ab", b"b", b"aa", b"x", b"NEEDLE", b"NEED", b"LE", b"longer-NEEDLE"]), max_size=30),
    st.lists(st.integers(0, 40), max_size=8),
)
def test_however_a_stream_is_cut_nothing_of_a_needle_is_left(parts: list[bytes], cuts: list[int]) -> None:
    text = b"".join(parts)
    redactor = Redactor({b"aab": b"-", b"NEEDLE": b"placeholder"})
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    out = b"".join(redactor.feed(text[start:end]) for start, end in itertools.pairwise(edges)) + redactor.flush()
    assert out == text.replace(b"aab", b"-").replace(b"NEEDLE", b"placeholder")


def test_what_cannot_be_a_beginning_is_handed_on_at_once() -> None:
    redactor = Redactor({b"secret": b"***"})
    assert redactor.feed(b"data: 1\n\n") == b"data: 1\n\n"
    assert redactor.feed(b"data: sec") == b"data: "
    assert redactor.feed(b"ond\n") == b"second\n"
    assert redactor.flush() == b""


def test_spellings_are_what_servers_write() -> None:
    assert spellings("abcdefgh") == {b"abcdefgh", base64.b64encode(b"abcdefgh").rstrip(b"=")}


def definition(**values: object) -> SecretDefinition:
    return SecretDefinition.model_validate({"variable": "TOKEN", "hosts": ["a.example"]} | values)


def test_values_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "value"
    file.write_text("from-the-file\n")
    found = secrets.read({"a": definition(value_env="A"), "b": definition(value_file=file)}, {"A": "from-the-environment"})
    assert dict(found) == {"a": "from-the-environment", "b": "from-the-file"}
    assert "from-the" not in f"{found!r} {found}"
    with pytest.raises(TypeError):
        pickle.dumps(found)


@pytest.mark.parametrize(
    "value", [None, "", "short", "two\nlines-of-it", " padded-value", "bücher-bücher", "x" * 8193, "tab\there-and-there"]
)
def test_a_value_that_no_header_can_hold_is_refused_without_showing_it(value: str | None) -> None:
    with pytest.raises(InvalidRequest, match=r"DUALTRACK_EGRESS__SECRETS.a: the variable A must hold 8 to") as refused:
        secrets.read({"a": definition(value_env="A")}, {} if value is None else {"A": value})
    assert not value or value not in refused.value.message


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="can't be read: No such file"):
        secrets.read({"a": definition(value_file=tmp_path / "none")}, {})
