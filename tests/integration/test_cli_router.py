"""The command against the real router over HTTP, with a real PostgreSQL behind it; the test plays planner and executor."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import func
from typer.testing import CliRunner, Result

from cli.client import Client
from cli.credentials import Credentials
from cli.follow import Follower
from cli.main import app
from cli.outcome import Exit
from cli.session import Session
from dualtrack.db import events, jobs, migrate, steps, tenants
from dualtrack.db.engine import Database
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.ids import new_id
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.usage import Usage
from dualtrack.engine.ending import end_job
from dualtrack.engine.runtime import Runtime
from dualtrack.queues.port import Ring, Task
from dualtrack.settings import DatabaseSettings, RouterSettings
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.servers.process import free_ports
from dualtrack.testing.waiting import wait_until
from dualtrack.tools.registry import Registry
from router.app import create_app
from router.server import ApiServer
from router.services import RouterServices

_DEADLINE_S = 60


class _SilentDoorbell:
    def ring(self, rings: Sequence[Ring]) -> None: ...

    def backlog(self, task: Task) -> int:
        return 0

    def check(self) -> None: ...


class _Serving:
    """The router in a thread, which can be stopped and started again at the same address."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        (self.port,) = free_ports(1)  # nobody else has it while the router is away
        self.start()

    def start(self) -> None:
        settings = RouterSettings(port=self.port)
        self._server = ApiServer(create_app(RouterServices(self._runtime, ScriptedModel(), settings)), settings)
        self.url = self._server.url
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(_DEADLINE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def runtime(database_url: str) -> Iterator[Runtime]:
    database = Database(DatabaseSettings(url=SecretStr(database_url)))
    migrate.upgrade(database)
    yield Runtime(database, _SilentDoorbell(), MemoryStore(), Registry(), PlatformLimits(stream_poll_s=0.05))
    database.close()


@pytest.fixture
def serving(runtime: Runtime) -> Iterator[_Serving]:
    found = _Serving(runtime)
    yield found
    found.stop()


@pytest.fixture
def key(runtime: Runtime) -> str:
    with runtime.database.transaction() as tx:
        return tenants.create_key(tx, tenants.ensure_tenant(tx), "test")


Run = Callable[..., Result]


@pytest.fixture
def run(serving: _Serving, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    stored = tmp_path / ".dualtrack" / "credentials.json"
    stored.parent.mkdir()
    with os.fdopen(os.open(stored, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        json.dump({"base_url": serving.url, "api_key": key}, file)

    def invoke(*arguments: str) -> Result:
        result = CliRunner().invoke(app, list(arguments), obj=Session(environ={"HOME": str(tmp_path / "home")}))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


def _happens(runtime: Runtime, job_id: str, *new: tuple[EventType, dict[str, object]]) -> None:
    with runtime.database.transaction() as tx:
        events.append(tx, job_id, *(NewEvent(kind, data) for kind, data in new))


def _succeeds(runtime: Runtime, job_id: str, report: bytes) -> str:
    """One step with one call that saved an artifact, then the end; the artifact's id."""
    call_id, artifact_id = new_id("call"), new_id("art")
    runtime.store.put("blobs/report", report)
    with runtime.database.transaction() as tx:
        job = jobs.get(tx, job_id, lock=True)
        jobs.start(tx, job_id)
        steps.add(
            tx, job_id=job_id, number=1, thought="Save it", reflection="", note="", model="scripted", usage=Usage(10, 5), latency_s=0.1
        )
        call = {
            "id": call_id,
            "job_id": job_id,
            "tenant_id": job.tenant_id,
            "step": 1,
            "position": 0,
            "tool": "shell",
            "effect": "workspace",
        }
        steps.add_calls(
            tx,
            [
                {
                    **call,
                    "arguments": {"command": "ls"},
                    "status": "succeeded",
                    "ok": True,
                    "preview": "orders.csv",
                    "finished_at": func.now(),
                }
            ],
        )
        digest = hashlib.sha256(report).hexdigest()
        artifact = {
            "id": artifact_id,
            "job_id": job_id,
            "tenant_id": job.tenant_id,
            "call_id": call_id,
            "name": "report.md",
            "path": "report.md",
        }
        steps.add_artifact(
            tx, {**artifact, "size": len(report), "sha256": digest, "blob_key": "blobs/report", "content_type": "text/markdown"}
        )
        saved = {"artifact_id": artifact_id, "call_id": call_id, "name": "report.md", "size": len(report), "sha256": digest}
        events.append(tx, job_id, NewEvent(EventType.ARTIFACT_SAVED, saved))
        end_job(tx, job_id, JobStatus.SUCCEEDED, answer="All done.")
    return artifact_id


def test_a_job_from_submission_to_artifact(run: Run, runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("id,total\n1,2\n")
    result = run(
        "jobs", "submit", "Summarise", "--file", "orders.csv:data/orders.csv", "--metadata", "team=x", "--check", "true", "--max-steps", "7"
    )
    assert result.exit_code == 0, result.stderr
    job_id = result.stdout.strip()
    shown = json.loads(run("jobs", "show", job_id, "--json").stdout)
    assert (shown["status"], shown["limits"]["steps"], shown["inputs"][0]["path"]) == ("queued", 7, "data/orders.csv")
    assert "orders.csv\t13 B" in run("files", "list").stdout

    artifact_id = _succeeds(runtime, job_id, b"# Report\n")
    watched = run("jobs", "watch", job_id)
    assert (watched.exit_code, watched.stdout) == (0, "All done.\n")
    assert f"report.md (9 B)  dualtrack artifacts get {artifact_id}" in watched.stderr
    lines = [json.loads(line) for line in run("jobs", "watch", job_id, "--json").stdout.splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[-1]["type"] == "job.succeeded"
    assert run("jobs", "watch", job_id, "--after", str(len(lines))).exit_code == 0

    assert "answer        All done.\n" in run("jobs", "show", job_id).stdout
    assert run("jobs", "steps", job_id).stdout.splitlines()[:2] == ["step 1  scripted", "  thought: Save it"]
    call_id = json.loads(run("jobs", "steps", job_id, "--json").stdout)["data"][0]["calls"][0]["id"]
    assert run("jobs", "observation", job_id, call_id).stdout == "orders.csv\n"
    assert f"{artifact_id}\treport.md\t9 B\ttext/markdown" in run("artifacts", "list", job_id).stdout
    assert run("artifacts", "get", artifact_id).stdout == "report.md\n"
    assert (tmp_path / "report.md").read_bytes() == b"# Report\n"


def test_lists_models_and_cancel(run: Run) -> None:
    ids = [run("jobs", "submit", f"Job {n}").stdout.strip() for n in range(3)]
    assert run("jobs", "cancel", ids[0]).stdout == "cancelled\n"
    assert run("jobs", "watch", ids[0]).exit_code == Exit.CANCELLED
    listed = json.loads(run("jobs", "list", "--json", "--limit", "2").stdout)
    assert ([job["id"] for job in listed["data"]], listed["has_more"]) == ([ids[2], ids[1]], True)
    assert len(json.loads(run("jobs", "list", "--all", "--json").stdout)["data"]) == 3
    only = json.loads(run("jobs", "list", "--status", "cancelled", "--json").stdout)
    assert [job["id"] for job in only["data"]] == [ids[0]]
    assert run("models").stdout.splitlines()[1] == "fast\ttrack\tscripted"


def test_chat(run: Run) -> None:
    streamed = run("chat", "Say hello")
    assert (streamed.exit_code, streamed.stderr) == (0, "")
    assert json.loads(run("chat", "Say hello", "--json").stdout)["choices"][0]["message"]["content"] == streamed.stdout.removesuffix("\n")


def test_same_idempotency_key_same_job(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1")
    once = ("jobs", "submit", "Once", "--idempotency-key", "k1", "--file", "a.csv")
    first = run(*once)
    assert first.exit_code == 0, first.stderr
    assert run(*once).stdout == first.stdout
    assert len(json.loads(run("files", "list", "--json").stdout)["data"]) == 1
    (tmp_path / "a.csv").write_text("2")
    other = run(*once)
    assert other.exit_code == Exit.API_ERROR
    assert "idempotency_key_reused" in other.stderr
    assert len(json.loads(run("jobs", "list", "--json").stdout)["data"]) == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["jobs", "show", "job_0"], "not_found"),
        (["jobs", "submit", "x", "--model", "none"], "model_not_found"),
        (["jobs", "submit", "x", "--tool", "none"], "tool_not_found"),
        (["chat", "x", "--model", "none"], "model_not_found"),
        (["models", "--api-key", "dt_wrong"], "invalid_api_key"),
    ],
)
def test_the_apis_errors_come_through(run: Run, arguments: list[str], code: str) -> None:
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stdout) == (Exit.API_ERROR, "")
    assert json.loads(result.stderr)["error"]["code"] == code


def test_following_survives_a_restart_of_the_router(serving: _Serving, runtime: Runtime, key: str, run: Run) -> None:
    job_id = run("jobs", "submit", "Long").stdout.strip()
    found: list[int] = []
    breaks: list[str] = []

    def follow() -> None:
        with Client(Credentials(serving.url, key), version="0") as client:
            follower = Follower(client, job_id, on_break=lambda reason, _: breaks.append(reason))
            found.extend(event["seq"] for event in _noting(follower, seen))

    seen: list[int] = []
    thread = threading.Thread(target=follow)
    thread.start()
    _happens(runtime, job_id, (EventType.JOB_STARTED, {}))
    wait_until(lambda: seen[-1:] == [2], "the first events")
    serving.stop()
    _happens(runtime, job_id, (EventType.CHECKS_STARTED, {"step": 1, "checks": []}))
    wait_until(lambda: breaks, "the break is noticed")
    serving.start()
    wait_until(lambda: seen[-1:] == [3], "what happened meanwhile")
    with runtime.database.transaction() as tx:
        jobs.get(tx, job_id, lock=True)
        end_job(tx, job_id, JobStatus.CANCELLED)
    thread.join(_DEADLINE_S)
    assert found == [1, 2, 3, 4]


def _noting(follower: Follower, seen: list[int]) -> Iterator[dict[str, int]]:
    for event in follower:
        seen.append(event["seq"])
        yield event
