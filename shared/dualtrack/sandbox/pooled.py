"""A claimed session as its owner holds it: what the agent does inside, seen in spans and metrics, in the directory of its slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.port import Command, Outcome
from dualtrack.sandbox.rung import Launched, RungName
from dualtrack.sandbox.sessions import EndReason, PythonCell, Session, Sink, Start
from dualtrack.sandbox.slots import Slot
from dualtrack.telemetry import sandboxes, tracing
from dualtrack.telemetry.sandboxes import METRICS


class AgentLink(Session, Protocol):
    """A session over a started sandbox, as the pool gets it before anybody has claimed it."""

    def wait_ready(self, timeout_s: float) -> None:
        """Until the agent inside has reported ready.

        Raises:
            SandboxFailed: it ended, broke the protocol, or took longer; says what was printed.
            SandboxUnavailable: something that it was to have is not there; says what.
        """
        ...

    def ping(self, timeout_s: float) -> bool:
        """Whether the agent answers in time; else the session is over."""
        ...

    def push(self, cancel: threading.Event | None = None) -> None:
        """Bring `/workspace` inside to the state of `workspace` after the host changed it; nothing to do where they are one.

        Raises:
            Cancelled: `cancel` was set before it was done; the session is over.
        """
        ...


class PooledSession:
    """`Session` that gives its slot back: closing it ends every process, moves the files out or removes them, and tells the pool."""

    def __init__(
        self,
        agent: AgentLink,
        launched: Launched,
        slot: Slot,
        kind: tuple[RungName, str],
        start: Start,
        gone: Callable[[PooledSession, bool], None],
    ) -> None:
        """`kind`: rung and template; `gone` is called once, with whether nothing of the session is left."""
        self.id = slot.id
        self.start = start
        self.workspace = slot.workspace
        self.agent: Final = agent
        self.launched: Final = launched
        self.slot: Final = slot
        self._rung, self.template = kind
        self._gone = gone
        self._closing = threading.Lock()
        self._closed = False

    @property
    def ended(self) -> EndReason | None:
        """See `Session`."""
        return self.agent.ended

    def run(self, command: Command, limits: SandboxLimits, cancel: threading.Event, sink: Sink | None = None) -> Outcome:
        """See `Session.run`."""
        return self._watched("command", lambda: self.agent.run(command, limits, cancel, sink))

    def python(self, cell: PythonCell, limits: SandboxLimits, cancel: threading.Event, sink: Sink | None = None) -> Outcome:
        """See `Session.python`."""
        return self._watched("python", lambda: self.agent.python(cell, limits, cancel, sink))

    def _watched(self, kind: str, run: Callable[[], Outcome]) -> Outcome:
        attributes = {
            sandboxes.RUNG: self._rung.value,
            sandboxes.TEMPLATE: self.template,
            sandboxes.SESSION: self.id,
            sandboxes.KIND: kind,
        }
        with tracing.span("sandbox.run", attributes=attributes) as span:
            outcome = run()
            span.set_attribute(sandboxes.ENDED, outcome.ended.value)
            if outcome.exit_code is not None:
                span.set_attribute(sandboxes.EXIT_CODE, outcome.exit_code)
        METRICS.run_s.labels(self._rung.value, kind, outcome.ended.value).observe(outcome.wall_s)
        return outcome

    def overrun(self) -> str:
        """See `Session.overrun`."""
        return self.agent.overrun()

    def quiet(self) -> AbstractContextManager[None]:
        """See `Session.quiet`."""
        return self.agent.quiet()

    def adopt(self, directory: Path, cancel: threading.Event | None = None) -> None:
        """See `Session.adopt`."""
        self.slot.adopt(directory)
        self.agent.push(cancel)

    def pull(self, cancel: threading.Event | None = None) -> None:
        """See `Session.pull`."""
        self.agent.pull(cancel)

    def close(self, reason: EndReason = EndReason.DONE, *, keep: Path | None = None) -> None:
        """See `Session.close`.

        Raises:
            SandboxFailed: something of it was still there after the time the rung gives it, or its files can't be moved or removed.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            attributes = {sandboxes.RUNG: self._rung.value, sandboxes.TEMPLATE: self.template, sandboxes.SESSION: self.id}
            started = time.monotonic()
            with tracing.span("sandbox.destroy", attributes=attributes) as span:
                why = self.agent.ended or reason
                span.set_attribute(sandboxes.REASON, why.value)
                clean = False
                try:
                    self.dismantle(reason, keep)
                    clean = True
                finally:
                    METRICS.destroy_s.labels(self._rung.value).observe(time.monotonic() - started)
                    METRICS.ends.labels(self._rung.value, why.value).inc()
                    self._gone(self, clean)

    def dismantle(self, reason: EndReason, keep: Path | None = None) -> None:
        """End it without telling anybody: what `close` does, and the pool with a session that was never claimed. May be repeated."""
        try:
            self.agent.close(reason)
        finally:
            self.launched.close()
        # Only now is no process left that could still write, or swap a directory for a link.
        if keep is not None:
            self.slot.keep(keep)
        self.slot.remove()
