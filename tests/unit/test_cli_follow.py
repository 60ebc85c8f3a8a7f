"""Following a job across broken connections: no event lost, none twice, and an end to patience."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from cli.client import Client, ConnectionBroken
from cli.credentials import Credentials
from cli.follow import GIVE_UP_S, Follower
from cli.outcome import ApiError, Unreachable

_JOB = "job_1"


def _frame(seq: int, kind: str = "job.started") -> bytes:
    data = json.dumps({"seq": seq, "type": kind, "at": "2026-11-30T08:00:00+00:00", "job_id": _JOB, "data": {}})
    return f"id: {seq}\nevent: {kind}\ndata: {data}\n\n".encode()


class _Stream(httpx.SyncByteStream):
    """Gives its pieces, then ends, or breaks."""

    def __init__(self, *pieces: bytes, error: Exception | None = None) -> None:
        self._pieces = pieces
        self._error = error

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        if self._error is not None:
            raise self._error


def _sse(*pieces: bytes, error: Exception | None = None) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream; charset=utf-8"}, stream=_Stream(*pieces, error=error))


class _Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def _follower(answer: Callable[[httpx.Request], httpx.Response], time: _Time, *, after: int = 0) -> Follower:
    client = Client(Credentials("http://platform", "dt_k"), version="0", transport=httpx.MockTransport(answer))
    return Follower(client, _JOB, after=after, sleep=time.sleep, monotonic=lambda: time.now)


def _seqs(events: Iterator[dict[str, Any]]) -> list[int]:
    return [event["seq"] for event in events]


def test_goes_on_where_the_connection_broke() -> None:
    answers: list[httpx.Response | Exception] = [
        _sse(_frame(1), _frame(2), _frame(3)[:20], error=httpx.ReadError("reset")),
        httpx.Response(503, json={"error": {"message": "restarting", "code": "database_unavailable"}}),
        httpx.ConnectError("refused"),
        _sse(b": keep-alive\n\n", _frame(3)),  # closed without an end, as a proxy does
        _sse(_frame(3), _frame(4, "job.succeeded"), _frame(5)),  # the first of them is known already
    ]
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params["after"])
        assert request.headers["accept"] == "text/event-stream"
        found = answers[len(asked) - 1]
        if isinstance(found, Exception):
            raise found
        return found

    time = _Time()
    follower = _follower(answer, time)
    assert _seqs(iter(follower)) == [1, 2, 3, 4]
    assert asked == ["0", "2", "2", "2", "3"]
    assert follower.last_seq == 4
    assert len(time.pauses) == 4
    assert time.pauses[2] > time.pauses[0]  # 1 to 2 s after two failures, up to 0.5 s after none


def test_a_missing_event_is_asked_for_again() -> None:
    answers = iter([_sse(_frame(1), _frame(3)), _sse(_frame(2), _frame(3, "job.failed"))])
    assert _seqs(iter(_follower(lambda _: next(answers), _Time()))) == [1, 2, 3]


def test_a_job_that_ended_before_what_is_known() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            return _sse()
        return httpx.Response(200, json={"id": _JOB, "status": "succeeded", "last_seq": 7})

    time = _Time()
    assert _seqs(iter(_follower(answer, time, after=7))) == []
    assert time.pauses == []


@pytest.mark.parametrize("status", [401, 404, 500])
def test_what_waiting_cannot_mend_ends_at_once(status: int) -> None:
    time = _Time()
    with pytest.raises(ApiError) as caught:
        list(_follower(lambda _: httpx.Response(status, json={"error": {"message": "no", "code": "x"}}), time))
    assert caught.value.status == status
    assert time.pauses == []


def _gone(_: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


def _gap(_: httpx.Request) -> httpx.Response:
    return _sse(_frame(5))


@pytest.mark.parametrize(("answer", "error"), [(_gone, Unreachable), (_gap, ConnectionBroken)])
def test_patience_ends(answer: Callable[[httpx.Request], httpx.Response], error: type[Exception]) -> None:
    time = _Time()
    with pytest.raises(error):
        list(_follower(answer, time))
    assert GIVE_UP_S < time.now < GIVE_UP_S + 20
    assert max(time.pauses) <= 10


def test_a_quiet_job_is_followed_for_as_long_as_the_server_answers() -> None:
    time = _Time()

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events"):
            return httpx.Response(200, json={"id": _JOB, "status": "waiting", "last_seq": 0})
        time.now += 60
        return _sse(_frame(1, "job.cancelled")) if time.now > 3600 else _sse(b": keep-alive\n\n")

    assert _seqs(iter(_follower(answer, time))) == [1]


def test_no_event_stream() -> None:
    with pytest.raises(ApiError, match="event stream"):
        list(_follower(lambda _: httpx.Response(200, text="<html>"), _Time()))
