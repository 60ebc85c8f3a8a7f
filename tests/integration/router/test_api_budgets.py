"""Raising limits and looking at what a key used, over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import func, update

from dualtrack.db import budgets
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.errors import DatabaseUnavailable
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.usage import Usage
from dualtrack.testing.waiting import wait_until
from router import auth, key_budgets

from .conftest import Api, MakeApi


def submit(client: httpx.Client, **limits: Any) -> str:
    answer = client.post("/v1/jobs", json={"instructions": "do it", "limits": limits})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def let_it_wait(api: Api, job_id: str, **values: Any) -> None:
    """As if a planner had found its budget used up."""
    waiting = {"status": "waiting", "reason": "budget", "message": "used up", "hold": "budget", "due_at": None}
    times = {"waiting_since": func.now(), "waiting_until": func.now() + func.make_interval(0, 0, 0, 1), "started_at": func.now()}
    with api.database.transaction() as tx:
        tx.connection.execute(update(jobs_table).where(jobs_table.c.id == job_id).values(status="running"))
        tx.connection.execute(update(jobs_table).where(jobs_table.c.id == job_id).values({**waiting, **times, **values}))


def test_an_extended_job_goes_on_and_shows_its_new_limits(api: Api, client: httpx.Client) -> None:
    job_id = submit(client, steps=2)
    let_it_wait(api, job_id, step=2)
    too_little = client.post(f"/v1/jobs/{job_id}/extend", json={"limits": {"tokens": 3_000_000}}).json()
    assert (too_little["status"], too_little["reason"]) == ("waiting", "budget")
    assert "2 of the job's 2 steps" in too_little["message"]
    rung = api.doorbell.planned.count(job_id)
    for _ in range(2):
        answer = client.post(f"/v1/jobs/{job_id}/extend", json={"limits": {"steps": 100}})
        assert answer.status_code == 200, answer.text
        assert answer.json()["status"] == "running"
    assert answer.json()["limits"] == {
        "steps": 100, "tokens": 3_000_000, "cost_usd": "10", "wall_time_s": 3600, "on_limit": "wait",
    }  # fmt: skip
    assert api.doorbell.planned.count(job_id) == rung + 1
    kinds = [event["type"] for event in client.get(f"/v1/jobs/{job_id}/events").json()["data"]]
    assert kinds == ["job.queued", "job.extended", "job.extended", "job.resumed"]


@pytest.mark.parametrize(
    ("limits", "param"),
    [
        ({"steps": 1}, "limits.steps"),
        ({"steps": 10_001}, "limits.steps"),
        ({"cost_usd": -1}, "limits.cost_usd"),
        ({"on_limit": "fail"}, "limits.on_limit"),
        ({"stepz": 5}, "limits.stepz"),
        ({}, "limits"),
    ],
)
def test_a_wrong_extension_names_the_field(client: httpx.Client, limits: dict[str, Any], param: str) -> None:
    job_id = submit(client, steps=2)
    answer = client.post(f"/v1/jobs/{job_id}/extend", json={"limits": limits})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert client.get(f"/v1/jobs/{job_id}").json()["limits"]["steps"] == 2


def test_only_a_live_job_of_ones_own_can_be_extended(api: Api, client: httpx.Client) -> None:
    job_id = submit(client)
    body = {"limits": {"steps": 100}}
    with api.client(api.new_key()[1]) as stranger:
        assert stranger.post(f"/v1/jobs/{job_id}/extend", json=body).status_code == 404
    client.post(f"/v1/jobs/{job_id}/cancel")
    answer = client.post(f"/v1/jobs/{job_id}/extend", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "job_ended")
    assert "/retry or /fork" in answer.json()["error"]["message"]


@pytest.mark.usefixtures("one_day")
def test_a_key_sees_what_it_used(api: Api, client: httpx.Client, key: str) -> None:
    mine = client.get("/v1/usage").json()
    assert (mine["usage"]["total_tokens"], mine["limit_tokens"], mine["limit_cost_usd"]) == (0, None, None)
    with api.database.transaction() as tx:
        for shard in (0, 7, 7):
            tx.connection.execute(budgets.adding(mine["key_id"], shard, Usage(10, 5)))
        budgets.set_key_limits(tx, mine["key_id"], {"day_tokens": 1000})
    found = client.get("/v1/usage", params={"day": mine["day"]}).json()
    assert (found["usage"]["total_tokens"], found["limit_tokens"]) == (45, 1000)
    assert client.get("/v1/usage", params={"day": "2020-01-01"}).json()["usage"]["total_tokens"] == 0
    assert client.get("/v1/usage", params={"day": "9999-12-30"}).json()["ends_at"] == "9999-12-31T00:00:00Z"
    assert client.get("/v1/usage", params={"key": "other"}).status_code == 400


@pytest.mark.parametrize(
    "day",
    [
        "yesterday",
        "",
        "9999-12-31",
        "2026-02-30",
        "2026-11-30T00:00:00Z",
        "20261130",
        "2026-W49-1",
        "1764460800",
        "0000-01-01",
        "٢٠٢٦-11-30",
    ],
)
def test_what_is_no_day_is_told_how_to_write_one(client: httpx.Client, day: str) -> None:
    answer = client.get("/v1/usage", params={"day": day})
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["param"]) == (400, "invalid_request", "day")
    assert "YYYY-MM-DD" in answer.json()["error"]["message"]


def test_children_are_listed_by_their_parent(api: Api, client: httpx.Client) -> None:
    tools = ["shell", "delegate"]
    parent = client.post("/v1/jobs", json={"instructions": "lead", "agent": {"tools": tools}}).json()
    assert (parent["parent_id"], parent["depth"], parent["children_url"]) == (None, 0, f"/v1/jobs?parent_id={parent['id']}")
    child_id, other_id = submit(client), submit(client)
    lineage = {"parent_id": parent["id"], "parent_call_id": f"call_{child_id}", "root_id": parent["id"], "depth": 1}
    with api.database.transaction() as tx:
        tx.connection.execute(update(jobs_table).where(jobs_table.c.id == child_id).values(lineage))
    assert [job["id"] for job in client.get(parent["children_url"]).json()["data"]] == [child_id]
    shown = client.get(f"/v1/jobs/{child_id}").json()
    assert {name: shown[name] for name in lineage} == lineage
    assert shown["children_url"] is None
    assert client.get("/v1/jobs", params={"parent_id": other_id}).json()["data"] == []


CHAT = {"model": "fast", "messages": [{"role": "user", "content": "hello"}]}


def used(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/v1/usage").raise_for_status().json()
    return found


def until_used(client: httpx.Client, tokens: int) -> None:
    wait_until(lambda: used(client)["usage"]["total_tokens"] == tokens, f"{tokens} tokens used")


@pytest.mark.usefixtures("one_day")
def test_chats_count_for_their_key_and_are_refused_once_its_day_is_used(make_api: MakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_budgets, "FLUSH_S", 0.05)
    monkeypatch.setattr(key_budgets, "REMEMBERED_S", 0.0)
    monkeypatch.setattr(auth, "REMEMBERED_S", 0.0)
    with make_api() as api, api.client(api.new_key()[1]) as client, api.client(api.new_key()[1]) as other:
        first = client.post("/v1/chat/completions", json=CHAT).json()["usage"]["total_tokens"]
        until_used(client, first)
        streamed = client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        assert "[DONE]" in streamed.text
        until_used(client, 2 * first)
        with api.database.transaction() as tx:
            budgets.set_key_limits(tx, used(client)["key_id"], {"day_tokens": 2 * first})
        refused = client.post("/v1/chat/completions", json=CHAT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "budget_exceeded")
        midnight = datetime.combine(datetime.now(UTC).date() + timedelta(days=1), time.min, UTC)
        assert int(refused.headers["retry-after"]) == pytest.approx((midnight - datetime.now(UTC)).total_seconds(), abs=30)
        assert f"{2 * first} of its {2 * first} tokens" in refused.json()["error"]["message"]
        assert other.post("/v1/chat/completions", json=CHAT).status_code == 200
        with api.database.transaction() as tx:
            budgets.set_key_limits(tx, used(client)["key_id"], {"day_tokens": None})
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
    with api.database.transaction() as tx:  # what was answered last is written as the process stops
        assert budgets.key_day(tx, refused_key(refused), PlatformLimits()).usage.total_tokens == 3 * first


def refused_key(refused: httpx.Response) -> str:
    return str(refused.json()["error"]["message"].split()[3])


@pytest.mark.usefixtures("one_day")
def test_what_can_not_be_written_now_is_written_later(make_api: MakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[int] = []
    real = key_budgets.KeyBudgets._write

    def write(self: key_budgets.KeyBudgets, used: Any) -> None:
        if len(failed) < 2:
            failed.append(1)
            raise DatabaseUnavailable("away")
        real(self, used)

    monkeypatch.setattr(key_budgets, "FLUSH_S", 0.05)
    monkeypatch.setattr(key_budgets.KeyBudgets, "_write", write)
    with make_api() as api, api.client(api.new_key()[1]) as client:
        counts = [client.post("/v1/chat/completions", json=CHAT).json()["usage"]["total_tokens"] for _ in range(3)]
        until_used(client, sum(counts))
        assert len(failed) == 2
