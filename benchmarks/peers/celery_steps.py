"""Celery as it comes: prefork, classic queues, messages acknowledged before the work is done, publishing unconfirmed. It loses jobs."""

import argparse
import os
import subprocess
import sys
import time
import uuid

from celery import Celery

from benchmarks.peers import _rows
from benchmarks.peers._protocol import serve, summary

_URL = os.environ.get("BENCH_DATABASE", "")
app = Celery("bench-steps", broker=os.environ.get("BENCH_BROKER", ""))


@app.task(name="decide")
def decide(job: str, step: int, steps: int) -> None:
    _rows.write(_URL, job, step, "decision")
    observe.delay(job, step, steps)


@app.task(name="observe")
def observe(job: str, step: int, steps: int) -> None:
    _rows.write(_URL, job, step, "observation")
    if step + 1 < steps:
        decide.delay(job, step + 1, steps)


def run(jobs: int, steps: int) -> dict[str, float]:
    names = [f"job-{uuid.uuid4()}" for _ in range(jobs)]
    started = time.perf_counter()
    for name in names:
        decide.delay(name, 0, steps)
    query = "SELECT count(*) FROM bench_rows WHERE job = ANY(%s) AND step = %s AND kind = 'observation'"
    deadline = time.monotonic() + 60
    while True:
        row = _rows.connection(_URL).execute(query, (names, steps - 1)).fetchone()
        if row is not None and row[0] == jobs:
            break
        if time.monotonic() > deadline:
            sys.exit(f"{jobs} jobs have not ended after 60 s")
        time.sleep(0.02)
    took = time.perf_counter() - started
    return summary(_rows.decisions(_URL, names).values(), jobs, steps, took)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    _rows.connection(_URL).execute(_rows.CREATE)
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.peers.celery_steps:app", "worker", "--loglevel=WARNING"]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    try:
        serve(run)
    finally:
        worker.terminate()
        worker.wait(timeout=30)


if __name__ == "__main__":
    main()
