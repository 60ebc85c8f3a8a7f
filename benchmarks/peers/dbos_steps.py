"""DBOS in process: a workflow a job, two durable steps a step, each of which writes our row as well. No queue, so no hop."""

import argparse
import os
import time
import uuid

from dbos import DBOS

from benchmarks.peers import _rows
from benchmarks.peers._protocol import serve, summary

_URL = os.environ.get("BENCH_DATABASE", "")


@DBOS.step()
def decide(job: str, step: int) -> str:
    _rows.write(_URL, job, step, "decision")
    return _rows.DECISION


@DBOS.step()
def observe(job: str, step: int) -> str:
    _rows.write(_URL, job, step, "observation")
    return _rows.OBSERVATION


@DBOS.workflow()
def work(job: str, steps: int) -> None:
    for step in range(steps):
        decide(job, step)
        observe(job, step)


def run(jobs: int, steps: int) -> dict[str, float]:
    names = [f"job-{uuid.uuid4()}" for _ in range(jobs)]
    started = time.perf_counter()
    handles = [DBOS.start_workflow(work, name, steps) for name in names]
    for handle in handles:
        handle.get_result()
    took = time.perf_counter() - started
    return summary(_rows.decisions(_URL, names).values(), jobs, steps, took)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    _rows.connection(_URL).execute(_rows.CREATE)
    # Pool and threads as large as the jobs at once, or they would wait for one another.
    config = {
        "name": "bench-steps",
        "system_database_url": _URL,
        "sys_db_pool_size": 64,
        "log_level": "WARNING",
        "max_executor_threads": 128,
    }
    DBOS(config=config)
    DBOS.launch()
    try:
        serve(run)
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    main()
