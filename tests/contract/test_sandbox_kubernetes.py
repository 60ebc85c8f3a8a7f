"""Sessions in pods pass the contract, against a small API server of ours whose pods are sandboxes of this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from dualtrack.domain.limits import MIB, SandboxLimits
from dualtrack.sandbox.cgroups import detect
from dualtrack.sandbox.kubernetes import KubernetesRung
from dualtrack.sandbox.port import Ended
from dualtrack.sandbox.sessions import EndReason, Session, SessionRequest, Sessions
from dualtrack.settings import SandboxSettings
from dualtrack.testing.contracts.session_commands import SessionContract
from dualtrack.testing.contracts.session_limits import SessionLimitsContract
from dualtrack.testing.contracts.sessions import LIMITS, Asking, Run, runner
from dualtrack.testing.kubernetes.server import FakeCluster
from dualtrack.testing.rung_sessions import RungSessions
from dualtrack.testing.sandbox import sandbox_workspace


@pytest.fixture(scope="module")
def pods() -> Iterator[Sessions]:
    if sys.platform != "linux":
        pytest.skip("the pods of the test are bubblewrap sandboxes")
    with FakeCluster() as cluster, sandbox_workspace() as root:
        rung = KubernetesRung(SandboxSettings(kubernetes=cluster.settings()), SandboxLimits())
        sessions = RungSessions(rung, root)
        yield sessions
        sessions.close()
        assert cluster.names("pods") == []
        rung.close()


class Kubernetes:
    @pytest.fixture(scope="class")
    @classmethod
    def sessions(cls, pods: Sessions) -> Sessions:
        return pods

    @pytest.fixture
    def counts_memory(self) -> bool:
        return detect().memory is not None

    @pytest.fixture
    def counts_processes(self) -> bool:
        return False


class TestKubernetesSessions(Kubernetes, SessionContract):
    def test_a_read_only_session(self, sessions: Sessions) -> None:
        """What a command writes is dropped, not refused: one of the rung's gaps."""
        session = sessions.claim(SessionRequest(LIMITS, writable=False))
        with sandbox_workspace() as given, sandbox_workspace() as kept:
            (given / "given.txt").write_text("kept")
            session.adopt(given)
            assert runner(session)("sh", "-c", "cat given.txt; echo changed > given.txt").stdout == b"kept"
            session.pull()
            session.close(keep=kept)
            assert [(path.name, path.read_text()) for path in kept.iterdir()] == [("given.txt", "kept")]


class TestKubernetesPython(Kubernetes, Asking):
    """The rest of Python's contract is about the agent alone, whatever it runs in."""

    def test_state_is_kept(self, python: Run) -> None:
        python("x = 41", persistent=True)
        assert python("x + 1", persistent=True).stdout == b"42\n"
        assert python("print('x' in globals())").stdout == b"False\n"


class TestKubernetesLimits(Kubernetes, SessionLimitsContract):
    def test_memory_of_a_child_is_told(self, fresh: Session, counts_memory: bool) -> None:
        """The kernel ends the whole container for it, as kubelets ask it to."""
        if not counts_memory:
            pytest.skip("nothing counts it")
        outcome = runner(fresh)("sh", "-c", "python3 -c \"x = b'x' * (900 << 20)\"; echo on")
        assert (outcome.ended, outcome.note) == (Ended.MEMORY, "killed: memory limit 512 MiB")
        assert fresh.ended is EndReason.LIMIT

    @pytest.fixture
    def small(self, sessions: Sessions) -> Iterator[Session]:
        """Kubelets look at the limit that a session began with, not at a command's."""
        session = sessions.claim(SessionRequest(LIMITS.model_copy(update={"disk_bytes": 20 * MIB})))
        yield session
        session.close()

    def test_disk(self, small: Session) -> None:
        super().test_disk(small)

    def test_disk_between_two_commands(self, small: Session) -> None:
        super().test_disk_between_two_commands(small)
