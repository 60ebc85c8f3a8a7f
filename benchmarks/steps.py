"""Cost of a step: planner → executor → planner over RabbitMQ, everything durable, model and sandbox answering at once.

Beside it, in the same run on the same servers and by turns: DBOS, LangGraph, Celery as it comes, and two bare commits (docs/benchmarks.md).
"""

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks import _systems
from dualtrack.testing.servers import Postgres, RabbitMQ, open_rabbitmq
from dualtrack.testing.servers.rabbitmq import RabbitBroker

_PEERS = ("dbos", "langgraph", "celery")
_TITLES = {
    "floor": "two commits in one process (floor)",
    "bare": "the rules' floor: 4 commits, 2 messages",
    "dualtrack": "Dualtrack: planner → executor → planner",
    "dbos": "DBOS steps + our row, in process",
    "langgraph": "LangGraph + AsyncPostgresSaver sync, in process",
    "celery": "Celery defaults (unsafe)",
}
_WARM_STEPS = 5
_ONE_JOB_FACTOR = 5

Figures = dict[str, float]


def measure(name: str, servers: tuple[Postgres, RabbitBroker], folder: Path, jobs: int, steps: int) -> dict[str, Figures]:
    """One round of a system on a database and virtual host of its own: a job alone, then `jobs` at once."""
    postgres, broker = servers
    url = postgres.create_database()
    if name == "floor":
        return {"one": _systems.floor(url, 200)}
    vhost = broker.new_vhost()
    here = folder / name
    here.mkdir(exist_ok=True)
    with _systems.opened(name, url, vhost, here) as system:
        system.run(4, _WARM_STEPS)
        found = {}
        for part, count, length in (("one", 1, steps * _ONE_JOB_FACTOR), ("many", jobs, steps)):
            watched = {
                "cpu": system.pids(),
                "broker_cpu": [broker.pid] if isinstance(broker, RabbitMQ) else [],
                "postgres_cpu": [postgres.pid],
            }
            before = {key: _systems.cpu_s(pids) for key, pids in watched.items()}
            figures = system.run(count, length)
            figures |= {key: (_systems.cpu_s(pids) - before[key]) * 1000 / (count * length) for key, pids in watched.items()}
            found[part] = figures
    postgres.drop_database(url)
    broker.delete_vhost(vhost)
    return found


def _line(title: str, figures: dict[str, Figures]) -> str:
    one, many = figures["one"], figures.get("many")
    text = f"{title:<48} {one['p50_ms']:7.2f} {one['p95_ms']:7.2f} {one['steps_per_s']:7.1f}"
    if many is None:
        return text
    text += f"   {many['p50_ms']:7.1f} {many['p95_ms']:7.1f} {many['steps_per_s']:7.1f}"
    return text + f"   {many['cpu']:6.2f} + {many['broker_cpu']:.2f} + {many['postgres_cpu']:.2f}"


def _ratios(found: dict[str, dict[str, Figures]]) -> dict[str, float]:
    ours = found["dualtrack"]
    ratios = {}
    for name, figures in found.items():
        if name != "dualtrack":
            ratios[f"step_p50_1_job_to_{name}"] = round(ours["one"]["p50_ms"] / figures["one"]["p50_ms"], 2)
            if "many" in figures:
                ratios[f"steps_per_s_to_{name}"] = round(ours["many"]["steps_per_s"] / figures["many"]["steps_per_s"], 2)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="steps of each job (five times as many of the job alone)")
    parser.add_argument("--jobs", type=int, default=64, help="jobs at once in the second part")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which medians are shown")
    parser.add_argument("--peers", nargs="*", choices=_PEERS, default=_PEERS, help="which peers to measure beside us")
    options = parser.parse_args()
    if options.peers and not _systems.PEERS_PYTHON.exists():
        parser.error("the peers are not installed: use `make bench-steps`, or give `--peers` without a name.")
    rounds: dict[str, list[dict[str, Figures]]] = defaultdict(list)
    with (
        Postgres(durable=True) as postgres,
        open_rabbitmq() as rabbitmq,
        tempfile.TemporaryDirectory(prefix="dualtrack-bench-", dir="/var/tmp") as folder,
    ):
        for _ in range(options.rounds):
            for name in ("floor", "bare", *options.peers, "dualtrack"):
                rounds[name].append(measure(name, (postgres, rabbitmq), Path(folder), options.jobs, options.steps))
    found = {
        name: {
            part: {key: statistics.median(round_[part][key] for round_ in measured) for key in measured[0][part]} for part in measured[0]
        }
        for name, measured in rounds.items()
    }
    print(f"{'':<48} {'1 job: p50, p95 ms, steps/s':>23}   {f'{options.jobs} jobs: the same':>23}   CPU ms/step: own+broker+PostgreSQL")
    for name, title in _TITLES.items():
        if name in found:
            print(_line(title, found[name]))
    print(json.dumps({"benchmark": "steps", "ratios": _ratios(found)}))


if __name__ == "__main__":
    main()
