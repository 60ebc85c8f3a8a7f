"""`/v1/webhooks`: endpoints, their secrets, their deliveries."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet

from dualtrack.db import deliveries, jobs, schedules, webhooks
from dualtrack.domain.ids import new_id
from dualtrack.webhooks.sealing import MARK, Sealer

from .conftest import Api, MakeApi

URL = "https://hooks.example.com/in"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def add(client: httpx.Client, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return client.post("/v1/webhooks", json={"url": URL, **fields}, headers=headers or {})


def error(answer: httpx.Response) -> tuple[int, str, str | None]:
    found = answer.json()["error"]
    return answer.status_code, found["code"], found["param"]


def ended_job(client: httpx.Client, **fields: Any) -> str:
    job_id: str = client.post("/v1/jobs", json={"instructions": "x", **fields}).json()["id"]
    assert client.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
    return job_id


def test_the_secret_is_shown_once(client: httpx.Client) -> None:
    answer = add(client)
    made = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/webhooks/{made['id']}")
    assert made["secret"].startswith("whsec_")
    assert made["events"] == ["job.succeeded", "job.failed", "job.cancelled", "job.expired", "job.waiting"]
    shown = client.get(f"/v1/webhooks/{made['id']}").json()
    assert shown == made | {"secret": None}
    assert client.get("/v1/webhooks").json()["data"] == [shown]
    assert add(client, secret=SECRET).json()["secret"] == SECRET


def test_with_keys_secrets_are_shown_as_ever_and_stored_sealed(make_api: MakeApi) -> None:
    sealer = Sealer([Fernet.generate_key().decode()])
    spec = {"instructions": "x", "webhook": {"url": URL, "secret": SECRET}}
    with make_api(sealer=sealer) as api, api.client(api.new_key()[1]) as client:
        made, again = (add(client, {"idempotency-key": "one"}).json() for _ in range(2))
        assert made == again
        assert client.post(f"/v1/webhooks/{made['id']}/rotate", json={"secret": SECRET}).json()["secret"] == SECRET
        job = client.post("/v1/jobs", json=spec).json()
        assert job["webhook"]["secret"] == SECRET
        schedule = client.post("/v1/schedules", json={"cron": "0 0 1 1 *", "job": spec}).json()
        assert schedule["job"]["webhook"]["secret"] == SECRET
        path = f"/v1/schedules/{schedule['id']}"
        assert client.patch(path, json={"job": spec}).json()["job"]["webhook"]["secret"] == SECRET
        assert client.get(path).json()["job"]["webhook"]["secret"] is None
        client.post(f"/v1/jobs/{job['id']}/cancel")
        forked = client.post(f"/v1/jobs/{job['id']}/fork", json={"step": 0}).json()
        with api.database.transaction() as tx:
            tenant = jobs.get(tx, job["id"]).tenant_id
            hooks = [webhooks.get(tx, made["id"]), *(webhooks.of_job(tx, each["id"], tenant) for each in (job, forked))]
            kept = schedules.secrets(tx, "", 100)[schedule["id"]]["secret"]
        stored = [text for hook in hooks if hook for text in (hook.secret, hook.previous_secret) if text] + [kept]
        assert [sealer.open(text) for text in stored] == [SECRET, made["secret"], SECRET, SECRET, SECRET]
        assert all(text.startswith(MARK) for text in stored)
        with make_api() as keyless, keyless.client(client.headers["authorization"].removeprefix("Bearer ")) as other:
            assert [row["secret"] for row in other.get("/v1/webhooks").json()["data"]] == [None]
            assert other.get("/v1/schedules").json()["data"][0]["id"] == schedule["id"]
            anew = other.post(f"/v1/webhooks/{made['id']}/rotate").json()
            assert anew["secret"].startswith("whsec_")  # a lost key is got over by rotating


def test_adding_can_be_repeated(client: httpx.Client) -> None:
    headers = {"idempotency-key": "k"}
    first, again = add(client, headers), add(client, headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert error(add(client, headers, description="other")) == (409, "idempotency_key_reused", "Idempotency-Key")
    assert error(client.post("/v1/jobs", json={"url": URL, "instructions": "x"}, headers=headers))[0] in {400, 409}
    assert len(client.get("/v1/webhooks").json()["data"]) == 1


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"url": "http://127.0.0.1/"}, "address_refused", "url"),
        ({"url": "http://[::ffff:10.0.0.1]/"}, "address_refused", "url"),
        ({"url": "http://169.254.169.254/latest/meta-data"}, "address_refused", "url"),
        ({"url": "file:///etc/passwd"}, "address_refused", "url"),
        ({"url": "https://user:pass@host/"}, "address_refused", "url"),
        ({"url": ""}, "invalid_request", "url"),
        ({"events": []}, "invalid_request", "events"),
        ({"events": ["job.queued"]}, "invalid_request", "events.0"),
        ({"secret": "hunter2"}, "invalid_request", "secret"),
        ({"description": "a\x00"}, "invalid_request", "description"),
        ({"other": 1}, "invalid_request", "other"),
    ],
)
def test_what_can_not_work_is_refused(client: httpx.Client, fields: dict[str, Any], code: str, param: str) -> None:
    assert error(add(client, **fields)) == (400, code, param)
    assert client.get("/v1/webhooks").json()["data"] == []


def test_changing_and_removing(client: httpx.Client) -> None:
    webhook_id = add(client).json()["id"]
    path = f"/v1/webhooks/{webhook_id}"
    changed = client.patch(path, json={"url": URL + "2", "events": ["artifact.saved"], "description": "d"}).json()
    assert (changed["url"], changed["events"], changed["description"], changed["secret"]) == (URL + "2", ["artifact.saved"], "d", None)
    assert error(client.patch(path, json={"url": "http://10.0.0.1/"})) == (400, "address_refused", "url")
    assert error(client.patch(path, json={"disabled": 1})) == (400, "invalid_request", "disabled")
    off = client.patch(path, json={"disabled": True}).json()
    assert (off["disabled"], off["disabled_reason"]) == (True, "Disabled on request.")
    assert client.patch(path, json={}).json() == off
    assert client.patch(path, json={"disabled": False}).json()["disabled"] is False
    assert client.delete(path).json() == {"id": webhook_id, "object": "webhook", "deleted": True}
    assert error(client.delete(path)) == (404, "not_found", "webhook_id")


def test_a_rotation_can_be_repeated(client: httpx.Client) -> None:
    made = add(client).json()
    path = f"/v1/webhooks/{made['id']}/rotate"
    first = client.post(path, headers={"idempotency-key": "r"}).json()
    again = client.post(path, headers={"idempotency-key": "r"}).json()
    assert first == again
    assert first["secret"] not in {made["secret"], None}
    assert first["previous_secret_until"] is not None
    assert client.post(path, json={"secret": SECRET}).json()["secret"] == SECRET
    assert error(client.post(path, json={"secret": "x"})) == (400, "invalid_request", "secret")


def test_deliveries_are_listed_and_can_be_sent_again(client: httpx.Client, api: Api) -> None:
    webhook_id = add(client).json()["id"]
    jobs = [ended_job(client) for _ in range(3)]
    path = f"/v1/webhooks/{webhook_id}/deliveries"
    page = client.get(path, params={"limit": 2}).json()
    rest = client.get(path, params={"after": page["next_cursor"]}).json()
    found = page["data"] + rest["data"]
    assert [row["job_id"] for row in found] == jobs[::-1]
    assert (rest["has_more"], found[0]["type"], found[0]["status"], found[0]["attempts"]) == (False, "job.cancelled", "pending", [])
    assert found[0]["payload"]["data"]["job_id"] == jobs[2]
    with api.database.transaction() as tx:
        claimed = deliveries.get(tx, found[0]["id"], webhook_id=webhook_id)
        entry = {"at": "2026-11-30T08:00:00+00:00", "status": 500, "error": "e", "answer": "a", "latency_s": 0.1}
        tx.connection.exec_driver_sql(f"UPDATE deliveries SET lease_until = now() WHERE id = '{claimed.id}'")
        assert deliveries.put_off(tx, claimed, 60, entry, api.server.config.app.state.services.runtime.limits)  # type: ignore[union-attr]
    (attempt,) = client.get(path).json()["data"][0]["attempts"]
    assert attempt == entry | {"number": 0, "at": "2026-11-30T08:00:00Z"}
    assert error(client.post(f"{path}/{found[0]['id']}/redeliver", json={"now": True})) == (400, "invalid_request", "now")
    again = client.post(f"{path}/{found[0]['id']}/redeliver")
    assert (again.status_code, again.json()["status"]) == (202, "pending")
    assert client.get(path, params={"status": "delivered"}).json()["data"] == []
    assert len(client.get(path, params={"status": ["pending", "delivered"]}).json()["data"]) == 3
    client.patch(f"/v1/webhooks/{webhook_id}", json={"disabled": True})
    assert error(client.post(f"{path}/{found[0]['id']}/redeliver"))[:2] == (409, "webhook_disabled")
    assert error(client.post(f"{path}/{new_id('msg')}/redeliver"))[:2] == (409, "webhook_disabled")
    client.patch(f"/v1/webhooks/{webhook_id}", json={"disabled": False})
    assert error(client.post(f"{path}/{new_id('msg')}/redeliver")) == (404, "not_found", "delivery_id")


def test_a_jobs_webhook_shows_its_secret_once_and_is_found_by_the_job(client: httpx.Client) -> None:
    headers = {"idempotency-key": "j"}
    body = {"instructions": "x", "webhook": {"url": URL}}
    made, again = client.post("/v1/jobs", json=body, headers=headers), client.post("/v1/jobs", json=body, headers=headers)
    assert made.json()["webhook"]["secret"].startswith("whsec_")
    assert again.json() == made.json()
    job_id = made.json()["id"]
    assert client.get(f"/v1/jobs/{job_id}").json()["webhook"] == made.json()["webhook"] | {"secret": None}
    assert made.json()["webhook"]["secret"] not in client.get(f"/v1/jobs/{job_id}/events").text
    (webhook,) = client.get("/v1/webhooks", params={"job_id": job_id}).json()["data"]
    assert (webhook["job_id"], webhook["url"], webhook["secret"]) == (job_id, URL, None)
    assert client.get("/v1/webhooks").json()["data"] == []
    assert client.get("/v1/webhooks", params={"job_id": new_id("job")}).json()["data"] == []
    assert error(client.get("/v1/webhooks", params={"job_id": "job_x"})) == (400, "invalid_request", "job_id")
    client.post(f"/v1/jobs/{job_id}/cancel")
    assert len(client.get(f"/v1/webhooks/{webhook['id']}/deliveries").json()["data"]) == 1
    refused = client.post("/v1/jobs", json=body | {"webhook": {"url": "http://10.0.0.1/"}})
    assert error(refused) == (400, "address_refused", "webhook.url")


def test_somebody_elses_webhook_is_none(client: httpx.Client, api: Api) -> None:
    webhook_id = add(client).json()["id"]
    with api.client(api.new_key()[1]) as stranger:
        path = f"/v1/webhooks/{webhook_id}"
        for answer in (
            stranger.get(path),
            stranger.patch(path, json={"disabled": True}),
            stranger.delete(path),
            stranger.post(path + "/rotate"),
            stranger.get(path + "/deliveries"),
            stranger.post(f"{path}/deliveries/{new_id('msg')}/redeliver"),
        ):
            assert error(answer) == (404, "not_found", "webhook_id")
    assert client.get(f"/v1/webhooks/{webhook_id}").json()["disabled"] is False


def test_a_tenant_has_only_so_many(make_api: MakeApi) -> None:
    with make_api(webhooks=2) as api, api.client(api.new_key()[1]) as client:
        assert [add(client).status_code for _ in range(2)] == [201, 201]
        assert error(add(client)) == (409, "limit_reached", None)
