"""The engine over a real PostgreSQL and the real sandbox, run ring by ring; and short names for scripted steps."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from dualtrack.db import jobs, migrate
from dualtrack.db.engine import Database
from dualtrack.doctor import examination
from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.events import END_EVENTS
from dualtrack.domain.forking import Changes
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.limits import PlatformLimits, SandboxLimits
from dualtrack.domain.policy import PolicyRule
from dualtrack.egress.gateway import EgressGateway
from dualtrack.engine import ending, forks, steering
from dualtrack.models.port import ModelGateway
from dualtrack.objects.workdirs import Workdirs
from dualtrack.sandbox.factory import open_sandboxes
from dualtrack.sandbox.port import Command, Outcome
from dualtrack.sandbox.sessions import EndReason, PythonCell, Session, SessionRequest, Sessions, Sink
from dualtrack.settings import DatabaseSettings, SandboxSettings
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.payments import Pay
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper
from dualtrack.tools.registry import Registry

Make = Callable[..., Stepper]


class CountingSandbox:
    """Real sandbox sessions, which remember what they ran and can be told to fail."""

    def __init__(self, inner: Sessions) -> None:
        self.inner = inner
        self.ran: list[Command | PythonCell] = []
        self.claimed: list[CountedSession] = []
        self.failures = 0
        self.before: Callable[[], None] | None = None

    def claim(self, request: SessionRequest) -> Session:
        session = CountedSession(self, self.inner.claim(request), request)
        self.claimed.append(session)
        return session

    def close(self) -> None:
        for session in self.claimed:
            session.close()

    def note(self, what: Command | PythonCell) -> None:
        self.ran.append(what)
        if self.before is not None:
            self.before()
        if self.failures:
            self.failures -= 1
            raise SandboxFailed("the test says so")


class CountedSession:
    """A session whose commands are noted first."""

    def __init__(self, sandbox: CountingSandbox, inner: Session, request: SessionRequest) -> None:
        self.request = request
        self.id = inner.id
        self.start = inner.start
        self.workspace = inner.workspace
        self.inner = inner
        self._sandbox = sandbox

    @property
    def ended(self) -> EndReason | None:
        return self.inner.ended

    def run(self, command: Command, limits: SandboxLimits, cancel: threading.Event, sink: Sink | None = None) -> Outcome:
        self._sandbox.note(command)
        return self.inner.run(command, limits, cancel, sink)

    def python(self, cell: PythonCell, limits: SandboxLimits, cancel: threading.Event, sink: Sink | None = None) -> Outcome:
        self._sandbox.note(cell)
        return self.inner.python(cell, limits, cancel, sink)

    def overrun(self) -> str:
        return self.inner.overrun()

    def quiet(self) -> AbstractContextManager[None]:
        return self.inner.quiet()

    def adopt(self, directory: Path, cancel: threading.Event | None = None) -> None:
        self.inner.adopt(directory, cancel)

    def pull(self, cancel: threading.Event | None = None) -> None:
        self.inner.pull(cancel)

    def close(self, reason: EndReason = EndReason.DONE, *, keep: Path | None = None) -> None:
        self.inner.close(reason, keep=keep)


@pytest.fixture(scope="session")
def template_database(postgres: Any) -> str:
    url: str = postgres.create_database()
    database = Database(DatabaseSettings(url=SecretStr(url)))
    migrate.upgrade(database)
    database.close()
    return url


@pytest.fixture
def database(postgres: Any, template_database: str) -> Iterator[Database]:
    url = postgres.create_database(template=template_database)
    opened = Database(DatabaseSettings(url=SecretStr(url)))
    yield opened
    opened.close()
    postgres.drop_database(url)


@pytest.fixture
def healthy(database: Database) -> Iterator[None]:
    """Whatever a test did, the promises hold."""
    yield
    assert [(finding.name, finding.first) for finding in examination.examine(database) if not finding.holds] == []


@pytest.fixture(scope="package")
def sessions() -> Iterator[Sessions]:
    """One pool for all tests of the engine: sandboxes are started while others are at work. It ends with them, for others count theirs."""
    with tempfile.TemporaryDirectory(prefix="dualtrack-test-", dir="/var/tmp") as directory:
        Path(directory).chmod(0o711)
        with open_sandboxes(SandboxSettings(workspaces=Path(directory) / "workspaces"), PlatformLimits().sandbox) as opened:
            yield opened.pool


@pytest.fixture
def sandbox(sessions: Sessions) -> Iterator[CountingSandbox]:
    counting = CountingSandbox(sessions)
    yield counting
    counting.close()


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory that the sandbox's unprivileged user can reach (pytest's `tmp_path` is closed to others)."""
    with tempfile.TemporaryDirectory(prefix="dualtrack-test-", dir="/var/tmp") as directory:
        Path(directory).chmod(0o711)
        yield Path(directory) / "workspaces"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def make(database: Database, store: MemoryStore, sandbox: CountingSandbox, scratch: Path) -> Iterator[Make]:
    stack = []

    def build(
        gateway: ModelGateway | list[dict[str, Any]],
        registry: Registry | None = None,
        policies: Sequence[PolicyRule] = (),
        ways_out: EgressGateway | None = None,
        **limits: Any,
    ) -> Stepper:
        model = ScriptedModel(gateway) if isinstance(gateway, list) else gateway
        workdirs = Workdirs(SandboxSettings(workspaces=scratch))
        workdirs.__enter__()
        ceilings = PlatformLimits(**{"heartbeat_s": 0.1} | limits)
        stepper = Stepper(database, store, model, sandbox, workdirs, ceilings, registry, policies, ways_out)
        present = stepper.present()
        present.__enter__()
        stack.append((workdirs, present))
        return stepper

    yield build
    for workdirs, present in stack:
        present.__exit__(None, None, None)
        workdirs.__exit__(None, None, None)


