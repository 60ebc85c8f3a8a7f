"""Workers as processes, on a broker that the tests may restart."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from dualtrack.health import END_AFTER_S
from dualtrack.queues.port import Task, ring_for
from dualtrack.queues.publisher import Publisher
from dualtrack.queues.topology import HOME_WAIT_MS
from dualtrack.settings import BrokerSettings
from dualtrack.testing.servers.process import ServerFailed, ServerProcess
from dualtrack.testing.servers.rabbitmq import RabbitMQ, rabbitmq_script

CONSUMER_TIMEOUT_S = 3
_PROGRAM = Path(__file__).with_name("worker_program.py")
_DEADLINE_S = 90.0


@pytest.fixture(scope="module")
def own_rabbitmq() -> Iterator[RabbitMQ]:
    """A broker of this module's own, which closes the channel of whoever holds a delivery for `CONSUMER_TIMEOUT_S` seconds."""
    if rabbitmq_script() is None:
        pytest.skip("needs an installed RabbitMQ: its settings are changed")
    settings = {"consumer_timeout": CONSUMER_TIMEOUT_S * 1000, "channel_tick_interval": 1000, "collect_statistics_interval": 1000}
    with RabbitMQ(settings=settings) as server:
        yield server


class Workers:
    """Worker processes of one task on one virtual host, and what they did."""

    def __init__(self, rabbitmq: RabbitMQ, url: str, folder: Path, task: Task) -> None:
        self.rabbitmq = rabbitmq
        self.folder = folder
        self.task = task
        self.settings = BrokerSettings(url=SecretStr(url), management_url=f"http://127.0.0.1:{rabbitmq.http_port}")
        self.publisher = Publisher(self.settings)
        self.processes: dict[str, ServerProcess] = {}
        self._file = folder / "done"
        self._file.touch()

    def start(
        self, name: str = "worker", *, threads: int = 2, end_after_s: float = END_AFTER_S, home_wait_ms: int = HOME_WAIT_MS
    ) -> ServerProcess:
        env = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self.folder),
            "DUALTRACK_BROKER__URL": self.settings.url.get_secret_value(),
            "DUALTRACK_BROKER__MANAGEMENT_URL": str(self.settings.management_url),
            "DUALTRACK_WORKERS__HEALTH_FILE": str(self.folder / f"{name}.health"),
        }
        process = ServerProcess(
            name,
            [sys.executable, str(_PROGRAM), str(self._file), self.task.value, str(threads), str(end_after_s), str(home_wait_ms)],
            log=self.folder / f"{name}.log",
            env=env,
            cwd=self.folder,
        )
        self.processes[name] = process
        return process

    def ring(self, *row_ids: str) -> None:
        for row_id in row_ids:
            self.publisher.ring([ring_for(self.task, row_id)])

    def lines(self) -> list[str]:
        return self._file.read_text().splitlines()

    def count(self, what: str) -> int:
        """How many lines begin with this."""
        return sum(line.startswith(what) for line in self.lines())

    def healthy_since(self, name: str, moment: float) -> bool:
        """Whether the worker's health file was touched after `moment` (seconds since the epoch)."""
        try:
            return (self.folder / f"{name}.health").stat().st_mtime > moment
        except FileNotFoundError:
            return False

    def wait_said(self, name: str, words: str) -> None:
        """Return once a worker's log has these words."""
        self.wait(lambda: words in self.processes[name].log.read_text(errors="replace"), f"{name} says: {words}")

    def wait(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not done():
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {name}\n{process.log_tail()}" for name, process in self.processes.items())
                raise ServerFailed(f"not within {_DEADLINE_S:.0f} s: {what}\n{self.lines()}\n{logs}")
            time.sleep(0.05)

    def wait_healthy(self, name: str = "worker") -> None:
        now = time.time()
        self.wait(lambda: self.healthy_since(name, now), f"{name} is healthy")

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.publisher.close()


@pytest.fixture(params=[Task.EXECUTE, Task.PLAN], ids=["executor", "planner"])
def workers(own_rabbitmq: RabbitMQ, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workers]:
    url = own_rabbitmq.new_vhost()
    opened = Workers(own_rabbitmq, url, tmp_path, request.param)
    yield opened
    opened.close()
    own_rabbitmq.delete_vhost(url)
