"""Webhooks from the event to the receiver: written with the event, claimed, sent, retried, never lost, under one id."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import func, text, update
from standardwebhooks.webhooks import Webhook as OfficialWebhook
from standardwebhooks.webhooks import WebhookVerificationError

from dualtrack.db import deliveries, events, jobs, tenants, webhooks
from dualtrack.db.hook_tables import deliveries as deliveries_table
from dualtrack.domain.conflicts import DeliveryUnderWay
from dualtrack.domain.errors import AddressRefused
from dualtrack.domain.ids import new_id
from dualtrack.domain.job import Job, JobSpec
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.webhook import Delivery, DeliveryStatus, NoticeType, Webhook
from dualtrack.engine import deliveries as engine_deliveries
from dualtrack.engine import intake
from dualtrack.engine.deliveries import Deliverer
from dualtrack.engine.ending import end_job
from dualtrack.engine.runtime import Runtime
from dualtrack.net.addresses import AllowList
from dualtrack.testing.receiver import Received, Receiver
from dualtrack.testing.stepper import Stepper
from dualtrack.webhooks.resealing import reseal
from dualtrack.webhooks.sealing import Sealer
from dualtrack.webhooks.signature import new_secret

from .conftest import Make, cancel, finish, python

ENDS = (NoticeType.JOB_SUCCEEDED, NoticeType.JOB_CANCELLED)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as found:
        yield found


class Hooks:
    """A stepper whose deliveries may reach the receiver."""

    def __init__(self, stepper: Stepper, receiver: Receiver) -> None:
        self.stepper = stepper
        self.runtime: Runtime = replace(stepper.runtime, allow=receiver.allow)
        self.receiver = receiver
        self.deliverer = Deliverer(self.runtime)
        self.tenant = stepper.tenant_id

    def endpoint(self, url: str | None = None, kinds: tuple[NoticeType, ...] = ENDS, *, tenant: str | None = None) -> Webhook:
        webhook_id = new_id("wh")
        with self.runtime.database.transaction() as tx:
            to = url or self.receiver.url
            webhooks.add(tx, webhook_id=webhook_id, tenant_id=tenant or self.tenant, url=to, events=kinds, secret=new_secret())
            return webhooks.get(tx, webhook_id)

    def webhook(self, webhook: Webhook) -> Webhook:
        with self.runtime.database.transaction() as tx:
            return webhooks.get(tx, webhook.id)

    def log(self, webhook: Webhook) -> list[Delivery]:
        """Oldest first."""
        with self.runtime.database.transaction() as tx:
            return deliveries.page(tx, webhook.id, limit=1000)[::-1]

    def ended(self, **spec: Any) -> Job:
        """A job that has ended at once."""
        job = intake.submit(self.runtime, tenant_id=self.tenant, spec=JobSpec.model_validate({"instructions": "x", **spec}))[0]
        cancel(self.stepper, job)
        return job

    def send_all(self) -> int:
        count = 0
        while self.deliverer.send_next():
            count += 1
        return count

    def time_passes(self, seconds: float) -> None:
        """All deliveries are older by that, and due where nobody sends them."""
        passed = func.make_interval(0, 0, 0, 0, 0, 0, seconds)
        with self.runtime.database.transaction() as tx:
            table = deliveries_table
            tx.connection.execute(update(table).values(since=table.c.since - passed, lease_until=table.c.lease_until - passed))
            tx.connection.execute(update(table).where(table.c.due_at.is_not(None)).values(due_at=table.c.due_at - passed))


@pytest.fixture
def hooks(make: Make, receiver: Receiver) -> Iterator[Hooks]:
    found = Hooks(make([finish()]), receiver)
    yield found
    found.deliverer.close()


def verified(received: Received, webhook: Webhook) -> dict[str, Any]:
    """The body, checked by the specification's own library."""
    document: dict[str, Any] = OfficialWebhook(webhook.secret).verify(received.body, received.headers)
    return document


