"""A request repeated under its `Idempotency-Key` has its answer whatever the platform would say of it today."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

import httpx
import pytest

from dualtrack.domain.errors import AddressRefused, StorageUnavailable
from dualtrack.net import guard
from dualtrack.objects.port import ObjectInfo
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.scripted_model import ScriptedModel

from .conftest import Api, MakeApi

HOOK = "https://93.184.215.14/hook"
JOB = {"instructions": "do it", "agent": {"template": "t"}}
KEY = {"idempotency-key": "k"}
Post = Callable[[httpx.Client, dict[str, Any]], httpx.Response]


class Away(MemoryStore):
    def put(self, key: str, data: bytes | BinaryIO, *, content_type: str = "") -> ObjectInfo:
        raise StorageUnavailable("The object store is away.")


def job_of(client: httpx.Client) -> str:
    return str(client.post("/v1/jobs", json=JOB).raise_for_status().json()["id"])


def jobs(client: httpx.Client) -> Post:
    file_id = client.post("/v1/files", files={"file": ("in.txt", b"in")}).raise_for_status().json()["id"]
    body = JOB | {"inputs": [{"file_id": file_id}], "webhook": {"url": HOOK, "events": ["job.succeeded"]}}
    return lambda by, more: by.post("/v1/jobs", json=body | more, headers=KEY)


def fork(client: httpx.Client) -> Post:
    path = f"/v1/jobs/{job_of(client)}/fork"
    return lambda by, more: by.post(path, json={"step": 0} | more, headers=KEY)


def retry(client: httpx.Client) -> Post:
    job_id = job_of(client)
    client.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
    return lambda by, more: by.post(f"/v1/jobs/{job_id}/retry", json=more, headers=KEY)


def messages(client: httpx.Client) -> Post:
    path = f"/v1/jobs/{job_of(client)}/messages"
    return lambda by, more: by.post(path, json={"content": "more", **more}, headers=KEY)


def schedules(_: httpx.Client) -> Post:
    body = {"cron": "0 3 * * *", "job": JOB | {"webhook": {"url": HOOK, "events": ["job.succeeded"]}}}
    return lambda by, more: by.post("/v1/schedules", json=body | more, headers=KEY)


def runs(client: httpx.Client) -> Post:
    schedule = client.post("/v1/schedules", json={"cron": "0 3 * * *", "job": JOB}).raise_for_status().json()
    return lambda by, _: by.post(f"/v1/schedules/{schedule['id']}/run", headers=KEY)


def webhooks(_: httpx.Client) -> Post:
    return lambda by, more: by.post("/v1/webhooks", json={"url": HOOK} | more, headers=KEY)


def files(_: httpx.Client) -> Post:
    return lambda by, more: by.post("/v1/files", files={"file": ("a.txt", str(more or "a").encode())}, headers=KEY)


@pytest.mark.parametrize(
    ("resource", "other"),
    [
        (jobs, {"priority": 1}),
        (jobs, {"inputs": [{"file_id": "file_01k9zq7f6e4r8s3t5v7w9x1y2z"}]}),
        (jobs, {"limits": {"steps": "many"}}),
        (fork, {"step": 7}),
        (retry, {"message": "other"}),
        (messages, {"content": "other"}),
        (schedules, {"name": "other"}),
        (schedules, {"cron": "never"}),
        (runs, {}),
        (webhooks, {"description": "other"}),
        (files, {"other": "content"}),
    ],
)
def test_what_was_accepted_once_is_not_refused_when_it_is_asked_for_again(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch, resource: Callable[[httpx.Client], Post], other: dict[str, Any]
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AddressRefused("Not allowed any more.", param="url")

    with make_api(templates=frozenset({"t"})) as before:
        _, key = before.new_key()
        with before.client(key) as client:
            post = resource(client)
            first = post(client, {})
            assert first.status_code == 201, first.text
    monkeypatch.setattr(guard, "check", refused)
    less = {"instructions_chars": 1, "upload_bytes": 1, "message_chars": 1, "job_inputs": 1}
    today = make_api(templates=frozenset({"other"}), gateway=ScriptedModel(tracks=("other",)), store=Away(), **less)
    with today as after, after.client(key) as client:
        again = post(client, {})
        assert again.status_code == 200, again.text
        assert same(again) == same(first)
        if other:
            wrong = post(client, other)
            assert (wrong.status_code, wrong.json()["error"]["code"]) == (409, "idempotency_key_reused"), wrong.text


def same(answer: httpx.Response) -> Any:
    body = answer.json()
    return body.get("id") or body.get("job_id") or body["number"]


def test_a_job_asked_for_again_that_nobody_has_begun_is_rung_for(api: Api, client: httpx.Client) -> None:
    first, again = (client.post("/v1/jobs", json={"instructions": "do it"}, headers=KEY).json() for _ in range(2))
    assert first["id"] == again["id"]
    assert api.doorbell.planned.count(first["id"]) == 2
