"""Sessions straight from a rung, each started when it is claimed: for tests of rungs and of the agent, without a pool."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

from dualtrack.sandbox.rung import LaunchSpec, Mount, Rung
from dualtrack.sandbox.session import AgentSession
from dualtrack.sandbox.sessions import EndReason, SessionRequest

READY_S = 60.0


class RungSessions:
    """`Sessions` over a rung. Thread-safe."""

    def __init__(self, rung: Rung, root: Path) -> None:
        """`root`: a directory that the sandbox's user may enter."""
        self.rung = rung
        self._root = root
        self._lock = threading.Lock()
        self._claimed: list[AgentSession] = []

    def claim(self, request: SessionRequest) -> AgentSession:
        workspace = Path(tempfile.mkdtemp(prefix="session-", dir=self._root))
        egress = request.egress
        spec = LaunchSpec(
            workspace=workspace,
            limits=request.limits,
            mounts=(Mount(egress.directory, "/run/egress"),) if egress else (),
            environment=egress.environment if egress else {},
            relay_port=egress.relay_port if egress else None,
            writable=request.writable,
        )
        session = AgentSession(
            self.rung.launch(spec), spec, workspace.name, shares_files=self.rung.shares_files, on_close=lambda _: shutil.rmtree(workspace)
        )
        with self._lock:
            self._claimed.append(session)
        try:
            session.wait_ready(READY_S)
        except BaseException:
            session.close(EndReason.BROKEN)
            raise
        return session

    def close(self) -> None:
        for session in self._claimed:
            session.close(EndReason.SHUTDOWN)
