"""A planner or executor process whose model and sandbox answer at once: what is left is the platform's own cost."""

import argparse
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

from dualtrack import bootstrap
from dualtrack.domain.tool import ProposedCall
from dualtrack.domain.usage import Usage
from dualtrack.engine.executor import open_executor
from dualtrack.engine.planner import Planner
from dualtrack.models.port import Decision, DecisionRequest, ModelInfo, Summary, SummaryRequest
from dualtrack.objects.workdirs import Workdirs
from dualtrack.queues.celery_app import create_app, run_worker
from dualtrack.queues.port import Task
from dualtrack.testing.sandbox import FakeSessions, completed


class InstantModel:
    """Asks for one tool call a step until as many steps are done as the instructions say, then finishes."""

    def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo("deep", track=True, targets=("instant",), context_tokens=128_000)]

    def decide(self, request: DecisionRequest) -> Decision:
        wanted = int(request.task.split()[0])
        call = (
            ProposedCall("list_files", {})
            if request.summarised + len(request.steps) < wanted
            else ProposedCall("finish", {"answer": "done"})
        )
        return Decision("next", "", (call,), "instant", Usage(1, 1), 0.0)

    def summarise(self, request: SummaryRequest) -> Summary:
        return Summary("All went well.", "instant", Usage(1, 1), 0.0)

    def usage(self, model: str, raw: Mapping[str, Any] | None) -> Usage:
        raise NotImplementedError

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def chat_stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        raise NotImplementedError


def instant_sessions(folder: Path) -> FakeSessions:
    """Sandboxes that say "ok" to every command; `folder` has their directories."""
    return FakeSessions(folder, repeat(completed(b"ok")))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["planner", "executor"])
    role = parser.parse_args().role
    settings = bootstrap.load_settings()
    flush = bootstrap.telemetry(settings, role)
    runtime = bootstrap.open_runtime(settings, role)
    with bootstrap.worker(runtime) as worker:
        if role == "planner":
            planner = Planner(worker, InstantModel())
            app = create_app(settings.broker, Task.PLAN, planner.advancing, begin=planner.begin)
            run_worker(app, Task.PLAN, settings.workers.planner_threads)
        else:
            with (
                Workdirs(settings.sandbox) as workdirs,
                open_executor(worker, instant_sessions(settings.sandbox.workspaces / "instant"), workdirs) as executor,
            ):
                app = create_app(settings.broker, Task.EXECUTE, executor.running, begin=executor.begin)
                run_worker(app, Task.EXECUTE, settings.workers.executor_threads)
    bootstrap.close(runtime)
    flush()


if __name__ == "__main__":
    main()
