"""The application's own rows, one a decision and one an observation, each committed by itself: what a peer without an event log writes."""

import threading

import psycopg

_local = threading.local()

CREATE = """CREATE TABLE IF NOT EXISTS bench_rows (
    job text NOT NULL, step int NOT NULL, kind text NOT NULL, data jsonb NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job, step, kind))"""
DECISION = '{"thought": "next", "calls": [{"tool": "list_files", "arguments": {}}]}'
OBSERVATION = '{"ok": true, "observation": "ok"}'


def connection(url: str) -> psycopg.Connection:
    """This thread's connection, in autocommit: the cheapest durable insert there is from Python."""
    opened: psycopg.Connection | None = getattr(_local, "connection", None)
    if opened is None:
        opened = _local.connection = psycopg.connect(url, autocommit=True)
    return opened


def write(url: str, job: str, step: int, kind: str) -> None:
    """Insert and commit."""
    data = DECISION if kind == "decision" else OBSERVATION
    connection(url).execute("INSERT INTO bench_rows (job, step, kind, data) VALUES (%s, %s, %s, %s)", (job, step, kind, data))


def decisions(url: str, jobs: list[str]) -> dict[str, list[float]]:
    """Per job: when its decisions were written."""
    found: dict[str, list[float]] = {job: [] for job in jobs}
    query = "SELECT job, extract(epoch FROM at)::float FROM bench_rows WHERE kind = 'decision' AND job = ANY(%s) ORDER BY job, step"
    for job, at in connection(url).execute(query, (jobs,)):
        found[job].append(at)
    return found