def test_the_end_of_a_job_reaches_the_endpoint_signed(hooks: Hooks) -> None:
    webhook = hooks.endpoint()
    job = hooks.stepper.run(hooks.stepper.submit(metadata={"team": "a"}))
    assert hooks.send_all() == 1
    (received,) = hooks.receiver.requests
    document = verified(received, webhook)
    assert (document["type"], document["data"]["job_id"], document["data"]["status"]) == ("job.succeeded", job.id, "succeeded")
    assert document["data"]["metadata"] == {"team": "a"}
    last = hooks.stepper.events(job)[-1]
    assert document["data"]["seq"] == last.seq
    assert document["timestamp"] == last.at.isoformat().replace("+00:00", "Z")
    (delivery,) = hooks.log(webhook)
    assert (delivery.status, delivery.id, delivery.due_at) == (DeliveryStatus.DELIVERED, received.headers["webhook-id"], None)
    assert [(entry["number"], entry["status"], entry["answer"], entry["error"]) for entry in delivery.log] == [(1, 200, "thanks", None)]
    assert hooks.send_all() == 0


def test_only_what_is_listened_to_is_told_and_only_to_the_tenant(hooks: Hooks) -> None:
    with hooks.runtime.database.transaction() as tx:
        stranger = tenants.ensure_tenant(tx, "stranger")
    others = hooks.endpoint(tenant=stranger)
    failures = hooks.endpoint(kinds=(NoticeType.JOB_FAILED,))
    off = hooks.endpoint()
    with hooks.runtime.database.transaction() as tx:
        webhooks.disable(tx, off.id, "test")
    both = [hooks.endpoint(), hooks.endpoint()]
    hooks.ended()
    assert [len(hooks.log(webhook)) for webhook in (others, failures, off, *both)] == [0, 0, 0, 1, 1]
    assert len({delivery.id for webhook in both for delivery in hooks.log(webhook)}) == 2


def test_a_jobs_own_webhook_hears_of_that_job_only_and_its_secret_is_nowhere_to_be_seen(make: Make, receiver: Receiver) -> None:
    hooks = Hooks(make([python("open('a.txt', 'w').write('x')"), finish()]), receiver)
    secret = new_secret()
    spec = {"url": receiver.url, "secret": secret, "events": ["job.succeeded", "artifact.saved"]}
    runtime, stepper = hooks.runtime, hooks.stepper
    work = JobSpec.model_validate({"instructions": "x", "outputs": ["a.txt"], "webhook": spec})
    job = intake.submit(runtime, tenant_id=hooks.tenant, spec=work)[0]
    hooks.ended()
    assert job.spec.webhook is not None
    assert job.spec.webhook.secret is None
    stepper.run(job)
    assert secret not in json.dumps([dict(event.data) for event in stepper.events(job)])
    hooks.send_all()
    with runtime.database.transaction() as tx:
        webhook = webhooks.of_job(tx, job.id, hooks.tenant)
    assert webhook is not None
    assert webhook.secret == secret
    told = [verified(received, webhook) for received in receiver.requests]
    assert {document["data"]["job_id"] for document in told} == {job.id}
    assert [document["type"] for document in told][-1] == "job.succeeded"
    assert {document["data"]["artifact"]["name"] for document in told[:-1]} == {"a.txt"}
    hooks.deliverer.close()


def test_a_delivery_is_written_with_its_event_or_not_at_all(hooks: Hooks) -> None:
    webhook = hooks.endpoint()
    job = hooks.stepper.submit()
    with pytest.raises(ZeroDivisionError), hooks.runtime.database.transaction() as tx:
        jobs.get(tx, job.id, lock=True)
        end_job(tx, job.id, JobStatus.CANCELLED)
        assert deliveries.due(tx, 10) == 1
        1 / 0  # noqa: B018
    assert hooks.log(webhook) == []
    with hooks.runtime.database.transaction() as tx:
        assert events.heads(tx, [job.id]) == {job.id: (1, False, False)}


def test_failures_are_retried_under_the_same_id_with_a_new_timestamp(hooks: Hooks) -> None:
    webhook = hooks.endpoint()
    answers = iter([(500, b"x" * 5000, {}), (302, b"", {"Location": "http://127.0.0.1/"}), (200, b"ok", {})])
    hooks.receiver.answer = lambda _: next(answers)
    hooks.ended()
    for count in (1, 2):
        assert hooks.send_all() == 1
        (delivery,) = hooks.log(webhook)
        assert (delivery.status, len(delivery.log)) == (DeliveryStatus.PENDING, count)
        assert hooks.send_all() == 0  # not before its time
        hooks.time_passes(60)
    assert hooks.send_all() == 1
    (delivery,) = hooks.log(webhook)
    assert [(entry["status"], len(entry["answer"])) for entry in delivery.log] == [(500, 1000), (302, 0), (200, 2)]
    assert delivery.log[0]["error"] == "The endpoint answered with status 500."
    assert {received.headers["webhook-id"] for received in hooks.receiver.requests} == {delivery.id}
    assert len({received.body for received in hooks.receiver.requests}) == 1
    for received in hooks.receiver.requests:
        verified(received, webhook)


