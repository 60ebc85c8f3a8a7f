"""Server-sent events, cut anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.sse import MAX_EVENT_BYTES, ServerEvent, SSEParser, StreamBroken

_STREAM = (
    b'\xef\xbb\xbf: hello\n\nid: 1\nevent: job.queued\ndata: {"a":1}\n\n'
    b"id: 2\r\nevent: x\r\ndata: first\r\ndata:second\r\n\r\ndata: \xe2\x82\xac\r\rretry: 10\nunknown\n\n"
    b"id: 3\nevent: alone\n\nevent: cut\ndata: never"
)
_EVENTS = [
    ServerEvent("job.queued", '{"a":1}', "1"),
    ServerEvent("x", "first\nsecond", "2"),
    ServerEvent("message", "€", "2"),
]


@given(st.lists(st.integers(0, len(_STREAM)), max_size=12))
def test_any_cut_gives_the_same_events(cuts: list[int]) -> None:
    parser = SSEParser()
    places = [0, *sorted(cuts), len(_STREAM)]
    found = [event for start, end in pairwise(places) for event in parser.feed(_STREAM[start:end])]
    assert found == _EVENTS


def test_byte_by_byte() -> None:
    parser = SSEParser()
    assert [event for byte in _STREAM for event in parser.feed(bytes([byte]))] == _EVENTS


@pytest.mark.parametrize("piece", [b"x" * 65536, b"data: " + b"x" * 65536 + b"\n"])
def test_an_endless_event_is_refused(piece: bytes) -> None:
    parser = SSEParser()

    def pour() -> None:
        for _ in range(MAX_EVENT_BYTES // 65536 + 2):
            parser.feed(piece)

    with pytest.raises(StreamBroken, match="larger than"):
        pour()


def test_many_small_events_are_no_large_one() -> None:
    parser = SSEParser()
    piece = b"data: " + b"x" * 1_000_000 + b"\n\n"
    assert sum(len(parser.feed(piece)) for _ in range(20)) == 20
