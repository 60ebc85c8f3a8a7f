"""Starting one sandbox: its directory, what it is started with, the agent behind it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from dualtrack.domain.errors import DualtrackError, SandboxUnavailable
from dualtrack.sandbox.pooled import AgentLink, PooledSession
from dualtrack.sandbox.rung import Launched, LaunchSpec, Mount, Rung
from dualtrack.sandbox.sessions import EGRESS_TARGET, SessionRequest, Start
from dualtrack.sandbox.slots import Slot, Slots
from dualtrack.sandbox.templates import Template, Templates
from dualtrack.telemetry.sandboxes import METRICS

Connect = Callable[[Launched, LaunchSpec], AgentLink]
"""Speaks to the agent behind a started sandbox; must not wait for it."""


class Launcher:
    """Starts sandboxes on one rung. Thread-safe; remembers those that are not ready yet, so that a stop can end them at once."""

    def __init__(self, rung: Rung, connect: Connect, templates: Templates, slots: Slots, timeout_s: float) -> None:
        """`timeout_s`: longest wait for an agent to be ready."""
        self.rung: Final = rung
        self.templates: Final = templates
        self._connect = connect
        self._slots = slots
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._starting: set[PooledSession] = set()

    def launch(self, request: SessionRequest, start: Start, gone: Callable[[PooledSession, bool], None]) -> PooledSession:
        """A session whose agent is still starting up: call `ready` next. The request must name a template.

        Raises:
            SandboxFailed: it could not be started this time; says what the rung said.
            SandboxUnavailable: no such template, or the rung can't work here.
        """
        template = self.templates.get(request.template or "")
        slot = self._slots.make()
        try:
            spec = _spec(template, request, slot)
            launched = self.rung.launch(spec)
            try:
                agent = self._connect(launched, spec)
            except BaseException:
                launched.close()
                raise
        except BaseException:
            METRICS.start_failures.labels(self.rung.name.value).inc()
            with contextlib.suppress(DualtrackError):
                slot.remove()
            raise
        session = PooledSession(agent, launched, slot, (self.rung.name, template.name), start, gone)
        with self._lock:
            self._starting.add(session)
        return session

    def ready(self, session: PooledSession) -> None:
        """Wait until its agent is ready.

        Raises:
            SandboxFailed: it ended or took too long. The session has to be closed.
            SandboxUnavailable: it lacks what its template asks for; names both.
        """
        try:
            session.agent.wait_ready(self._timeout_s)
        except BaseException as error:
            METRICS.start_failures.labels(self.rung.name.value).inc()
            if isinstance(error, SandboxUnavailable):
                told = f"A sandbox of the template {session.template} is not what that asks for: {error.message}"
                raise SandboxUnavailable(f"{told} Mend what is in it, or its preload.") from error
            raise
        finally:
            with self._lock:
                self._starting.discard(session)
        METRICS.starts.labels(self.rung.name.value).inc()

    def interrupt(self) -> None:
        """End what is still starting up: whoever waits for it is told that it ended."""
        with self._lock:
            starting = list(self._starting)
        for session in starting:
            session.launched.kill()


def _spec(template: Template, request: SessionRequest, slot: Slot) -> LaunchSpec:
    mounts, environment, port = tuple(template.mounts), dict(template.environment), None
    if request.egress is not None:
        mounts += (Mount(request.egress.directory, EGRESS_TARGET),)
        environment |= request.egress.environment
        port = request.egress.relay_port
    return LaunchSpec(
        workspace=slot.workspace,
        limits=request.limits,
        mounts=mounts,
        environment=environment,
        preload=template.preload,
        relay_port=port,
        writable=request.writable,
    )
