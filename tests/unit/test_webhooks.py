"""Webhooks without IO: signatures, secrets, bodies, the plan of retries."""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from standardwebhooks.webhooks import Webhook as OfficialWebhook
from standardwebhooks.webhooks import WebhookVerificationError

from dualtrack.domain.events import EventType
from dualtrack.domain.job import JobSpec
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.webhook import DEFAULT_NOTICES, NoticeType, pause, secret_key
from dualtrack.webhooks import payload, signature

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_a_known_signature() -> None:
    """The vector of the specification's own libraries (their test suites)."""
    found = signature.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', [SECRET])
    assert found == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@given(st.text(st.characters(codec="utf-8")), st.lists(st.binary(min_size=24, max_size=64), min_size=1, max_size=2))
def test_the_official_library_accepts_what_is_signed_with_any_of_the_secrets(text: str, keys: list[bytes]) -> None:
    secrets = ["whsec_" + base64.b64encode(key).decode() for key in keys]
    body = json.dumps({"text": text}, ensure_ascii=False).encode()
    headers = signature.headers("msg_1", int(time.time()), body, secrets)
    for secret in secrets:
        assert OfficialWebhook(secret).verify(body, headers) == {"text": text}
    for wrong in (body + b" ", b"{}"):
        with pytest.raises(WebhookVerificationError):
            OfficialWebhook(secrets[0]).verify(wrong, headers)
    with pytest.raises(WebhookVerificationError):
        OfficialWebhook(signature.new_secret()).verify(body, headers)


def test_secrets() -> None:
    assert len(secret_key(signature.new_secret())) == 32
    assert signature.new_secret() != signature.new_secret()
    for wrong in ("", "whsec_", "whsec_abc", "whsec_" + "A" * 31, SECRET.removeprefix("whsec_"), "whsec_" + "A" * 88, "whsec_" + "-" * 32):
        with pytest.raises(ValueError, match="24 to 64 bytes"):
            secret_key(wrong)


def test_a_jobs_webhook_is_checked_where_it_is_named() -> None:
    spec = JobSpec.model_validate({"instructions": "x", "webhook": {"url": "https://host/x", "events": ["job.failed", "job.failed"]}})
    assert spec.webhook is not None
    assert spec.webhook.events == (NoticeType.JOB_FAILED,)
    for wrong in ({"url": ""}, {"url": "https://h/", "events": []}, {"url": "https://h/", "events": ["job.queued"]}, {"secret": SECRET}):
        with pytest.raises(ValidationError):
            JobSpec.model_validate({"instructions": "x", "webhook": wrong})
    with pytest.raises(ValidationError, match="24 to 64 bytes"):
        JobSpec.model_validate({"instructions": "x", "webhook": {"url": "https://h/", "secret": "hunter2"}})


def test_every_kind_of_notice_is_an_event_and_artifacts_are_told_of_only_on_request() -> None:
    assert {kind.value for kind in NoticeType} <= {kind.value for kind in EventType}
    assert set(NoticeType) - set(DEFAULT_NOTICES) == {NoticeType.ARTIFACT_SAVED}


def test_a_body_is_small_and_complete() -> None:
    job = {"id": "job_1", "status": "succeeded", "agent": "default", "metadata": {"team": "a"}, "parent_id": None}
    at = datetime(2026, 11, 30, 8, 0, 0, 250_000, tzinfo=UTC)
    data = {"steps": 3, "usage": {"cost_usd": "0"}, "answer": "x" * 100_000, "message": "m" * 5000}
    text = payload.body(NoticeType.JOB_SUCCEEDED, at, job=job, seq=9, data=data)
    assert json.loads(text) == {
        "type": "job.succeeded",
        "timestamp": "2026-11-30T08:00:00.250000Z",
        "data": {
            "job_id": "job_1",
            "seq": 9,
            "status": "succeeded",
            "agent": "default",
            "metadata": {"team": "a"},
            "parent_id": None,
            "message": "m" * 1000,
            "steps": 3,
            "usage": {"cost_usd": "0"},
        },
    }
    artifact = {"artifact_id": "art_1", "call_id": "call_1", "name": "a", "size": 1, "sha256": "f", "content_type": "text/plain"}
    text = payload.body(NoticeType.ARTIFACT_SAVED, at, job=job, seq=5, data=artifact)
    assert json.loads(text)["data"]["artifact"] == {"id": "art_1", "name": "a", "size": 1, "sha256": "f", "content_type": "text/plain"}


def test_retries_reach_over_a_day_in_a_bounded_number_of_attempts() -> None:
    limits = PlatformLimits()
    for tries in range(1, 60):
        cap = min(limits.webhook_backoff_max_s, limits.webhook_backoff_s * 3.0 ** (tries - 1))
        assert cap / 2 <= pause(tries, limits) <= cap
    for share in (0.5, 1.0):  # the shortest and the longest pauses that may come
        at, tries = 0.0, 1
        while at <= limits.webhook_retry_s:
            at += share * min(limits.webhook_backoff_max_s, limits.webhook_backoff_s * 3.0 ** (tries - 1))
            tries += 1
        assert 10 <= tries <= 25
    assert len({pause(5, limits) for _ in range(20)}) > 1


def test_a_receiver_may_ask_for_a_longer_pause_but_not_for_any() -> None:
    limits = PlatformLimits()
    assert pause(1, limits, 600) == 600
    assert pause(1, limits, 1e9) == limits.webhook_backoff_max_s
    assert pause(10, limits, 1) > 1
