"""The egress proxies of one executor: made for a job's session by what the operator allows now and its agent asks for."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dualtrack.domain.egress import EgressRequest, EgressUsage
from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.domain.job import AgentProfile
from dualtrack.domain.limits import EgressLimits
from dualtrack.domain.network import EgressCeiling
from dualtrack.egress import secrets
from dualtrack.egress.log import RequestLog
from dualtrack.egress.proxy import EgressProxy
from dualtrack.net.addresses import AllowList
from dualtrack.objects.process_dir import ProcessDirectory
from dualtrack.sandbox.sessions import SessionEgress
from dualtrack.settings import EgressSettings, SandboxSettings
from dualtrack.telemetry.sandboxes import METRICS

SETTLE_S: Final = 0.1
"""Whoever asked has its answer a moment before the proxy has told of it; a background process may hold a connection for ever."""


class Outlet:
    """A session's way out and the record of what went through it.

    Attributes:
        session: for `SessionRequest.egress`.
    """

    def __init__(self, proxy: EgressProxy, log: RequestLog) -> None:
        self._proxy = proxy
        self._log = log
        self._told = 0
        self.session: Final = SessionEgress(proxy.directory, proxy.environment, proxy.relay_port)

    @property
    def usage(self) -> EgressUsage:
        """What went through so far."""
        return self._proxy.usage

    def drain(self) -> Sequence[EgressRequest]:
        """Requests and tunnels that ended since the last time, for the events of a call."""
        requests = self._proxy.usage.requests
        if requests != self._told:
            self._told = requests
            self._proxy.settle(SETTLE_S)
        return self._log.drain()

    def close(self) -> None:
        """End it, after the sandbox; may be repeated. `drain` then tells of what was under way."""
        self._proxy.close()


def _told(log: RequestLog, request: EgressRequest) -> None:
    METRICS.egress_requests.labels("allowed" if request.allowed else "refused", request.reason or "").inc()
    METRICS.egress_bytes.labels("up").inc(request.bytes_up)
    METRICS.egress_bytes.labels("down").inc(request.bytes_down)
    log.add(request)


class EgressGateway:
    """Opens ways out. Thread-safe; a context manager that closes what is left.

    Attributes:
        ceiling: what the operator allows any agent.
    """

    def __init__(self, settings: EgressSettings, sandbox: SandboxSettings, limits: EgressLimits) -> None:
        """Read the secrets, where any agent may have a network at all.

        Raises:
            InvalidRequest: a secret can't be read; names the setting.
            SandboxUnavailable: there is no place for the sockets.
        """
        self.ceiling: Final[EgressCeiling] = settings.ceiling
        self._private = AllowList.parse(settings.private)
        self._limits = limits
        self._owner = sandbox.uid if os.geteuid() == 0 else None
        self._workspaces = sandbox.workspaces
        self._values = secrets.read(settings.secrets) if settings.allow else secrets.SecretValues({})
        self._lock = threading.Lock()
        self._directory: ProcessDirectory | None = None
        self._open: set[EgressProxy] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def open(self, agent: AgentProfile, tenant_id: str) -> Outlet | None:
        """A way out for one session of an agent; None where it has no network.

        Raises:
            SandboxFailed: its socket can't be made (disk full).
            SandboxUnavailable: there is no place for sockets.
        """
        policy = self.ceiling.policy(agent.network, agent.secrets, tenant_id)
        if policy is None:
            return None
        base = self._base()
        log = RequestLog(self._limits.events)
        try:
            proxy = EgressProxy(
                policy, self._values, partial(_told, log), limits=self._limits, private=self._private, base=base, owner=self._owner
            )
        except OSError as error:
            raise SandboxFailed(f"The sandbox's way to the network can't be opened: {error}.") from error
        with self._lock:
            self._open = {one for one in self._open if not one.closed} | {proxy}
        return Outlet(proxy, log)

    def close(self) -> None:
        """Close every way out and remove their directory."""
        with self._lock:
            left, self._open = self._open, set()
            directory, self._directory = self._directory, None
        for proxy in left:
            proxy.close()
        if directory is not None:
            directory.close()

    def _base(self) -> Path:
        with self._lock:
            if self._directory is None:
                try:
                    self._directory = ProcessDirectory(self._workspaces)
                except OSError as error:
                    raise SandboxUnavailable(
                        f"No sockets can be made in {self._workspaces} ({error}): set DUALTRACK_SANDBOX__WORKSPACES to a directory of "
                        "your own."
                    ) from error
            return self._directory.path