@pytest.fixture
def pay() -> Pay:
    return Pay()


def python(code: str) -> dict[str, Any]:
    return {"tool": "execute_python", "arguments": {"code": code}, "thought": "compute"}


def shell(command: str) -> dict[str, Any]:
    return {"tool": "shell", "arguments": {"command": command}}


def finish(answer: str = "done", **more: Any) -> dict[str, Any]:
    return {"tool": "finish", "arguments": {"answer": answer, **more}}


def types(stepper: Stepper, job: Job) -> list[str]:
    found = stepper.events(job)
    assert [event.seq for event in found] == list(range(1, len(found) + 1))
    assert sum(event.type in END_EVENTS for event in found) <= 1
    return [event.type.value for event in found]


def cancel(stepper: Stepper, job: Job) -> bool:
    with stepper.runtime.database.transaction() as tx:
        return ending.request_stop(tx, jobs.get(tx, job.id, lock=True), JobStatus.CANCELLED, by="test")


def fork(stepper: Stepper, job: Job, step: int, **changes: Any) -> Job:
    """A job that goes on from that step of another one."""
    return forks.fork(
        stepper.runtime,
        tenant_id=job.tenant_id,
        job_id=job.id,
        step=step,
        changes=Changes.model_validate(changes),
        known_models=["deep", "fast"],
    )[0]


def retry(stepper: Stepper, job: Job, **changes: Any) -> Job:
    """A job that tries another one again, from where that makes sense."""
    return forks.retry(
        stepper.runtime, tenant_id=job.tenant_id, job_id=job.id, changes=Changes.model_validate(changes), known_models=["deep", "fast"]
    )[0]


def write(stepper: Stepper, job: Job, content: str) -> None:
    """Something is said to a job."""
    with stepper.runtime.database.transaction() as tx:
        steering.write(tx, stepper.runtime, jobs.get(tx, job.id, lock=True), content, by="key")
