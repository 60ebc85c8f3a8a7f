"""The decoder of both sides: whatever arrives, in whatever pieces, it holds little and says what is wrong."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualtrack.sandbox.inside import protocol
from dualtrack.sandbox.inside.protocol import FROM_AGENT, FROM_HOST, Decoder, Fields, ProtocolError

Frames = list[tuple[int, int, bytes]]

frames = st.lists(st.tuples(st.sampled_from(sorted(FROM_AGENT)), st.integers(0, 2**32 - 1), st.binary(max_size=300)), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` in pieces of the sizes `cuts`, again and again."""
    result: list[bytes] = []
    at = 0
    while at < len(data):
        size = cuts[len(result) % len(cuts)]
        result.append(data[at : at + size])
        at += size
    return result


@given(frames, st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_frames_arrive_in_any_pieces(sent: Frames, cuts: list[int]) -> None:
    decoder = Decoder(FROM_AGENT)
    received: Frames = []
    for piece in pieces(b"".join(protocol.frame(*frame) for frame in sent), cuts):
        received += decoder.feed(piece)
    assert received == sent


@given(st.binary(max_size=2000), st.lists(st.integers(1, 400), min_size=1, max_size=5), st.sampled_from([FROM_AGENT, FROM_HOST]))
def test_any_bytes_give_valid_frames_or_an_error(data: bytes, cuts: list[int], kinds: frozenset[int]) -> None:
    decoder = Decoder(kinds)
    with contextlib.suppress(ProtocolError):
        for piece in pieces(data, cuts):
            for kind, channel, payload in decoder.feed(piece):
                assert kind in kinds
                assert 0 <= channel < 2**32
                assert len(payload) <= protocol.MAX_PAYLOAD


@given(frames, st.binary(min_size=9, max_size=9), st.integers(0, 60))
def test_garbage_after_frames_loses_none_of_them(sent: Frames, garbage: bytes, cut: int) -> None:
    decoder = Decoder(FROM_AGENT)
    received: Frames = []
    stream = b"".join(protocol.frame(*frame) for frame in sent) + bytes([200]) + garbage
    with pytest.raises(ProtocolError, match="unknown frame kind 200"):
        for piece in pieces(stream, [cut + 1]):
            received += decoder.feed(piece)
    assert received == sent[: len(received)]


def test_a_length_beyond_the_limit_is_refused_before_its_payload_comes() -> None:
    header = protocol.HEADER.pack(protocol.STDOUT, 1, protocol.MAX_PAYLOAD + 1)
    with pytest.raises(ProtocolError, match="larger than 65536"):
        Decoder(FROM_AGENT).feed(header)


def test_a_frame_of_the_other_direction_is_refused() -> None:
    with pytest.raises(ProtocolError, match="unknown frame kind"):
        Decoder(FROM_AGENT).feed(protocol.frame(protocol.EXEC, 1))


@given(st.integers(0, 300_000))
def test_a_large_request_comes_in_parts(size: int) -> None:
    decoder = Decoder(FROM_HOST)
    found = decoder.feed(protocol.control(protocol.CELL, 7, source="x" * size))
    assert [kind for kind, _, _ in found[:-1]] == [protocol.PART] * (len(found) - 1)
    assert found[-1][0] == protocol.CELL
    assert {channel for _, channel, _ in found} == {7}
    assert Fields(b"".join(payload for _, _, payload in found)).text("source") == "x" * size


def test_a_request_beyond_the_limit_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="larger than"):
        protocol.control(protocol.CELL, 1, source="x" * protocol.MAX_REQUEST)


@settings(max_examples=50)
@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()), st.text(max_size=8))
def test_fields_are_what_they_are_asked_for_or_refused(payload: bytes, name: str) -> None:
    try:
        fields = Fields(payload)
    except ProtocolError:
        return
    kinds: list[tuple[Any, Any]] = [
        (fields.text, lambda value: isinstance(value, str)),
        (fields.number, lambda value: type(value) is int and value >= 0),
        (fields.flag, lambda value: isinstance(value, bool)),
        (fields.texts, lambda value: all(isinstance(item, str) for item in value)),
        (fields.mapping, lambda value: all(isinstance(item, str) for item in value.values())),
        (fields.numbers, lambda value: all(type(item) is int and item >= 0 for item in value.values())),
    ]
    for field in (name, *json.loads(payload)):
        for read, right in kinds:
            with contextlib.suppress(ProtocolError):
                assert right(read(field))


def test_deeply_nested_json_is_refused() -> None:
    with pytest.raises(ProtocolError):
        Fields(b"[" * 60_000)
