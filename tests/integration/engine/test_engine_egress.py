"""Jobs whose sandboxes have a network: what their agents are told, what goes through, what is written down."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from dualtrack.domain.errors import InvalidRequest
from dualtrack.domain.events import EventType
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.limits import EgressLimits
from dualtrack.egress.gateway import EgressGateway
from dualtrack.settings import EgressSettings, SandboxSettings
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper
from dualtrack.testing.website import Website

from .conftest import Make, cancel, finish, shell

VALUE = "the-real-value-of-the-secret"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Website]:
    real = socket.getaddrinfo

    def answer(host: str, port: int, *more: Any, **options: Any) -> Any:
        return real("127.0.0.1" if host.endswith(".test") else host, port, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    with Website() as server:
        yield server


@pytest.fixture
def ways_out(site: Website, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EgressGateway]:
    monkeypatch.setenv("VALUE_OF_API", VALUE)
    secret = {"value_env": "VALUE_OF_API", "variable": "API_TOKEN", "hosts": [f"api.example.test:{site.port}"], "plain_http": True}
    values = {"allow": [f"*.example.test:{site.port}"], "private": ["127.0.0.0/8"], "secrets": {"api": secret}}
    settings = EgressSettings.model_validate(values)
    with EgressGateway(settings, SandboxSettings(workspaces=scratch), EgressLimits(events=3)) as gateway:
        yield gateway


def agent(site: Website, *names: str) -> dict[str, Any]:
    return {"network": {"allow": [f"{name}.example.test:{site.port}" for name in names]}}


def requests(stepper: Stepper, job: Job) -> list[dict[str, Any]]:
    return [dict(event.data) for event in stepper.events(job) if event.type is EventType.EGRESS_REQUEST]


def previews(stepper: Stepper, job: Job) -> list[str]:
    return [call.preview for step in stepper.steps(job) for call in step.calls if call.tool != "finish"]


def test_a_job_goes_out_and_every_request_is_an_event(make: Make, site: Website, ways_out: EgressGateway, store: MemoryStore) -> None:
    url = f"http://api.example.test:{site.port}/echo"
    model = ScriptedModel(
        [
            shell(f'curl -sS -H "Authorization: Bearer $API_TOKEN" {url}?q=private; env > all.txt; curl -sS http://evil.example.org/'),
            shell(f"curl -sS {url}"),
            finish(),
        ]
    )
    stepper = make(model, ways_out=ways_out)
    job = stepper.run(stepper.submit(agent=agent(site, "api") | {"secrets": [{"name": "api"}]}))
    assert job.status is JobStatus.SUCCEEDED
    assert [visit.headers.get("authorization") for visit in site.visits] == [f"Bearer {VALUE}", None]
    first, refused, second = requests(stepper, job)
    call = stepper.steps(job)[0].calls[0]
    about = {"call_id": call.id, "step": 1, "tool": "shell", "port": site.port, "requests": 1}
    assert first == about | {
        "host": "api.example.test", "method": "GET", "decision": "allowed", "reason": None, "status": 200, "secrets": ["api"],
        "bytes_up": first["bytes_up"], "bytes_down": first["bytes_down"],
    }  # fmt: skip
    assert min(first["bytes_up"], first["bytes_down"]) > 50
    assert (refused["host"], refused["decision"], refused["reason"]) == ("evil.example.org", "refused", "not_allowed")
    assert (second["call_id"], second["secrets"]) == (stepper.steps(job)[1].calls[0].id, [])
    order = [event.type for event in stepper.events(job)]
    assert order.index(EventType.EGRESS_REQUEST) < order.index(EventType.CALL_FINISHED)
    # The value is in nothing that is kept, and nothing that the model was given.
    kept = json.dumps([event.data for event in stepper.events(job)], default=str) + str(model.requests) + str(store.__dict__)
    with stepper.runtime.database.transaction() as tx:
        kept += str(tx.connection.execute(text("select * from calls")).all()) + str(tx.connection.execute(text("select * from jobs")).all())
    assert VALUE not in kept
    assert "private" not in json.dumps(requests(stepper, job))
    assert (
        f"no others, by HTTP and HTTPS through the proxy that its environment names: api.example.test:{site.port}"
        in model.requests[0].system
    )
    assert "dualtrack-secret-api-" in previews(stepper, job)[0]


def test_without_asking_there_is_no_network(make: Make, site: Website, ways_out: EgressGateway) -> None:
    stepper = make(
        [shell(f"env | grep -ic proxy; curl -sS --max-time 3 http://api.example.test:{site.port}/"), finish()], ways_out=ways_out
    )
    job = stepper.run(stepper.submit())
    assert previews(stepper, job)[0].startswith("0")
    assert (site.visits, requests(stepper, job)) == ([], [])


def test_more_than_the_operator_allows_is_refused_by_field(make: Make, site: Website, ways_out: EgressGateway) -> None:
    stepper = make([finish()], ways_out=ways_out)
    with pytest.raises(InvalidRequest, match="lies beyond what the operator allows") as refused:
        stepper.submit(agent={"network": {"allow": [f"api.example.test:{site.port}", "pypi.org"]}})
    assert refused.value.param == "agent.network.allow.1"
    with pytest.raises(InvalidRequest, match="no secret 'github'"):
        stepper.submit(agent=agent(site, "api") | {"secrets": [{"name": "github"}]})


def test_many_requests_of_a_call_are_added_up(make: Make, site: Website, ways_out: EgressGateway) -> None:
    line = f"for n in $(seq 8); do curl -sS http://api.example.test:{site.port}/; done"
    stepper = make([shell(line), finish()], ways_out=ways_out)
    job = stepper.run(stepper.submit(agent=agent(site, "api")))
    assert [event["requests"] for event in requests(stepper, job)] == [1, 1, 1, 5]


def test_a_cancelled_calls_requests_are_told_too(make: Make, site: Website, ways_out: EgressGateway) -> None:
    stepper = make([shell(f"curl -sS http://api.example.test:{site.port}/; sleep 300")], ways_out=ways_out)
    job = stepper.submit(agent=agent(site, "api"))

    def stop() -> None:
        deadline = time.monotonic() + 60
        while not site.visits and time.monotonic() < deadline:
            time.sleep(0.01)
        cancel(stepper, job)

    stopper = threading.Thread(target=stop)
    stepper.ring()
    stopper.start()
    stepper.ring()
    stopper.join()
    assert stepper.job(job).status is JobStatus.CANCELLED
    assert [event["host"] for event in requests(stepper, job)] == ["api.example.test"]


def test_the_way_out_goes_with_the_session(make: Make, site: Website, ways_out: EgressGateway, scratch: Path) -> None:
    stepper = make([shell("ls /run/egress"), finish()], ways_out=ways_out)
    stepper.run(stepper.submit(agent=agent(site, "api")))
    assert list(scratch.glob("*/egress-*"))
    stepper.executor._work._places.sweep()  # the job has ended
    assert list(scratch.glob("*/egress-*")) == []