def test_after_a_day_it_gives_up_and_can_be_sent_again(hooks: Hooks) -> None:
    webhook = hooks.endpoint()
    hooks.receiver.answer = lambda _: (503, b"", {"Retry-After": "120"})
    hooks.ended()
    hooks.send_all()
    hooks.time_passes(100)
    assert hooks.send_all() == 0  # the receiver asked for 120 s
    attempts = 0
    while (delivery := hooks.log(webhook)[0]).status is DeliveryStatus.PENDING:
        hooks.time_passes(4 * 3600)
        attempts += hooks.send_all()
    assert (delivery.status, delivery.due_at) == (DeliveryStatus.FAILED, None)
    assert 5 <= attempts <= 7
    hooks.receiver.answer = lambda _: (204, b"", {})
    with hooks.runtime.database.transaction() as tx:
        deliveries.redeliver(tx, delivery.id)
    hooks.send_all()
    again = hooks.log(webhook)[0]
    assert (again.id, again.status, again.tries, len(again.log)) == (delivery.id, DeliveryStatus.DELIVERED, 1, attempts + 2)


def test_an_answer_that_is_no_http_counts_as_a_failed_attempt_whatever_it_holds(hooks: Hooks) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                asked = b""
                while not asked.endswith(b"}"):  # what is left unread would reset the connection
                    asked += peer.recv(65536)
                peer.sendall(b"\x00\xff\x1b lol\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        allow = AllowList.parse([f"127.0.0.1:{port}"])
        deliverer = Deliverer(replace(hooks.runtime, allow=allow))
        webhook = hooks.endpoint(f"http://127.0.0.1:{port}/")
        hooks.ended()
        assert deliverer.send_next()
        deliverer.close()
        thread.join(60)
    (delivery,) = hooks.log(webhook)
    assert (delivery.status, len(delivery.log)) == (DeliveryStatus.PENDING, 1)
    assert delivery.log[0]["error"].startswith(f"127.0.0.1:{port} gave no answer that can be used: \ufffd")


@pytest.mark.parametrize("wanted", ["9" * 400, "Wed, 21 Oct 2099 07:28:00 GMT"])
def test_a_receiver_may_ask_for_a_pause_in_any_form_but_gets_four_hours_at_most(hooks: Hooks, wanted: str) -> None:
    hooks.receiver.answer = lambda _: (503, b"", {"Retry-After": wanted})
    webhook = hooks.endpoint()
    hooks.ended()
    assert hooks.send_all() == 1
    hooks.time_passes(4 * 3600 - 60)
    assert hooks.send_all() == 0
    hooks.time_passes(120)
    assert hooks.send_all() == 1
    assert len(hooks.log(webhook)[0].log) == 2


@pytest.mark.parametrize("wanted", ["-5", "soon", "", "Wed, 21 Oct 1999 07:28:00 GMT", "Wed, 99 Foo 2099 07:28:00 -0000"])
def test_a_pause_that_means_nothing_is_our_own(hooks: Hooks, wanted: str) -> None:
    hooks.receiver.answer = lambda _: (503, b"", {"Retry-After": wanted})
    webhook = hooks.endpoint()
    hooks.ended()
    assert hooks.send_all() == 1
    hooks.time_passes(60)
    assert hooks.send_all() == 1
    assert len(hooks.log(webhook)[0].log) == 2


def test_410_disables_the_endpoint_and_ends_what_waits(hooks: Hooks) -> None:
    webhook = hooks.endpoint()
    hooks.receiver.answer = lambda _: (410, b"", {})
    hooks.ended()
    hooks.ended()
    hooks.send_all()
    assert len(hooks.receiver.requests) == 1
    gone = hooks.webhook(webhook)
    assert (gone.disabled_at is not None, gone.disabled_reason) == (True, "It answered 410 (gone).")
    assert [delivery.status for delivery in hooks.log(webhook)] == [DeliveryStatus.FAILED] * 2
    assert "disabled" in hooks.log(webhook)[1].log[0]["error"]
    hooks.ended()
    assert len(hooks.log(webhook)) == 2


def test_private_addresses_are_refused_when_registered_and_at_each_delivery(hooks: Hooks) -> None:
    work = JobSpec.model_validate({"instructions": "x", "webhook": {"url": "http://169.254.169.254/latest"}})
    with pytest.raises(AddressRefused) as refused:
        intake.submit(hooks.runtime, tenant_id=hooks.tenant, spec=work)
    assert refused.value.param == "webhook.url"
    webhook = hooks.endpoint()
    hooks.ended()
    strict = Deliverer(replace(hooks.runtime, allow=AllowList()))
    assert strict.send_next()
    strict.close()
    assert hooks.receiver.requests == []
    (delivery,) = hooks.log(webhook)
    assert (delivery.status, delivery.log[0]["status"]) == (DeliveryStatus.PENDING, None)
    assert "not on the public internet" in delivery.log[0]["error"]


def test_both_secrets_sign_for_a_while_after_a_rotation(hooks: Hooks) -> None:
    old = hooks.endpoint()
    with hooks.runtime.database.transaction() as tx:
        webhooks.rotate(tx, old, new_secret(), 3600)
    new = hooks.webhook(old)
    hooks.ended()
    hooks.send_all()
    verified(hooks.receiver.requests[0], old)
    verified(hooks.receiver.requests[0], new)
    with hooks.runtime.database.transaction() as tx:
        webhooks.change(tx, old.id, {"previous_until": func.now() - text("interval '1 second'")})
    hooks.ended()
    hooks.send_all()
    assert hooks.receiver.requests[1].headers["webhook-signature"].count("v1,") == 1


def test_sealed_secrets_sign_and_lie_nowhere_in_clear(hooks: Hooks) -> None:
    old_key, key = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    plain = hooks.endpoint()  # from before there were keys
    hooks.runtime = replace(hooks.runtime, sealer=Sealer([old_key]))
    secret = new_secret()
    hooks.ended(webhook={"url": hooks.receiver.url, "secret": secret, "events": ["job.cancelled"]})
    hooks.deliverer = Deliverer(hooks.runtime)
    assert hooks.send_all() == 2
    signed_by = {text for text in (plain.secret, secret) for received in hooks.receiver.requests if _signs(received, text)}
    assert signed_by == {plain.secret, secret}

    sealer = Sealer([key, old_key])
    first, again = reseal(hooks.runtime.database, sealer), reseal(hooks.runtime.database, sealer)
    assert (first.sealed, first.current, first.unreadable) == (2, 0, [])
    assert (again.sealed, again.current, again.unreadable) == (0, 2, [])
    assert Sealer([key]).open(hooks.webhook(plain).secret) == plain.secret
    blind = Deliverer(replace(hooks.runtime, sealer=Sealer()))
    hooks.ended()
    assert blind.send_next()
    blind.close()
    (_, delivery) = hooks.log(plain)
    assert (delivery.status, len(hooks.receiver.requests)) == (DeliveryStatus.PENDING, 2)  # nothing was sent unsigned
    assert "DUALTRACK_WEBHOOKS__SECRET_KEYS" in delivery.log[0]["error"]
    lost = reseal(hooks.runtime.database, Sealer([Fernet.generate_key().decode()]))
    assert (lost.sealed, len(lost.unreadable)) == (0, 2)


def test_an_old_secret_that_no_key_opens_keeps_nothing_from_being_sent(hooks: Hooks, caplog: pytest.LogCaptureFixture) -> None:
    old = hooks.endpoint()
    unknown, key = Sealer([Fernet.generate_key().decode()]), Sealer([Fernet.generate_key().decode()])
    secret = new_secret()
    with hooks.runtime.database.transaction() as tx:
        webhooks.rotate(tx, replace(old, secret=unknown.seal(old.secret)), key.seal(secret), 3600)
    hooks.ended()
    deliverer = Deliverer(replace(hooks.runtime, sealer=key))
    assert deliverer.send_next()
    deliverer.close()
    assert [delivery.status for delivery in hooks.log(old)] == [DeliveryStatus.DELIVERED]
    assert verified(hooks.receiver.requests[0], replace(old, secret=secret))
    assert hooks.receiver.requests[0].headers["webhook-signature"].count("v1,") == 1
    assert f"webhook {old.id}: signed with its new secret only" in caplog.text


def _signs(received: Received, secret: str) -> bool:
    try:
        OfficialWebhook(secret).verify(received.body, received.headers)
    except WebhookVerificationError:
        return False
    return True


def test_a_sender_that_died_between_sending_and_recording_is_taken_over_and_refused_later(hooks: Hooks) -> None:
    """At least once: the receiver gets it again under the same id; the dead one's record, should it still come, is dropped."""
    webhook = hooks.endpoint()
    hooks.ended()
    with hooks.runtime.database.transaction() as tx:
        dead = deliveries.claim(tx, hooks.runtime.limits)
    assert dead is not None
    assert hooks.send_all() == 0
    with pytest.raises(DeliveryUnderWay), hooks.runtime.database.transaction() as tx:
        deliveries.redeliver(tx, dead.id)
    hooks.time_passes(60)
    assert hooks.send_all() == 1
    entry = {"at": "2026-11-30T08:00:00+00:00", "status": 500, "error": "late", "answer": "", "latency_s": 1}
    with hooks.runtime.database.transaction() as tx:
        assert not deliveries.put_off(tx, dead, 1, entry, hooks.runtime.limits)
        assert not deliveries.finish(tx, dead, DeliveryStatus.FAILED, entry)
    (delivery,) = hooks.log(webhook)
    assert (delivery.status, delivery.attempt, delivery.log[0]["number"]) == (DeliveryStatus.DELIVERED, 2, 2)


def test_two_schedulers_at_once_send_each_delivery_once(hooks: Hooks) -> None:
    webhook = hooks.endpoint()
    for _ in range(20):
        hooks.ended()
    second = Deliverer(hooks.runtime)
    deadline = time.monotonic() + 60
    while any(delivery.status is DeliveryStatus.PENDING for delivery in hooks.log(webhook)):
        hooks.deliverer.start_due()
        second.start_due()
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    second.close()
    ids = [received.headers["webhook-id"] for received in hooks.receiver.requests]
    assert len(ids) == len(set(ids)) == 20


@contextmanager
def stuck(receiver: Receiver, path: str) -> Iterator[list[str]]:
    """Requests to that path get no answer until the block ends; who is waiting."""
    waiting: list[str] = []
    free = threading.Event()

    def answer(request: Received) -> tuple[int, bytes, dict[str, str]]:
        if request.path == path:
            waiting.append(request.headers["webhook-id"])
            free.wait(200)
        return 200, b"", {}

    receiver.answer = answer
    try:
        yield waiting
    finally:
        free.set()


def test_a_slow_endpoint_has_its_share_and_holds_up_neither_the_others_nor_the_tick(hooks: Hooks) -> None:
    slow = hooks.endpoint(f"http://127.0.0.1:{hooks.receiver.port}/slow")
    fast = hooks.endpoint()
    with stuck(hooks.receiver, "/slow") as waiting:
        for _ in range(12):
            hooks.ended()
        deadline = time.monotonic() + 90
        while any(delivery.status is DeliveryStatus.PENDING for delivery in hooks.log(fast)):
            started = time.monotonic()
            hooks.deliverer.start_due()
            assert time.monotonic() - started < 60
            assert time.monotonic() < deadline
            threading.Event().wait(0.02)
        assert {delivery.status for delivery in hooks.log(slow)} == {DeliveryStatus.PENDING}
        assert 1 <= len(waiting) <= hooks.runtime.limits.webhook_in_flight_each


def test_the_scheduler_sends_what_is_due(make: Make, receiver: Receiver) -> None:
    stepper = make([finish()])
    hooks = Hooks(stepper, receiver)
    stepper.scheduler.deliverer = hooks.deliverer  # type: ignore[misc] # one that may reach the receiver
    webhook = hooks.endpoint()
    hooks.ended()
    assert stepper.scheduler.tick() >= 1
    hooks.deliverer.close()
    assert [delivery.status for delivery in hooks.log(webhook)] == [DeliveryStatus.DELIVERED]


def test_an_endpoint_that_is_removed_takes_its_deliveries_along(hooks: Hooks) -> None:
    webhook = hooks.endpoint()
    hooks.ended()
    with hooks.runtime.database.transaction() as tx:
        webhooks.remove(tx, webhook.id)
    assert hooks.send_all() == 0
    hooks.ended()
    assert hooks.log(webhook) == []


def test_a_fault_of_ours_is_an_attempt_that_failed(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    webhook = hooks.endpoint()
    hooks.ended()

    def fails(*_: object, **__: object) -> None:
        raise KeyError("nobody foresaw this")

    with monkeypatch.context() as patched:
        patched.setattr(engine_deliveries, "send", fails)
        assert hooks.deliverer.send_next()
    (delivery,) = hooks.log(webhook)
    assert (delivery.status, len(delivery.log)) == (DeliveryStatus.PENDING, 1)
    assert "KeyError" in delivery.log[0]["error"]
