"""What comes from outside can't steer a terminal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.text import clean, clock, duration, one_line, preview, size, to_json

_HARMFUL = {chr(code) for code in [*range(32), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]} - {"\n", "\t"}


@given(st.text())
def test_no_control_character_is_left(text: str) -> None:
    assert not _HARMFUL & set(clean(text))
    assert not (_HARMFUL | {"\n", "\t"}) & set(one_line(text, 50))
    assert len(one_line(text, 50)) <= 50
    clean(text).encode()


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_is_safe_and_loses_nothing(value: object) -> None:
    text = to_json(value)
    assert not (_HARMFUL | {"\n", "\t"}) & set(text)
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("a\x07b", "a\u2407b"),
        ("a\x1b", "a\u241b"),
        ("a\x9b31mb", "a\ufffd31mb"),
        ("a\u202eb", "a\ufffdb"),
        ("50%\r100%\r\n", "50%\n100%\n"),
        ("größe\t€ 👩‍🔬", "größe\t€ 👩‍🔬"),
    ],
)
def test_clean(text: str, safe: str) -> None:
    assert clean(text) == safe


def test_preview_says_what_it_left_out() -> None:
    assert preview("a\nb\nc\nd", lines=2, width=10) == ["a", "b", "… 2 more lines"]
    assert preview("a\nb\nc", lines=2, width=10) == ["a", "b", "… 1 more line"]
    assert preview("0123456789", lines=2, width=5) == ["0123…"]
    assert preview("", lines=2, width=5) == []


def test_numbers_for_people() -> None:
    assert [clock(value) for value in (0, 61, 3661)] == ["0:00", "1:01", "1:01:01"]
    assert [duration(value) for value in (0.44, 12.7, 185, 90_000)] == ["0.4 s", "12 s", "3 min 5 s", "25 h 0 min"]
    assert [size(value) for value in (812, 4300, 5 * 1024**2, None)] == ["812 B", "4.2 KiB", "5.0 MiB", "0 B"]
