"""All that an executor has of sandboxes: the rung that was configured and proved, its pool, templates, janitor."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final, Self

from dualtrack.domain.errors import SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.domain.templates import SHELL_TEMPLATE
from dualtrack.objects.process_dir import ProcessDirectory
from dualtrack.sandbox.descriptors import raise_limit
from dualtrack.sandbox.janitor import Janitor, sweep
from dualtrack.sandbox.launching import Launcher
from dualtrack.sandbox.pool import SessionPool, prepared
from dualtrack.sandbox.rung import Launched, LaunchSpec, Rung, RungReport
from dualtrack.sandbox.session import AgentSession
from dualtrack.sandbox.sessions import EndReason, PythonCell, SessionRequest, Start
from dualtrack.sandbox.slots import Slots
from dualtrack.sandbox.template_builds import Say, TemplateBuilder
from dualtrack.sandbox.templates import Templates
from dualtrack.settings import SandboxSettings
from dualtrack.telemetry.sandboxes import METRICS

_LOG: Final = logging.getLogger(__name__)
_ASK: Final = """
import platform, sys
print("cp%d%d-%s-%s" % (*sys.version_info[:2], platform.machine(), platform.libc_ver()[0] or "other"))
"""
_MESSAGE_CHARS: Final = 500


class Sandboxes:
    """A context manager: sandboxes can be claimed from `pool` inside of it."""

    def __init__(self, open_rung: Callable[[], Rung], settings: SandboxSettings, limits: SandboxLimits, *, say: Say = _LOG.info) -> None:
        """Nothing is started yet.

        Args:
            open_rung: the configured rung; there is no other.
            settings: of sandboxes.
            limits: the operator's.
            say: is told each step of a build of templates.
        """
        self._open_rung = open_rung
        self._settings = settings
        self._limits = limits
        self._say = say
        self._stack = ExitStack()
        self.rung: Rung
        self.report: RungReport
        self.templates: Templates
        self.pool: SessionPool

    def __enter__(self) -> Self:
        """Remove what the dead have left, prove that the rung works, build the templates of `pool_templates`, start the pool.

        Raises:
            SandboxUnavailable: the rung does not work here, or a template can't be built or does not work; says why and what to do.
        """
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def builder(self) -> TemplateBuilder:
        """Builds templates for this rung."""
        return TemplateBuilder(self.templates, self.pool, self._settings, self._limits)

    def _start(self, stack: ExitStack) -> None:
        settings = self._settings
        raise_limit(self._limits.sessions)
        try:
            directory = stack.enter_context(ProcessDirectory(settings.workspaces))
            slots = Slots(directory, settings.uid)
        except OSError as error:
            raise SandboxUnavailable(
                f"The directory {settings.workspaces} for workspaces can't be used: {error}. Set DUALTRACK_SANDBOX__WORKSPACES to one of "
                "your own."
            ) from error
        self.rung = self._open_rung()
        sweep(self.rung, directory)
        self.report = self._probe()
        self.templates = Templates(settings, lambda: self._prove(launcher))
        stack.callback(self.templates.close)
        launcher = Launcher(
            self.rung, partial(_connect, shares_files=self.rung.shares_files), self.templates, slots, settings.start_timeout_s
        )
        _LOG.info("the sandbox's Python is %s", self.templates.interpreter)  # and so it is proved that one starts and answers
        self._build(launcher)
        self.pool = stack.enter_context(SessionPool(launcher, settings, self._limits))
        stack.enter_context(Janitor(self.rung, directory, self.pool.tidy))

    def _probe(self) -> RungReport:
        report = self.rung.probe()
        METRICS.works.labels(report.rung.value).set(int(report.works))
        facts = {"rung": report.rung.value, "strength": report.strength, **{f"found_{key}": text for key, text in report.found.items()}}
        if not report.works:
            raise SandboxUnavailable(f"The sandbox rung {report.rung.value} does not work here: {report.problem}")
        _LOG.info("sandbox rung %s works", report.rung.value, extra=facts)
        for gap in report.gaps:
            _LOG.warning("sandbox rung %s: %s", report.rung.value, gap)
        return report

    def _prove(self, launcher: Launcher) -> str:
        """Start a sandbox, run Python in it, end it; the name of that Python."""
        session = launcher.launch(SessionRequest(self._limits, SHELL_TEMPLATE), Start.COLD, lambda *_: None)
        try:
            launcher.ready(session)
            outcome = session.python(PythonCell(_ASK), self._limits, threading.Event())
        finally:
            session.dismantle(EndReason.DONE)  # nobody has claimed it
        named = outcome.stdout.decode(errors="replace").strip()
        if outcome.exit_code != 0 or not named.startswith("cp3"):
            said = outcome.stderr.decode(errors="replace").strip()[-_MESSAGE_CHARS:]
            raise SandboxUnavailable(f"The sandbox works but Python does not run in it ({outcome.note or said or named}).")
        return named

    def _build(self, launcher: Launcher) -> None:
        found = [self.templates.definition(name) for name in prepared(self._settings)]
        wanted = [definition.name for definition in found if definition.built or definition.unproved]
        if not wanted:
            return
        # A pool of its own: the executor's starts sandboxes of the templates that are being built.
        plain = self._settings.model_copy(update={"pool_max": 0, "template": SHELL_TEMPLATE})
        with SessionPool(launcher, plain, self._limits) as pool:
            builder = TemplateBuilder(self.templates, pool, self._settings, self._limits)
            for name in wanted:
                builder.build(name, self._say)
            builder.prune()


def _connect(launched: Launched, spec: LaunchSpec, *, shares_files: bool) -> AgentSession:
    return AgentSession(launched, spec, spec.workspace.parent.name, shares_files=shares_files)
