"""`/v1/schedules`: making, showing, changing, running."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from dualtrack.db import clock, schedules
from dualtrack.testing.stepper import run_schedules

from .conftest import Api, MakeApi


def add(client: httpx.Client, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return client.post("/v1/schedules", json={"cron": "0 9 * * MON", "job": {"instructions": "x"}, **fields}, headers=headers or {})


def error(answer: httpx.Response) -> tuple[int, str, str | None]:
    found = answer.json()["error"]
    return answer.status_code, found["code"], found["param"]


def test_a_schedule_is_made_and_shown(client: httpx.Client) -> None:
    answer = add(client, timezone="Europe/Berlin", name="weekly", overlap="queue")
    made = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/schedules/{made['id']}")
    assert (made["name"], made["overlap"], made["catch_up"], made["paused"]) == ("weekly", "queue", "latest", False)
    due = datetime.fromisoformat(made["next_at"])
    assert due.weekday() == 0
    assert due.hour in {7, 8}
    assert datetime.now(UTC) < due <= datetime.now(UTC) + timedelta(days=8)
    assert client.get(f"/v1/schedules/{made['id']}").json() == made
    assert client.get("/v1/schedules").json()["data"] == [made]


def test_making_can_be_repeated(client: httpx.Client) -> None:
    headers = {"idempotency-key": "k"}
    body = {"instructions": "x", "webhook": {"url": "https://hooks.example.com/"}}
    first, again = add(client, headers, job=body), add(client, headers, job=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert first.json()["job"]["webhook"]["secret"].startswith("whsec_")
    shown = client.get(f"/v1/schedules/{first.json()['id']}").json()
    assert shown["job"]["webhook"] == {"url": "https://hooks.example.com/", "events": shown["job"]["webhook"]["events"], "secret": None}
    assert error(add(client, headers, name="other")) == (409, "idempotency_key_reused", "Idempotency-Key")


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"cron": "* * * *"}, "invalid_request", "cron"),
        ({"cron": "0 0 30 2 *"}, "invalid_request", "cron"),
        ({"timezone": "Mars/Phobos"}, "invalid_request", "timezone"),
        ({"overlap": "maybe"}, "invalid_request", "overlap"),
        ({"job": {"instructions": ""}}, "invalid_request", "job.instructions"),
        ({"job": {"instructions": "x", "agent": {"model": "nope"}}}, "model_not_found", "job.agent.model"),
        ({"job": {"instructions": "x", "inputs": [{"file_id": "file_1"}]}}, "not_found", "job.inputs.0.file_id"),
        ({"job": {"instructions": "x", "webhook": {"url": "http://10.0.0.1/"}}}, "address_refused", "job.webhook.url"),
        ({"name": "\x00"}, "invalid_request", "name"),
        ({"paused": 1}, "invalid_request", "paused"),
    ],
)
def test_what_can_not_work_is_refused_at_once(client: httpx.Client, fields: dict[str, Any], code: str, param: str) -> None:
    assert error(add(client, **fields))[1:] == (code, param)
    assert client.get("/v1/schedules").json()["data"] == []


def test_changing_moves_the_next_time_and_pausing_takes_it_away(client: httpx.Client) -> None:
    made = add(client).json()
    path = f"/v1/schedules/{made['id']}"
    yearly = client.patch(path, json={"cron": "0 0 1 1 *", "name": "yearly"}).json()
    assert (yearly["name"], yearly["next_at"][4:]) == ("yearly", "-01-01T00:00:00Z")
    paused = client.patch(path, json={"paused": True}).json()
    assert (paused["paused"], paused["next_at"]) == (True, None)
    assert client.patch(path, json={"timezone": "Asia/Tokyo"}).json()["next_at"] is None
    assert client.patch(path, json={"paused": False}).json()["next_at"][4:] == "-12-31T15:00:00Z"
    assert client.patch(path, json={"job": {"instructions": "y"}}).json()["job"]["instructions"] == "y"
    assert client.delete(path).json() == {"id": made["id"], "object": "schedule", "deleted": True}
    assert error(client.get(path)) == (404, "not_found", "schedule_id")


def test_a_job_that_is_sent_back_as_it_was_shown_keeps_its_secret(client: httpx.Client) -> None:
    webhook = {"url": "https://hooks.example.com/a"}
    made = add(client, job={"instructions": "x", "webhook": webhook, "limits": {"cost_usd": 0.25}}).json()
    path, secret = f"/v1/schedules/{made['id']}", made["job"]["webhook"]["secret"]
    headers = {"idempotency-key": "again"}
    shown = client.get(path).json()["job"]
    assert shown["webhook"]["secret"] is None
    for job in (shown, shown | {"instructions": "y"}, shown | {"webhook": webhook | {"events": ["job.failed"]}}):
        answers = [client.patch(path, json={"job": job}, headers=headers).json() for _ in range(2)]
        assert answers[0] == answers[1]
        assert answers[0]["job"] == job | {"webhook": job["webhook"] | {"secret": secret}}
    assert client.patch(path, json={"name": "other"}).json()["job"]["webhook"]["secret"] is None


def test_a_webhook_at_another_address_gets_another_secret(client: httpx.Client) -> None:
    def change(**webhook: str) -> str:
        answers = [client.patch(path, json={"job": {"instructions": "x", "webhook": webhook}}).json() for _ in range(2)]
        assert answers[0] == answers[1]  # also whoever missed the first answer learns the secret
        found: str = answers[0]["job"]["webhook"]["secret"]
        return found

    made = add(client, job={"instructions": "x", "webhook": {"url": "https://hooks.example.com/a"}}).json()
    path, first = f"/v1/schedules/{made['id']}", made["job"]["webhook"]["secret"]
    second = change(url="https://hooks.example.com/b")
    assert second.startswith("whsec_")
    assert second != first
    assert change(url="https://hooks.example.com/b", secret=first) == first
    assert change(url="https://hooks.example.com/b") == first
    assert client.patch(path, json={"job": {"instructions": "x"}}).json()["job"]["webhook"] is None
    assert change(url="https://hooks.example.com/b") not in {first, second}


def test_changing_nothing_loses_no_time_that_has_come(client: httpx.Client, api: Api) -> None:
    made = add(client, cron="0 0 1 1 *").json()
    path = f"/v1/schedules/{made['id']}"
    with api.database.transaction() as tx:
        due = clock.now(tx)
        schedules.change(tx, made["id"], {"next_at": due})
    kept = client.patch(path, json={"name": "b", "cron": "0 0 1 1 *", "timezone": "UTC", "paused": False}).json()
    assert (kept["name"], datetime.fromisoformat(kept["next_at"])) == ("b", due)
    assert client.patch(path, json={"paused": True}).json()["next_at"] is None
    assert [(row["outcome"], "paused" in row["message"]) for row in client.get(f"{path}/runs").json()["data"]] == [("skipped", True)]


def test_run_now_and_the_history(client: httpx.Client, api: Api) -> None:
    made = add(client, paused=True).json()
    path = f"/v1/schedules/{made['id']}"
    headers = {"idempotency-key": "run"}
    assert client.post(f"{path}/run", headers=headers, json={"at": "now"}).json()["error"]["param"] == "at"
    first, again = client.post(f"{path}/run", headers=headers), client.post(f"{path}/run", headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    run = first.json()
    assert (run["manual"], run["outcome"]) == (True, "started")
    assert client.get(f"/v1/jobs/{run['job_id']}").json()["status"] == "queued"
    client.patch(path, json={"paused": False})
    with api.database.transaction() as tx:
        schedules.change(tx, made["id"], {"next_at": clock.now(tx)})
    assert run_schedules(api.server.config.app.state.services.runtime) == 1  # type: ignore[union-attr]
    page = client.get(f"{path}/runs", params={"limit": 1}).json()
    assert [(row["outcome"], row["manual"]) for row in page["data"]] == [("skipped", False)]
    rest = client.get(f"{path}/runs", params={"after": page["next_cursor"]}).json()
    assert (rest["data"], rest["has_more"], rest["next_cursor"]) == ([run], False, None)
    assert client.delete(path).status_code == 200
    assert client.get(f"/v1/jobs/{run['job_id']}").status_code == 200


def test_somebody_elses_schedule_is_none(client: httpx.Client, api: Api) -> None:
    path = f"/v1/schedules/{add(client).json()['id']}"
    with api.client(api.new_key()[1]) as stranger:
        for answer in (
            stranger.get(path),
            stranger.patch(path, json={"paused": True}),
            stranger.delete(path),
            stranger.post(path + "/run"),
            stranger.get(path + "/runs"),
        ):
            assert error(answer) == (404, "not_found", "schedule_id")


def test_a_tenant_has_only_so_many(make_api: MakeApi) -> None:
    with make_api(schedules=2) as api, api.client(api.new_key()[1]) as client:
        assert [add(client).status_code for _ in range(2)] == [201, 201]
        assert error(add(client)) == (409, "limit_reached", None)
