"""The engine over a real PostgreSQL and the real sandbox, run ring by ring; and short names for scripted steps."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from dualtrack.db import migrate
from dualtrack.db.engine import Database
from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.events import END_EVENTS
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.policy import PolicyRule
from dualtrack.engine import ending
from dualtrack.models.port import ModelGateway
from dualtrack.objects.workdirs import Workdirs
from dualtrack.sandbox.factory import open_sandbox
from dualtrack.sandbox.port import Command, Outcome, Sandbox
from dualtrack.settings import DatabaseSettings, SandboxSettings
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper
from dualtrack.tools.registry import Registry

Make = Callable[..., Stepper]


class CountingSandbox:
    """The real sandbox, which remembers what it ran and can be told to fail."""

    name = "counting"

    def __init__(self, inner: Sandbox) -> None:
        self.inner = inner
        self.ran: list[Command] = []
        self.failures = 0
        self.before: Callable[[], None] | None = None

    def check(self) -> None:
        self.inner.check()

    def run(self, command: Command, workspace: Path, limits: Any, cancel: threading.Event) -> Outcome:
        self.ran.append(command)
        if self.before is not None:
            self.before()
        if self.failures:
            self.failures -= 1
            raise SandboxFailed("the test says so")
        return self.inner.run(command, workspace, limits, cancel)


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
def sandbox() -> CountingSandbox:
    return CountingSandbox(open_sandbox(SandboxSettings(), PlatformLimits().sandbox))


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
        **limits: Any,
    ) -> Stepper:
        model = ScriptedModel(gateway) if isinstance(gateway, list) else gateway
        workdirs = Workdirs(SandboxSettings(workspaces=scratch))
        workdirs.__enter__()
        stepper = Stepper(database, store, model, sandbox, workdirs, PlatformLimits(**{"heartbeat_s": 0.1} | limits), registry, policies)
        present = stepper.present()
        present.__enter__()
        stack.append((workdirs, present))
        return stepper

    yield build
    for workdirs, present in stack:
        present.__exit__(None, None, None)
        workdirs.__exit__(None, None, None)


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
        from dualtrack.db import jobs

        return ending.request_stop(tx, jobs.get(tx, job.id, lock=True), JobStatus.CANCELLED, by="test")
