"""The least that the platform's rules allow a step to do: four synchronous commits and two confirmed messages between two processes.

No platform: rows without foreign keys or indexes beyond their keys, one statement a transaction, messages as raw frames, one thread
a process that takes whatever has come. What a step of Dualtrack costs beyond this is its own; what a peer costs less, it does not do.
"""

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
from kombu import Connection

from benchmarks.peers._protocol import summary
from dualtrack.queues.port import Task
from dualtrack.queues.topology import Topology
from dualtrack.queues.wire import Address, Deliveries, Delivery, receive
from dualtrack.testing.servers.process import ServerProcess

_TOPOLOGY: Final = Topology("bare")
_TABLES: Final = """
    CREATE TABLE jobs (id text PRIMARY KEY, attempt int NOT NULL DEFAULT 0, owner int, lease_until timestamptz, due_at timestamptz,
        step int NOT NULL DEFAULT 0, wanted int NOT NULL, last_seq int NOT NULL DEFAULT 0);
    CREATE TABLE steps (job_id text, number int, thought text, PRIMARY KEY (job_id, number));
    CREATE TABLE calls (id text PRIMARY KEY, attempt int NOT NULL DEFAULT 0, owner int, lease_until timestamptz, result text);
    CREATE TABLE events (job_id text, seq int, type text, data jsonb, at timestamptz NOT NULL DEFAULT clock_timestamp(),
        PRIMARY KEY (job_id, seq))
"""
_CLAIM: Final = """
    UPDATE jobs SET attempt = attempt + 1, owner = 1, lease_until = now() + interval '30 s', due_at = now() + interval '30 s'
    WHERE id = %(job)s AND owner IS NULL
"""
_RECORD: Final = """
    WITH job AS (UPDATE jobs SET owner = NULL, lease_until = NULL, due_at = NULL, step = step + 1, last_seq = last_seq + 1
                 WHERE id = %(job)s RETURNING id, step, last_seq),
         step AS (INSERT INTO steps SELECT id, step, 'next' FROM job),
         call AS (INSERT INTO calls (id) SELECT id || '.' || step FROM job)
    INSERT INTO events SELECT id, last_seq, 'decided', '{"thought": "next"}' FROM job
"""
_BEGIN: Final = """
    WITH call AS (UPDATE calls SET attempt = attempt + 1, owner = 1, lease_until = now() + interval '30 s'
                  WHERE id = %(call)s AND owner IS NULL),
         job AS (UPDATE jobs SET last_seq = last_seq + 1 WHERE id = %(job)s RETURNING id, last_seq)
    INSERT INTO events SELECT id, last_seq, 'started', '{"attempt": 1}' FROM job
"""
_END: Final = """
    WITH call AS (UPDATE calls SET result = 'ok', owner = NULL, lease_until = NULL WHERE id = %(call)s),
         job AS (UPDATE jobs SET last_seq = last_seq + 1, due_at = now() + interval '5 s' WHERE id = %(job)s RETURNING id, last_seq)
    INSERT INTO events SELECT id, last_seq, 'finished', '{"ok": true}' FROM job
"""
_DECIDED: Final = (
    "SELECT job_id, extract(epoch FROM at)::float FROM events WHERE type = 'decided' AND job_id = ANY(%s) ORDER BY job_id, seq"
)
_LEFT: Final = "SELECT count(*) FROM jobs WHERE id = ANY(%s) AND (step < wanted OR due_at IS NULL)"
_TIMEOUT_S: Final = 300


