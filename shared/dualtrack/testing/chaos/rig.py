"""The stack that is broken on purpose: two of every service over real servers, which are reached through proxies where that breaks them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from pydantic import SecretStr
from sqlalchemy import func, select, update

from dualtrack.db.hook_tables import schedules
from dualtrack.db.tables import events
from dualtrack.doctor.check import Severity
from dualtrack.doctor.examination import examine
from dualtrack.doctor.objects import examine_objects
from dualtrack.faults import Rule
from dualtrack.objects.s3 import S3Store
from dualtrack.settings import S3Settings
from dualtrack.testing.chaos.clients import Clients
from dualtrack.testing.chaos.jobs import PlannedJob
from dualtrack.testing.servers import Postgres, S3Server, open_rabbitmq
from dualtrack.testing.servers.process import ServerFailed, ServerProcess, free_ports
from dualtrack.testing.stack import Stack
from dualtrack.testing.tcp_proxy import TcpProxy
from dualtrack.testing.witness import Effect, read

WORKERS: Final = ("planner", "planner-2", "executor", "executor-2")
NAMES: Final = ("router", "router-2", *WORKERS, "scheduler", "scheduler-2")
CLOCK_S: Final = 600
_POLL_S: Final = 0.02
_NO_DISK: Final = 10**15
"""Bytes that no disk has free."""
_SETTLE_S: Final = 8.0
"""RabbitMQ 3.10 writes a new quorum queue's membership down some seconds late; killed before, it loses the queue for good."""


@dataclass(frozen=True, slots=True)
class ProxiedS3:
    """An S3 server behind a proxy, as `Stack` wants it."""

    endpoint_url: str
    access_key_id: str
    secret_access_key: str


