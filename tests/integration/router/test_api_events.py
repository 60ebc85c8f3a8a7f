"""A job's events, streamed and paged: nothing lost, nothing repeated, nothing kept open without need."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from dualtrack.db import events, jobs
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.lifecycle import JobStatus

from .conftest import Api, MakeApi, new_job

DEADLINE_S = 60.0


def append(api: Api, job_id: str, count: int = 1, *, end: bool = False) -> None:
    with api.database.transaction() as tx:
        events.append(tx, job_id, *[NewEvent(EventType.PLAN_UPDATED, {"n": n}) for n in range(count)])
        if end:
            jobs.end(tx, job_id, JobStatus.CANCELLED, reason=None, message=None, answer=None)
            events.append(tx, job_id, NewEvent(EventType.JOB_CANCELLED, {}))


def mixed(api: Api, job_id: str, rounds: int = 1) -> None:
    """A decided step and a changed plan, so many times."""
    with api.database.transaction() as tx:
        events.append(tx, job_id, *[NewEvent(kind, {}) for kind in (EventType.STEP_DECIDED, EventType.PLAN_UPDATED) * rounds])


def stream(client: httpx.Client, job_id: str, *, after: int | None = None, last: int | None = None, types: Sequence[str] = ()) -> Any:
    headers = {"accept": "text/event-stream"} | ({} if last is None else {"last-event-id": str(last)})
    params: dict[str, Any] = ({} if after is None else {"after": after}) | {"type": list(types)}
    return client.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers, params=params)


def parsed(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Events with their own id and type, checked against the data."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            data = json.loads(fields["data"])
            assert (str(data["seq"]), data["type"]) == (fields["id"], fields["event"])
            assert set(data) == {"seq", "type", "at", "job_id", "data"}
            yield data
        fields = {}


def test_a_stream_that_is_cut_again_and_again_loses_and_repeats_nothing(api: Api, client: httpx.Client) -> None:
    job_id = new_job(client)
    total = 120

    def write() -> None:
        for n in range(total):
            append(api, job_id, end=n == total - 1)

    writer = threading.Thread(target=write)
    writer.start()
    seen: list[int] = []
    cuts = 0
    while not seen or seen[-1] != total + 2:
        with stream(client, job_id, last=seen[-1] if seen else 0) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            for taken, event in enumerate(parsed(response.iter_lines()), 1):
                seen.append(event["seq"])
                if taken == 17:
                    cuts += 1
                    break
    writer.join()
    assert seen == list(range(1, total + 3))
    assert cuts >= 6


def test_many_streams_of_many_jobs_cost_one_query_a_tick(make_api: MakeApi, asked: list[int]) -> None:
    with make_api(stream_poll_s=0.1) as api, api.client(api.new_key()[1]) as client:
        ids = [new_job(client) for _ in range(5)]
        seen: dict[int, list[int]] = {}

        def follow(n: int) -> None:
            with api.client(client.headers["authorization"].removeprefix("Bearer ")) as own, stream(own, ids[n % 5]) as response:
                seen[n] = [event["seq"] for event in parsed(response.iter_lines())]

        threads = [threading.Thread(target=follow, args=(n,)) for n in range(20)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + DEADLINE_S
        while "dualtrack_event_streams 20.0" not in client.get("/metrics").text:
            assert time.monotonic() < deadline
        began, before = time.monotonic(), len(asked)
        while len(asked) < before + 5:
            assert time.monotonic() < deadline
        assert time.monotonic() - began > 0.3  # five looks at 0.1 s each, whatever the number of streams
        assert max(asked) == 5
        for job_id in ids:
            append(api, job_id, 2, end=True)
        for thread in threads:
            thread.join(DEADLINE_S)
        assert seen == {n: [1, 2, 3, 4] for n in range(20)}
        while "dualtrack_event_streams 0.0" not in client.get("/metrics").text:
            assert time.monotonic() < deadline


def test_a_finished_job_can_be_streamed_from_anywhere_and_ends(api: Api, client: httpx.Client) -> None:
    job_id = new_job(client)
    append(api, job_id, 250, end=True)
    with stream(client, job_id) as response:
        assert [event["seq"] for event in parsed(response.iter_lines())] == list(range(1, 253))
    with stream(client, job_id, after=250) as response:
        assert [event["type"] for event in parsed(response.iter_lines())] == ["plan.updated", "job.cancelled"]
    with stream(client, job_id, after=7, last=251) as response:  # a reconnecting EventSource keeps its address and adds the header
        assert [event["seq"] for event in parsed(response.iter_lines())] == [252]
    with stream(client, job_id, after=252) as response:
        assert (response.status_code, list(parsed(response.iter_lines()))) == (200, [])
    with stream(client, job_id, last=252) as response:
        assert response.status_code == 204


def test_only_the_types_asked_for_are_paged_and_numbers_stay_the_jobs(api: Api, client: httpx.Client) -> None:
    job_id = new_job(client)
    mixed(api, job_id, 5)  # job.queued, then step and plan by turns up to 11
    address = f"/v1/jobs/{job_id}/events"
    page = client.get(address, params={"type": "step.decided", "limit": 3}).json()
    assert [event["seq"] for event in page["data"]] == [2, 4, 6]
    assert (page["has_more"], page["next_cursor"], page["next_after"]) == (True, 6, 6)
    page = client.get(address, params={"type": "step.decided", "after": 6}).json()
    assert [event["seq"] for event in page["data"]] == [8, 10]
    assert (page["has_more"], page["next_cursor"], page["next_after"]) == (False, None, 11), "what is not wanted is not looked at again"
    two = client.get(address, params={"type": ["job.queued", "plan.updated"]}).json()
    assert [event["seq"] for event in two["data"]] == [1, 3, 5, 7, 9, 11]
    none = client.get(address, params={"type": "call.output"}).json()
    assert (none["data"], none["next_after"]) == ([], 11)
    mixed(api, job_id, 1)
    later = client.get(address, params={"type": "step.decided", "after": page["next_after"]}).json()
    assert [event["seq"] for event in later["data"]] == [12]


def test_a_stream_of_some_types_that_is_cut_again_and_again_loses_and_repeats_nothing(api: Api, client: httpx.Client) -> None:
    job_id = new_job(client)
    rounds = 60

    def write() -> None:
        for _ in range(rounds):
            mixed(api, job_id)
        append(api, job_id, end=True)

    writer = threading.Thread(target=write)
    writer.start()
    seen: list[int] = []
    while len(seen) < rounds:
        with stream(client, job_id, last=seen[-1] if seen else 0, types=["step.decided"]) as response:
            for taken, event in enumerate(parsed(response.iter_lines()), 1):
                assert event["type"] == "step.decided"
                seen.append(event["seq"])
                if taken == 7:
                    break
    writer.join()
    assert seen == list(range(2, 2 * rounds + 2, 2))


def test_a_stream_without_the_end_event_ends_with_it_all_the_same(api: Api, client: httpx.Client) -> None:
    job_id = new_job(client)
    mixed(api, job_id, 150)  # more than is read at once
    append(api, job_id, end=True)
    with stream(client, job_id, types=["job.queued"]) as response:
        assert [event["seq"] for event in parsed(response.iter_lines())] == [1]
    with stream(client, job_id, types=["plan.updated", "job.cancelled"], after=299) as response:
        assert [event["seq"] for event in parsed(response.iter_lines())] == [301, 302, 303]
    with stream(client, job_id, last=1, types=["job.queued"]) as response:
        assert response.status_code == 204, "an EventSource is told not to come back, though the job has had later events"
    with stream(client, job_id, last=1, types=["job.queued", "job.cancelled"]) as response:
        assert [event["seq"] for event in parsed(response.iter_lines())] == [303]


def test_keep_alives_go_on_while_only_other_things_happen(make_api: MakeApi) -> None:
    with make_api(stream_keepalive_s=0.3, stream_poll_s=0.02) as api, api.client(api.new_key()[1]) as client:
        job_id = new_job(client)
        over = threading.Event()

        def write() -> None:
            while not over.is_set():
                append(api, job_id)  # far more often than every 0.3 s

        writer = threading.Thread(target=write)
        writer.start()
        try:
            with stream(client, job_id, types=["step.decided"]) as response:
                lines = response.iter_lines()
                for _ in range(3):
                    while next(lines) != ": keep-alive":
                        pass
        finally:
            over.set()
            writer.join()


def test_an_unknown_type_is_refused_with_those_that_there_are(client: httpx.Client) -> None:
    answer = client.get(f"/v1/jobs/{new_job(client)}/events", params={"type": ["job.queued", "job.done"]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "type.1")
    for kind in EventType:
        assert f"'{kind}'" in answer.json()["error"]["message"]


def test_silence_is_broken_by_comments(make_api: MakeApi) -> None:
    with make_api(stream_keepalive_s=0.05, stream_poll_s=0.02) as api, api.client(api.new_key()[1]) as client:
        job_id = new_job(client)
        with stream(client, job_id) as response:
            lines = response.iter_lines()
            head = [next(lines)]
            assert head[0] == "retry: 1000"
            while not (head[-1] == "" and {"id: 1", ": keep-alive"} <= set(head)):
                head.append(next(lines))
            append(api, job_id, 1, end=True)
            assert [event["type"] for event in parsed(lines)] == ["plan.updated", "job.cancelled"]


def test_streams_are_bounded(make_api: MakeApi) -> None:
    with make_api(streams=1, stream_poll_s=0.02) as api, api.client(api.new_key()[1]) as client:
        job_id = new_job(client)
        with stream(client, job_id) as response:
            lines = parsed(response.iter_lines())
            assert next(lines)["seq"] == 1
            refused = client.get(f"/v1/jobs/{job_id}/events?stream=true")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_streams")
            assert refused.headers["retry-after"]
        deadline = time.monotonic() + DEADLINE_S
        append(api, job_id, end=True)
        while client.get(f"/v1/jobs/{job_id}/events?stream=true").status_code != 200:  # the first one is noticed to be gone
            assert time.monotonic() < deadline


def test_a_slow_client_is_not_buffered_for(make_api: MakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[int] = []
    page = events.page

    def counting(*given: Any, **named: Any) -> Any:
        found = page(*given, **named)
        pages.append(len(found))
        return found

    monkeypatch.setattr(events, "page", counting)
    with make_api(stream_poll_s=0.02) as api, api.client(api.new_key()[1]) as client:
        job_id = new_job(client)
        big = "x" * 20_000
        with api.database.transaction() as tx:
            events.append(tx, job_id, *[NewEvent(EventType.PLAN_UPDATED, {"plan": big}) for _ in range(3000)])  # 60 MB
        with stream(client, job_id) as response:
            lines = parsed(response.iter_lines())
            assert next(lines)["seq"] == 1
            read = -1
            deadline = time.monotonic() + DEADLINE_S
            while read != len(pages):  # until it stands still: only what the sockets hold was read ahead
                read = len(pages)
                for _ in range(50):  # time for the server to do more, if it would
                    client.get("/healthz")
                assert time.monotonic() < deadline
            assert sum(pages) < 1500


def test_shutdown_ends_streams_and_lets_the_client_resume(make_api: MakeApi) -> None:
    with make_api(stream_poll_s=0.02) as api, api.client(api.new_key()[1]) as client:
        job_id = new_job(client)
        with stream(client, job_id) as response:
            lines = parsed(response.iter_lines())
            assert next(lines)["seq"] == 1
            began = time.monotonic()
            api.server.should_exit = True
            assert list(lines) == []  # an orderly end, not a cut
            api.thread.join(DEADLINE_S)
            assert time.monotonic() - began < DEADLINE_S / 2


def test_pages(api: Api, client: httpx.Client) -> None:
    job_id = new_job(client)
    append(api, job_id, 4)
    page = client.get(f"/v1/jobs/{job_id}/events", params={"limit": 3}).json()
    assert [event["seq"] for event in page["data"]] == [1, 2, 3]
    assert (page["has_more"], page["next_cursor"], page["next_after"]) == (True, 3, 3)
    page = client.get(f"/v1/jobs/{job_id}/events", params={"after": 3}).json()
    assert [event["seq"] for event in page["data"]] == [4, 5]
    assert (page["has_more"], page["next_cursor"], page["next_after"]) == (False, None, 5)
    assert client.get(f"/v1/jobs/{job_id}/events", params={"after": 2**62}).json()["data"] == []
    paged = client.get(f"/v1/jobs/{job_id}/events?stream=false", headers={"accept": "text/event-stream"})
    assert paged.json()["next_after"] == 5


@pytest.mark.parametrize(
    ("params", "headers", "param"),
    [
        ({"after": -1}, {}, "after"),
        ({"after": 2**63}, {}, "after"),
        ({"after": "x"}, {}, "after"),
        ({"limit": 1001}, {}, "limit"),
        ({}, {"last-event-id": "abc"}, "Last-Event-ID"),
        ({}, {"last-event-id": "9" * 30}, "Last-Event-ID"),
    ],
)
def test_wrong_numbers_are_named(client: httpx.Client, params: dict[str, Any], headers: dict[str, str], param: str) -> None:
    answer = client.get(f"/v1/jobs/{new_job(client)}/events", params=params, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