class _Worker:
    """Planner or executor: an endless loop over whatever has come."""

    def __init__(self, task: Task, database_url: str, broker_url: str) -> None:
        self._task = task
        self._database = psycopg.connect(database_url, autocommit=True, prepare_threshold=0)
        self._came: list[Delivery] = []
        self._line = _Line(broker_url)
        self._next = Address(_TOPOLOGY.exchange.name, _TOPOLOGY.name(Task.EXECUTE if task is Task.PLAN else Task.PLAN))

    def run(self) -> None:
        consuming = _channel(self._line.url)
        consuming.basic_qos(0, 64, False)
        consuming.basic_consume(_TOPOLOGY.name(self._task))
        deliveries = Deliveries(self._task.value, self._take)
        print("ready", flush=True)
        while True:
            receive(consuming.connection, wait=True, deliveries=deliveries)
            came, self._came = self._came, []
            if came:
                self._work([json.loads(each.body) for each in came])
                consuming.basic_ack(came[-1].delivery_tag, multiple=True)

    def _take(self, delivery: Delivery) -> bool:
        self._came.append(delivery)
        return True

    def _work(self, rows: Sequence[dict[str, Any]]) -> None:
        for statement in (_CLAIM, _RECORD) if self._task is Task.PLAN else (_BEGIN, _END):
            self._commit(statement, rows)
        if self._task is Task.PLAN:
            self._line.publish(
                self._next, Task.EXECUTE, [row | {"call": f"{row['job']}.{row['step'] + 1}", "step": row["step"] + 1} for row in rows]
            )
        else:
            self._line.publish(self._next, Task.PLAN, [row for row in rows if row["step"] < row["wanted"]])

    def _commit(self, statement: str, rows: Sequence[dict[str, Any]]) -> None:
        if len(rows) == 1:
            self._database.execute(statement, rows[0])
            return
        with self._database.transaction():
            self._database.cursor().executemany(statement, rows)


class _Line:
    """Publishes with confirms."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._channel = _channel(url)
        self._channel.confirm_select()
        self._confirmed = self._published = 0
        self._channel.events["basic_ack"].add(self._confirm)

    def publish(self, address: Address, task: Task, rows: Sequence[dict[str, Any]]) -> None:
        frames = [address.message(self._channel.channel_id, json.dumps(row).encode(), {"task": task.value}, 0) for row in rows]
        self._channel.connection.transport.write(b"".join(frames))
        self._published += len(frames)
        while self._confirmed < self._published:
            receive(self._channel.connection, wait=True)

    def _confirm(self, tag: int, multiple: bool) -> None:
        self._confirmed = max(self._confirmed, tag)


def _channel(url: str) -> Any:  # noqa: ANN401 - py-amqp's, which has no types
    connection = Connection(url, heartbeat=0)
    connection.connect()
    channel: Any = connection.default_channel
    for queue in _TOPOLOGY.queues():
        queue(channel).declare()
    return channel


class Bare:
    """A `System` of two such workers."""

    def __init__(self, database_url: str, broker_url: str, folder: Path) -> None:
        self._database = psycopg.connect(database_url, autocommit=True)
        self._database.execute(_TABLES)
        self._line = _Line(broker_url)
        self._names = (f"job_{n}" for n in itertools.count())
        environment = {"PATH": os.environ.get("PATH", ""), "BENCH_DATABASE": database_url, "BENCH_BROKER": broker_url}
        self._workers = [
            ServerProcess(
                role, [sys.executable, "-m", "benchmarks._bare", role], log=folder / f"{role}.log", env=environment, cwd=Path.cwd()
            )
            for role in ("planner", "executor")
        ]

    def pids(self) -> list[int]:
        """Planner and executor."""
        return [worker.pid for worker in self._workers]

    def run(self, jobs: int, steps: int) -> dict[str, float]:
        """Submit and wait."""
        ids = list(itertools.islice(self._names, jobs))
        started = time.perf_counter()
        with self._database.transaction():
            self._database.cursor().executemany("INSERT INTO jobs (id, wanted) VALUES (%s, %s)", [(each, steps) for each in ids])
        address = Address(_TOPOLOGY.exchange.name, _TOPOLOGY.name(Task.PLAN))
        self._line.publish(address, Task.PLAN, [{"job": each, "step": 0, "wanted": steps} for each in ids])
        deadline = time.monotonic() + _TIMEOUT_S
        while self._left(ids):
            if time.monotonic() > deadline:
                sys.exit(f"the bare workers have not ended after {_TIMEOUT_S} s")
            time.sleep(0.02)
        took = time.perf_counter() - started
        times: dict[str, list[float]] = {each: [] for each in ids}
        for job_id, at in self._database.execute(_DECIDED, [ids]):
            times[job_id].append(at)
        return summary(times.values(), jobs, steps, took)

    def _left(self, ids: Sequence[str]) -> int:
        row = self._database.execute(_LEFT, [ids]).fetchone()
        return int(row[0]) if row else 0

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers:
            worker.kill()
        self._database.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["planner", "executor"])
    task = Task.PLAN if parser.parse_args().role == "planner" else Task.EXECUTE
    _Worker(task, os.environ["BENCH_DATABASE"], os.environ["BENCH_BROKER"]).run()


if __name__ == "__main__":
    main()