class Rig:
    """Everything a row of the matrix needs. Not thread-safe.

    Attributes:
        stack, postgres, rabbitmq, s3: what runs.
        database_proxy, s3_proxy: what the services reach the two servers through.
        witness_url: of the witness.
    """

    def __init__(self) -> None:
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def _start(self) -> None:
        enter = self._exit.enter_context
        self.postgres, self.rabbitmq, self.s3 = enter(Postgres()), enter(open_rabbitmq()), enter(S3Server())
        began = time.monotonic()
        self.database_proxy = enter(TcpProxy(self.postgres.port))
        self.s3_proxy = enter(TcpProxy(int(urlsplit(self.s3.endpoint_url).port or 0)))
        self.broker_url = self.rabbitmq.new_vhost()
        database = self.postgres.create_database()
        s3 = ProxiedS3(f"http://127.0.0.1:{self.s3_proxy.port}", self.s3.access_key_id, self.s3.secret_access_key)
        self._exit.callback(lambda: shutil.rmtree(self._folder, ignore_errors=True))
        self._folder = Path(tempfile.mkdtemp(prefix="dualtrack-witness-"))
        self._log = self._folder / "calls.jsonl"
        self.witness_url = self._start_witness()
        place = json.dumps([urlsplit(self.witness_url).netloc])
        proxied = database.replace(f":{self.postgres.port}/", f":{self.database_proxy.port}/")
        environment = {"DUALTRACK_TOOLS__HTTP_HOSTS": place, "DUALTRACK_NET__ALLOW": place, "DUALTRACK_DATABASE__URL": proxied}
        self.stack = Stack(database_url=database, broker_url=self.broker_url, s3=s3, environment=environment, breakable=True)
        self._exit.callback(self.stack.close)
        (port,) = free_ports(1)
        self._ports = {"router-2": {"DUALTRACK_ROUTER__PORT": str(port)}}
        self.base_urls = (self.stack.base_url, f"http://127.0.0.1:{port}")
        self.stack.start_model()
        for name in NAMES:
            self.start(name)
        self.wait_ready()
        time.sleep(max(0.0, _SETTLE_S - (time.monotonic() - began)))

    def start(self, name: str, **environment: str) -> None:
        """Start a process of the service that the name begins with."""
        self.stack.start(name.split("-", maxsplit=1)[0], name=name, environment=self._ports.get(name, {}) | environment)

    def replace(self, name: str, **environment: str) -> None:
        """Kill what is left of a process and start another one in its place, as an orchestrator does; returns at once."""
        self.stack.arm(name)
        self.stack.kill(name)
        self.start(name, **environment)

    def revive(self) -> None:
        """Start again what has ended by itself (a worker that found no database at its start), as an orchestrator does."""
        for name in NAMES:
            if not self.stack.process(name).running():
                self.replace(name)

    def wait_ready(self) -> None:
        """Return once all processes serve or consume."""
        self.stack.wait_ready()

    def arm(self, names: tuple[str, ...], *rules: Rule) -> None:
        """Arm these processes; without rules, disarm them."""
        for name in names:
            self.stack.arm(name, *rules)

    def clients(self, plans: list[PlannedJob], *, deadline_s: float, at_once: int) -> Clients:
        """Clients for these jobs, not started."""
        return Clients(self.base_urls, self.stack.api_key, plans, deadline_s=deadline_s, at_once=at_once)

    def effects(self) -> list[Effect]:
        """What the witness heard so far."""
        return read(self._log)

    def doctor(self, *, objects: bool) -> list[str]:
        """What `dualtrack doctor` says of all jobs so far, a sentence for each broken promise; of the object store as well on request."""
        found = list(examine(self.stack.database))
        if objects:
            store = S3Store(
                S3Settings(
                    endpoint_url=self.s3.endpoint_url,
                    bucket=self.stack.bucket,
                    access_key_id=SecretStr(self.s3.access_key_id),
                    secret_access_key=SecretStr(self.s3.secret_access_key),
                )
            )
            with contextlib.closing(store):
                found += examine_objects(self.stack.database, store)
        broken = [finding for finding in found if not finding.holds and finding.severity is Severity.VIOLATION]
        return [f"doctor: {finding.name}: {finding.count} offenders, first {finding.first[0]}" for finding in broken]

    def schedule(self) -> str:
        """Make a schedule that is due once now, and then not before long; its id."""
        body = {"name": "chaos", "cron": "0 0 1 1 *", "job": {"instructions": "Say hello."}}
        with self.stack.client() as client:
            made = client.post("/v1/schedules", json=body).raise_for_status().json()
        with self.stack.database.transaction() as tx:  # nobody waits for the new year
            tx.connection.execute(update(schedules).where(schedules.c.id == made["id"]).values(next_at=func.now()))
        return str(made["id"])

    def scheduled(self, schedule_id: str) -> list[str]:
        """The jobs that a schedule has submitted."""
        of_it = events.c.data["schedule"]["id"].as_string() == schedule_id
        with self.stack.database.transaction() as tx:
            return list(tx.connection.execute(select(events.c.job_id).where(of_it)).scalars())

    def disk_alarm(self, *, on: bool) -> None:
        """Make RabbitMQ believe that its disk is full: it takes no message any more."""
        self.rabbitmq.control("set_disk_free_limit", str(_NO_DISK) if on else "100MB")

    @contextlib.contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """A process that stands still (`SIGSTOP`) for the time of the block."""
        pid = self.stack.process(name).pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def thaw(self, name: str) -> None:
        """Let a process go on that stopped itself at a fault point."""
        os.kill(self.stack.process(name).pid, signal.SIGCONT)

    def broker_connections(self) -> int:
        """How many connections the broker shows."""
        return len(self.rabbitmq.api("GET", "connections"))

    def cut_broker(self) -> int:
        """Close every connection to the broker from its side; how many."""
        connections = self.rabbitmq.api("GET", "connections")
        for connection in connections:
            with contextlib.suppress(ServerFailed):  # it has gone meanwhile
                self.rabbitmq.api("DELETE", f"connections/{_quoted(connection['name'])}")
        return len(connections)

    def _start_witness(self) -> str:
        output = self._folder / "output"
        argv = [sys.executable, "-m", "dualtrack.testing.witness", "--log", str(self._log)]
        process = ServerProcess("witness", argv, log=output, env=os.environ, cwd=self._folder)
        self._exit.callback(process.kill)
        process.wait_until(lambda: b"\n" in output.read_bytes(), timeout_s=30)
        return str(json.loads(output.read_text().splitlines()[0])["url"])


def wait_for(done: Callable[[], Any], timeout_s: float) -> bool:
    """Poll until it is true; whether it became so in time."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def wrong_clock() -> dict[str, str]:
    """The environment of a process whose clock is 10 minutes fast (libfaketime, from the package of that name)."""
    spec = importlib.util.find_spec("libfaketime")
    library = next((path for path in Path(spec.origin).parent.rglob("libfaketime.so.1")), None) if spec and spec.origin else None
    if library is None:
        raise ServerFailed("The clock of a process can't be changed here: install the package libfaketime (uv sync does, on Linux).")
    return {"LD_PRELOAD": str(library), "FAKETIME": f"+{CLOCK_S}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")
