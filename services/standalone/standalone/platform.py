"""Router, planner, executor and scheduler in one process, over an embedded PostgreSQL, a folder of objects and the local sandbox."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dualtrack import bootstrap
from dualtrack.db import migrate
from dualtrack.domain.errors import InfrastructureError
from dualtrack.egress.gateway import EgressGateway
from dualtrack.engine.executor import open_executor
from dualtrack.engine.planner import Planner
from dualtrack.engine.scheduler import Scheduler
from dualtrack.models.factory import Models, open_models
from dualtrack.objects.workdirs import Workdirs
from dualtrack.queues.in_process import InProcessDoorbell
from dualtrack.sandbox.factory import open_sandboxes
from dualtrack.settings import Settings
from dualtrack.telemetry.sandboxes import METRICS
from router.app import create_app
from router.server import ApiServer
from router.services import RouterServices
from standalone import credentials
from standalone.postgres import EmbeddedPostgres
from standalone.settings import at

_LOG: Final = logging.getLogger(__name__)
_DRAIN_S: Final = 10


class Platform:
    """The platform, up inside a `with` block."""

    def __init__(self, settings: Settings, state: Path, *, own_database: bool, say: Callable[[str], None]) -> None:
        """`say` is told each step of the start, for a person."""
        self._settings = settings
        self._state = state
        self._own_database = own_database
        self._say = say
        self._stack = ExitStack()
        self._shown = 0
        self.data: tuple[Path, ...] = (state,)
        self.drained = True
        self.credentials: credentials.Credentials
        self.models: Models

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def _start(self) -> None:
        settings = self._settings
        self._stack.callback(bootstrap.telemetry(settings, "standalone"))
        if self._own_database:
            server = EmbeddedPostgres(self._state)
            self.data += () if server.home.is_relative_to(self._state) else (server.home,)
            self._say(f"database: embedded PostgreSQL in {server.home}")
            self._stack.callback(server.stop)
            server.start()
            settings = at(settings, server.url)
        sandboxes = self._stack.enter_context(open_sandboxes(settings.sandbox, settings.limits.sandbox))
        self._say(f"sandbox: {sandboxes.rung.name}, {sandboxes.report.strength}")
        doorbell = InProcessDoorbell()
        runtime = replace(bootstrap.open_runtime(settings, "standalone", doorbell), templates=frozenset(sandboxes.templates.definitions))
        self._stack.callback(bootstrap.close, runtime)
        migrate.upgrade(runtime.database)
        self.models = open_models(settings.models, progress=self._progress)
        self._stack.callback(self.models.close)
        self.models.warm_up()
        worker = self._stack.enter_context(bootstrap.worker(runtime))
        workdirs = self._stack.enter_context(Workdirs(settings.sandbox))
        gateway = self._stack.enter_context(EgressGateway(settings.egress, settings.sandbox, settings.limits.egress))
        executor = self._stack.enter_context(open_executor(worker, sandboxes.pool, workdirs, gateway, settings.sandbox.template))
        self._stack.callback(self._drain, doorbell)
        doorbell.start(
            plan=Planner(worker, self.models.gateway).advance,
            execute=executor.run,
            planner_threads=settings.workers.planner_threads,
            executor_threads=settings.workers.executor_threads,
        )
        self._clock(Scheduler(runtime, settings.workers.scheduler_tick_s))
        base_url = self._serve(RouterServices(runtime, self.models.gateway, settings.router, (METRICS.registry,)))
        self.credentials = credentials.ensure(runtime.database, self._state / "credentials.json", base_url)
        self._say(f"API: {base_url}")

    def _drain(self, doorbell: InProcessDoorbell) -> None:
        self.drained = doorbell.stop(_DRAIN_S)
        if not self.drained:
            _LOG.warning("work under way did not end within %d s; it is taken up again at the next start", _DRAIN_S)

    def fetch_model(self) -> None:
        """Have the local model loaded, where it is used: its weights are fetched the first time. Raises `ModelError`."""
        if self.models.local is not None:
            self._say(f"model: {self._settings.models.local.source}, on this machine")
            self.models.local.ensure()

    def _progress(self, done: int, total: int) -> None:
        twentieth = done * 20 // max(total, 1)
        if twentieth > self._shown:
            self._shown = twentieth
            self._say(f"model weights: {done / 1e6:.0f} of {total / 1e6:.0f} MB")

    def _clock(self, scheduler: Scheduler) -> None:
        stop = threading.Event()
        thread = threading.Thread(target=scheduler.run, args=(stop,), name="scheduler", daemon=True)
        thread.start()

        def end() -> None:
            stop.set()
            thread.join(timeout=_DRAIN_S)

        self._stack.callback(end)

    def _serve(self, services: RouterServices) -> str:
        """Start the HTTP server on a thread; its address."""
        host, port = services.settings.host, services.settings.port
        try:
            server = ApiServer(create_app(services), services.settings)
        except OSError as error:
            raise InfrastructureError(
                f"Can't listen on {host}, port {port} ({error.strerror}): stop what listens there, or set DUALTRACK_ROUTER__PORT (0: any)."
            ) from error
        thread = threading.Thread(target=server.run, name="http", daemon=True)
        thread.start()

        def end() -> None:
            server.should_exit = True
            thread.join(timeout=_DRAIN_S)

        self._stack.callback(end)
        while not server.started:
            if not thread.is_alive():
                raise InfrastructureError("The HTTP server did not start; its log says why.")
            thread.join(timeout=0.05)
        return server.url
