"""Lists of jobs over HTTP: by time, by where a job comes from, in both orders, and never somebody else's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from dualtrack.db import jobs
from dualtrack.domain.ids import new_id
from dualtrack.domain.job import JobSpec

from .conftest import Api


def submit(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = client.post("/v1/jobs", json={"instructions": "Count the orders.", **fields}).json()
    return made


def listed(client: httpx.Client, **params: Any) -> list[str]:
    answer = client.get("/v1/jobs", params=params)
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["data"]]


def paged(client: httpx.Client, **params: Any) -> Iterator[str]:
    """All pages of a list, one after the other."""
    after: dict[str, str] = {}
    while True:
        page = client.get("/v1/jobs", params={**params, **after}).json()
        yield from (job["id"] for job in page["data"])
        if not page["has_more"]:
            return
        after = {"after": page["next_cursor"]}


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_pages_in_either_order_show_every_job_once_whatever_is_submitted_meanwhile(client: httpx.Client, limit: int) -> None:
    made = [submit(client, metadata={"n": str(n % 2)})["id"] for n in range(7)]
    assert list(paged(client, limit=limit, order="asc")) == made
    assert list(paged(client, limit=limit, order="desc")) == list(paged(client, limit=limit)) == made[::-1]
    assert list(paged(client, limit=limit, order="asc", **{"metadata.n": "1"})) == made[1::2]
    newest_first, oldest_first = paged(client, limit=limit), paged(client, limit=limit, order="asc")
    seen_down, seen_up = [next(newest_first)], [next(oldest_first)]
    late = submit(client)["id"]
    assert [*seen_down, *newest_first] == made[::-1], "what came later is before the page that was read"
    assert [*seen_up, *oldest_first] == ([*made, late] if limit < len(made) else made), "and behind it in the other order"


def test_jobs_are_found_by_their_times(client: httpx.Client) -> None:
    made = [submit(client) for _ in range(3)]
    ids = [job["id"] for job in made]
    for job_id in ids[:2]:
        client.post(f"/v1/jobs/{job_id}/cancel")
    middle = made[1]["created_at"]
    assert listed(client, created_after=middle, order="asc") == ids[1:]
    assert listed(client, created_before=middle) == ids[:1]
    assert listed(client, created_after=middle, created_before=made[2]["created_at"]) == [ids[1]]
    ended = client.get(f"/v1/jobs/{ids[1]}").json()["finished_at"]
    assert listed(client, finished_after=ended) == [ids[1]]
    assert listed(client, finished_before=ended) == [ids[0]]
    assert listed(client, finished_after=made[0]["created_at"], created_after=middle, status="cancelled") == [ids[1]]
    assert listed(client, finished_after="9999-12-31T23:59:59Z") == listed(client, created_before="0001-01-01T00:00:00Z") == []
    elsewhere = (datetime.fromisoformat(middle) + timedelta(hours=5)).replace(tzinfo=None).isoformat() + "+05:00"
    assert listed(client, created_before=elsewhere) == ids[:1]


def test_a_time_without_an_offset_is_refused_with_what_to_write(client: httpx.Client) -> None:
    answer = client.get("/v1/jobs?created_after=2026-11-30T08:00:00+01:00")  # the + of an address is a space
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "created_after"
    assert "RFC 3339 with an offset, such as 2026-11-30T08:00:00Z (in an address, a + is written %2B)" in answer.json()["error"]["message"]
    assert client.get("/v1/jobs?created_after=2026-11-30T08:00:00%2B01:00").status_code == 200


def test_jobs_are_found_by_where_they_come_from_and_why_they_ended(api: Api, client: httpx.Client) -> None:
    tenant, key = api.new_key()
    with api.client(key) as own:
        root = submit(own, agent={"tools": ["delegate", "finish"]})["id"]
        fork = own.post(f"/v1/jobs/{root}/fork", json={"step": 0}).json()["id"]
        schedule = own.post("/v1/schedules", json={"cron": "0 9 * * MON", "job": {"instructions": "x"}}).json()["id"]
        started = own.post(f"/v1/schedules/{schedule}/run").json()["job_id"]
        kids = sorted(new_id("job") for _ in range(2))
        with api.database.transaction() as tx:
            for depth, kid in enumerate(kids, 1):
                lineage = {"parent_id": [root, *kids][depth - 1], "root_id": root, "depth": depth}
                jobs.create(
                    tx, job_id=kid, tenant_id=tenant, spec=JobSpec(instructions="x"), workspace=None, traceparent="",
                    request_traceparent="", ring_s=5, lineage=lineage,
                )  # fmt: skip
        own.post(f"/v1/jobs/{fork}/cancel")
        own.post(f"/v1/jobs/{started}/pause")
        ways = {
            ("root_id", root): kids,
            ("parent_id", root): kids[:1],
            ("forked_from", root): [fork],
            ("schedule_id", schedule): [started],
            ("reason", "cancelled"): [fork],
            ("reason", "paused"): [started],
        }
        for (name, value), expected in ways.items():
            assert listed(own, order="asc", **{name: value}) == expected
            assert listed(client, **{name: value}) == [], "another tenant's"
        assert listed(own, reason=["cancelled", "paused"], order="asc") == [fork, started]
        assert listed(own, reason="no_such_reason") == []
        assert own.delete(f"/v1/schedules/{schedule}").status_code == 200
        assert listed(own, schedule_id=schedule) == [started], "a job outlives its schedule"


def test_only_the_fields_asked_for_are_sent(client: httpx.Client) -> None:
    for _ in range(3):
        submit(client, metadata={"team": "a"})
    rows = client.get("/v1/jobs").json()
    some = client.get("/v1/jobs", params={"fields": "id,usage, created_at", "limit": 2}).json()
    assert {**some, "data": []} == {**client.get("/v1/jobs", params={"limit": 2}).json(), "data": []}, "paged as ever"
    assert some["data"] == [{name: row[name] for name in ("id", "usage", "created_at")} for row in rows["data"][:2]]
    assert client.get("/v1/jobs", params={"fields": ",".join(rows["data"][0])}).json() == rows
    path = f"/v1/jobs/{rows['data'][0]['id']}"
    assert client.get(path, params={"fields": ["status", "metadata"]}).json() == {"status": "queued", "metadata": {"team": "a"}}
    client.post(f"{path}/cancel")
    assert client.get(path, params={"fields": "status", "wait_s": 9}).json() == {"status": "cancelled"}


@pytest.mark.parametrize("fields", ["", "id,", "state", "usage.cost_usd", "id,Status", "*", "\x00"])
def test_a_field_that_jobs_do_not_have_is_refused_with_those_they_have(client: httpx.Client, fields: str) -> None:
    for path in ("/v1/jobs", f"/v1/jobs/{submit(client)['id']}"):
        answer = client.get(path, params={"fields": fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "fields")
        assert "there are: id, object, status, reason, " in answer.json()["error"]["message"]


def test_a_job_shows_the_key_and_the_schedule_that_it_comes_from(api: Api) -> None:
    _, key = api.new_key()
    with api.client(key) as client:
        mine = client.get("/v1/usage").json()["key_id"]
        submitted = submit(client)
        assert (submitted["key_id"], submitted["schedule_id"]) == (mine, None)
        schedule = client.post("/v1/schedules", json={"cron": "0 9 * * MON", "job": {"instructions": "x"}}).json()["id"]
        started = client.post(f"/v1/schedules/{schedule}/run").json()["job_id"]
        shown = client.get(f"/v1/jobs/{started}").json()
        assert (shown["key_id"], shown["schedule_id"]) == (mine, schedule)
        rows = client.get("/v1/jobs").json()["data"]
        assert {row["id"]: row["schedule_id"] for row in rows} == {submitted["id"]: None, started: schedule}
        assert {row["key_id"] for row in rows} == {mine}
        forked = client.post(f"/v1/jobs/{started}/fork", json={"step": 0}).json()
        assert (forked["key_id"], forked["schedule_id"], forked["forked_from"]) == (mine, None, started)
