from __future__ import annotations

import datetime as dt

import pytest

from dualtrack.domain.lifecycle import CallStatus
from dualtrack.domain.limits import SandboxLimits
from dualtrack.domain.step import Call
from dualtrack.domain.tool import Effect
from dualtrack.engine.call_output import EVENT_BYTES, EVENTS, CallOutput, whole_characters
from dualtrack.sandbox.sessions import Channel

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
CALL = Call(
    "call_1", "job_1", "ten_1", 3, 0, 0, "shell", Effect.WORKSPACE, {}, CallStatus.RUNNING, None, "", None, {}, 2, 1, 0, "", NOW, NOW, None
)


def output(output_bytes: int = 10, spool_bytes: int = 100) -> CallOutput:
    return CallOutput(CALL, SandboxLimits(output_bytes=output_bytes, spool_bytes=spool_bytes), lambda _: None)


def shown(taken: CallOutput) -> list[tuple[str, int, int, str]]:
    return [(event.data["channel"], event.data["offset"], event.data["skipped"], event.data["text"]) for event in taken.fresh_events()]


def test_what_is_new_is_shown_once() -> None:
    with output() as taken:
        taken.take(Channel.STDOUT, b"one\n")
        taken.take(Channel.STDERR, b"bad\n")
        taken.take(Channel.STDOUT, b"two\n")
        assert shown(taken) == [("stdout", 0, 0, "one\ntwo\n"), ("stderr", 0, 0, "bad\n")]
        assert shown(taken) == []
        taken.take(Channel.STDOUT, b"three\n")
        assert shown(taken) == [("stdout", 8, 0, "three\n")]


def test_of_a_flood_the_end_is_shown_and_the_rest_counted() -> None:
    with output() as taken:
        taken.take(Channel.STDOUT, b"a" * 1000)
        taken.take(Channel.STDOUT, b"b" * (3 * EVENT_BYTES))
        taken.take(Channel.STDOUT, b"end")
        ((_, offset, skipped, text),) = shown(taken)
        assert (offset, skipped) == (1003 + 2 * EVENT_BYTES, 1003 + 2 * EVENT_BYTES)
        assert text == "b" * (EVENT_BYTES - 3) + "end"


def test_a_call_leaves_so_many_events_and_no_more() -> None:
    with output() as taken:
        for _ in range(EVENTS):
            taken.take(Channel.STDOUT, b"x")
            assert len(shown(taken)) == 1
        taken.take(Channel.STDOUT, b"x")
        assert shown(taken) == []


def test_characters_are_not_cut() -> None:
    with output() as taken:
        euro = "€".encode()
        taken.take(Channel.STDOUT, b"1" + euro[:2])
        assert shown(taken) == [("stdout", 0, 0, "1")]
        taken.take(Channel.STDOUT, euro[2:])
        assert shown(taken) == [("stdout", 1, 0, "€")]


@pytest.mark.parametrize(
    ("data", "whole"), [(b"", 0), (b"abc", 3), ("aé".encode(), 3), (b"a\xc3", 1), (b"\xff\xff", 2), (b"\xf0\x9f\x98", 0)]
)
def test_whole_characters(data: bytes, whole: int) -> None:
    assert whole_characters(data) == whole


def test_what_the_outcome_has_no_room_for_is_kept_up_to_a_cap() -> None:
    with output(output_bytes=10, spool_bytes=8) as taken:
        taken.take(Channel.STDOUT, b"0123456789")
        assert taken.beyond(Channel.STDOUT) is None
        taken.take(Channel.STDOUT, b"abc")
        taken.take(Channel.STDERR, b"0123456789ABC")
        taken.take(Channel.STDOUT, b"defghi")
        rest = taken.beyond(Channel.STDOUT)
        assert rest is not None
        assert rest.read() == b"abcde"
        other = taken.beyond(Channel.STDERR)
        assert other is not None
        assert other.read() == b"ABC"
        assert (taken.total(Channel.STDOUT), taken.total(Channel.STDERR)) == (19, 13)
