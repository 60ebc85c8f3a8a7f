"""A job that is waited for: answered when it has ended or waits for somebody, at the end of the time, and never later."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

from dualtrack.db import events, jobs
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.testing.waiting import wait_until

from .conftest import Api, MakeApi, new_job

LONG_S = 50
DEADLINE_S = 60.0


class Waiting:
    """A request that waits, in a thread of its own."""

    def __init__(self, client: httpx.Client, job_id: str, wait_s: float = LONG_S) -> None:
        self._client, self._path = client, f"/v1/jobs/{job_id}?wait_s={wait_s}"
        self._answers: list[httpx.Response] = []
        self.thread = threading.Thread(target=self._ask)
        self.thread.start()

    def _ask(self) -> None:
        self._answers.append(self._client.get(self._path))

    @property
    def answered(self) -> bool:
        return bool(self._answers)

    def answer(self) -> httpx.Response:
        self.thread.join(DEADLINE_S)
        return self._answers[0]


def open_streams(client: httpx.Client, number: int) -> None:
    wait_until(lambda: f"dualtrack_event_streams {number}.0" in client.get("/metrics").text, f"{number} open streams")


@pytest.mark.parametrize(("action", "status"), [("cancel", "cancelled"), ("pause", "waiting")])
def test_it_is_answered_as_soon_as_the_job_has_ended_or_waits(api: Api, client: httpx.Client, action: str, status: str) -> None:
    job_id = new_job(client)
    began = time.monotonic()
    waiting = Waiting(client, job_id)
    open_streams(client, 1)
    with api.database.transaction() as tx:
        events.append(tx, job_id, NewEvent(EventType.PLAN_UPDATED, {}))
    assert not waiting.answered, "an event that changes no status is no answer"
    client.post(f"/v1/jobs/{job_id}/{action}")
    answer = waiting.answer()
    assert time.monotonic() - began < LONG_S
    assert answer.status_code == 200
    assert answer.json()["status"] == status
    assert answer.json() == client.get(f"/v1/jobs/{job_id}").json(), "as without waiting"
    open_streams(client, 0)
    assert client.get(f"/v1/jobs/{job_id}", params={"wait_s": LONG_S}).json()["status"] == status
    assert time.monotonic() - began < LONG_S, "one that is so already is answered at once"


def test_at_the_end_of_the_time_it_is_answered_as_it_stands(api: Api, client: httpx.Client) -> None:
    job_id = new_job(client)
    waiting = Waiting(client, job_id, 0.5)
    with api.database.transaction() as tx:
        events.append(tx, job_id, NewEvent(EventType.PLAN_UPDATED, {}))
    answer = waiting.answer().json()
    assert (answer["status"], answer["last_seq"]) == ("queued", 2)


def test_a_wait_that_is_over_before_it_was_looked_at_goes_on(make_api: MakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    with make_api(stream_poll_s=0.02) as api, api.client(api.new_key()[1]) as client:
        job_id = new_job(client)
        waiting = Waiting(client, job_id)
        open_streams(client, 1)
        get = jobs.get
        resumed: list[str] = []

        def resuming(tx: Any, wanted: str, **options: Any) -> Any:
            found = get(tx, wanted, **options)
            if (
                found.waiting_since is not None
                and not options.get("lock")
                and not resumed
                and threading.current_thread().name.startswith("event-reader")
            ):
                resumed.append(wanted)
                client.post(f"/v1/jobs/{job_id}/resume")
                return get(tx, wanted, **options)
            return found

        monkeypatch.setattr(jobs, "get", resuming)
        client.post(f"/v1/jobs/{job_id}/pause")
        wait_until(lambda: bool(resumed), "the look at a paused job")
        open_streams(client, 1)
        client.post(f"/v1/jobs/{job_id}/cancel")
        assert waiting.answer().json()["status"] == "cancelled"


def test_many_wait_for_the_price_of_one_look_a_tick_and_of_no_thread(make_api: MakeApi, asked: list[int]) -> None:
    with make_api(stream_poll_s=0.1) as api, api.client(api.new_key()[1]) as client:
        job_id = new_job(client)
        waiting = [Waiting(client, job_id) for _ in range(45)]  # more than there are threads for requests
        open_streams(client, 45)
        looks, began = len(asked), time.monotonic()
        wait_until(lambda: len(asked) >= looks + 5, "five looks")
        assert time.monotonic() - began > 0.3
        assert max(asked) == 1
        assert client.get("/v1/jobs").status_code == 200
        client.post(f"/v1/jobs/{job_id}/cancel")
        assert {one.answer().json()["status"] for one in waiting} == {"cancelled"}


def test_waits_count_as_streams_and_a_client_that_leaves_gives_its_place_back(make_api: MakeApi) -> None:
    with make_api(streams=1, stream_poll_s=0.02) as api, api.client(api.new_key()[1]) as client:
        job_id = new_job(client)
        with pytest.raises(httpx.ReadTimeout):
            client.get(f"/v1/jobs/{job_id}", params={"wait_s": LONG_S}, timeout=0.3)
        open_streams(client, 0)
        waiting = Waiting(client, job_id)
        open_streams(client, 1)
        for path in (f"/v1/jobs/{job_id}?wait_s=1", f"/v1/jobs/{job_id}/events?stream=true"):
            refused = client.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_streams")
            assert refused.headers["retry-after"]
        assert client.get(f"/v1/jobs/{job_id}").status_code == 200
        client.post(f"/v1/jobs/{job_id}/cancel")
        assert waiting.answer().status_code == 200


def test_a_router_that_stops_answers_at_once(make_api: MakeApi) -> None:
    with make_api(stream_poll_s=0.02) as api, api.client(api.new_key()[1]) as client:
        waiting = Waiting(client, new_job(client))
        open_streams(client, 1)
        began = time.monotonic()
        api.server.should_exit = True
        answer = waiting.answer()
        assert (answer.status_code, answer.json()["status"]) == (200, "queued")
        api.thread.join(DEADLINE_S)
        assert time.monotonic() - began < LONG_S / 2


@pytest.mark.parametrize("wait_s", ["61", "-1", "nan", "inf", "soon", ""])
def test_times_beyond_the_limit_are_refused(client: httpx.Client, wait_s: str) -> None:
    answer = client.get(f"/v1/jobs/{new_job(client)}", params={"wait_s": wait_s})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "wait_s")


def test_others_and_misspellings_are_refused_before_any_wait(api: Api, client: httpx.Client) -> None:
    job_id = new_job(client)

    def answer(who: httpx.Client, query: str) -> httpx.Response:
        return who.get(f"/v1/jobs/{job_id}?{query}")

    with api.client(api.new_key()[1]) as other:
        assert answer(other, f"wait_s={LONG_S}").status_code == 404
    misspelt = answer(client, "wait=30")
    assert (misspelt.status_code, misspelt.json()["error"]["param"]) == (400, "wait")
