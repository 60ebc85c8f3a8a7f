"""The API as it is served: a real server on a free port, a real PostgreSQL, a scripted model, objects in memory."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from dualtrack.db import events, migrate, tenants
from dualtrack.db.engine import Database
from dualtrack.domain.errors import BrokerUnavailable
from dualtrack.domain.limits import PlatformLimits
from dualtrack.engine.runtime import Runtime
from dualtrack.models.port import ModelGateway
from dualtrack.objects.port import ObjectStore
from dualtrack.queues.port import Ring, Task
from dualtrack.settings import DatabaseSettings, RouterSettings
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.servers import Postgres
from dualtrack.tools.registry import Registry
from dualtrack.webhooks.sealing import Sealer
from router.app import create_app
from router.server import ApiServer
from router.services import RouterServices


@dataclass
class RecordingDoorbell:
    """Remembers who was rung for; fails while `down`."""

    planned: list[str] = field(default_factory=list)
    down: bool = False

    def ring(self, rings: Sequence[Ring]) -> None:
        self.check()
        self.planned.extend(ring.row_id for ring in rings if ring.task is Task.PLAN)

    def backlog(self, task: Task) -> int:
        self.check()
        return 0

    def check(self) -> None:
        if self.down:
            raise BrokerUnavailable("RabbitMQ can't be reached; check DUALTRACK_BROKER__URL.")


@dataclass
class Api:
    """A served API and what is behind it."""

    url: str
    server: ApiServer
    database: Database
    doorbell: RecordingDoorbell
    store: ObjectStore
    thread: threading.Thread

    def new_key(self, tenant: str | None = None) -> tuple[str, str]:
        """A tenant (a new one unless named) and a key of it."""
        with self.database.transaction() as tx:
            tenant_id = tenants.ensure_tenant(tx, tenant or f"tenant-{uuid.uuid4()}")
            return tenant_id, tenants.create_key(tx, tenant_id, "test")

    @contextlib.contextmanager
    def client(self, key: str | None) -> Iterator[httpx.Client]:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=self.url, headers=headers, timeout=60) as client:
            yield client


MakeApi = Callable[..., contextlib.AbstractContextManager[Api]]


@contextlib.contextmanager
def serve(
    database: Database,
    store: ObjectStore,
    gateway: ModelGateway,
    limits: PlatformLimits,
    templates: frozenset[str] | None = None,
    sealer: Sealer | None = None,
) -> Iterator[Api]:
    doorbell = RecordingDoorbell()
    runtime = Runtime(database, doorbell, store, Registry(), limits, templates=templates, sealer=sealer or Sealer())
    services = RouterServices(runtime, gateway, RouterSettings(port=0))
    server = ApiServer(create_app(services), services.settings)
    thread = threading.Thread(target=server.run, name="api")
    thread.start()
    try:
        yield Api(server.url, server, database, doorbell, store, thread)
    finally:
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def router_database(postgres: Postgres) -> Iterator[Database]:
    """One migrated database for all; tests keep apart by their tenants."""
    url = postgres.create_database()
    database = Database(DatabaseSettings(url=SecretStr(url)), application="test-router")
    migrate.upgrade(database)
    yield database
    database.close()
    postgres.drop_database(url)


@pytest.fixture
def make_api(router_database: Database) -> MakeApi:
    """Serve an API with other parts than the usual ones, for the time of a block."""

    def make(
        *,
        database: Database | None = None,
        store: ObjectStore | None = None,
        gateway: ModelGateway | None = None,
        templates: frozenset[str] | None = None,
        sealer: Sealer | None = None,
        **limits: Any,
    ) -> contextlib.AbstractContextManager[Api]:
        ceilings = PlatformLimits(**limits)
        return serve(database or router_database, store or MemoryStore(), gateway or ScriptedModel(), ceilings, templates, sealer)

    return make


@pytest.fixture(scope="session")
def api(router_database: Database) -> Iterator[Api]:
    """The usual API."""
    with serve(router_database, MemoryStore(), ScriptedModel(), PlatformLimits(stream_poll_s=0.02)) as served:
        yield served


@pytest.fixture
def key(api: Api) -> str:
    """A key of a tenant that only this test uses."""
    return api.new_key()[1]


@pytest.fixture
def client(api: Api, key: str) -> Iterator[httpx.Client]:
    """A client with that key."""
    with api.client(key) as client:
        yield client


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many jobs each look for new events asks, from now on."""
    asked: list[int] = []
    heads = events.heads

    def counting(tx: Any, ids: Any) -> Any:
        asked.append(len(ids))
        return heads(tx, ids)

    monkeypatch.setattr(events, "heads", counting)
    return asked


def new_job(client: httpx.Client) -> str:
    """The id of a job that nobody works on."""
    made: str = client.post("/v1/jobs", json={"instructions": "x"}).json()["id"]
    return made
