"""The kubernetes rung by itself, against an API server of ours: what it refuses, survives, tells, and leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.factory import open_rung
from dualtrack.sandbox.kubernetes import KubernetesRung, trial_problem
from dualtrack.sandbox.kubernetes_network import POLICY, policy_manifest
from dualtrack.sandbox.port import Command
from dualtrack.sandbox.rung import LaunchSpec, Mount, RungName
from dualtrack.sandbox.sandboxes import Sandboxes
from dualtrack.sandbox.session import AgentSession
from dualtrack.sandbox.sessions import EndReason, SessionRequest
from dualtrack.settings import SandboxSettings
from dualtrack.testing.contracts.sandbox import leaves_no_descriptors
from dualtrack.testing.contracts.sessions import runner
from dualtrack.testing.kubernetes.server import NAMESPACE, FakeCluster
from dualtrack.testing.waiting import PATIENCE_S, comes_true

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the pods of the test are bubblewrap sandboxes")
LIMITS = SandboxLimits()
NEVER = threading.Event()

SpecOf = Callable[..., LaunchSpec]
RungOf = Callable[..., KubernetesRung]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        yield cluster


@pytest.fixture
def rung_of(cluster: FakeCluster) -> Iterator[RungOf]:
    opened: list[KubernetesRung] = []

    def rung_of(*, lease_s: float = 60.0, **settings: object) -> KubernetesRung:
        opened.append(KubernetesRung(SandboxSettings(kubernetes=cluster.settings(**settings)), LIMITS, lease_s=lease_s))
        return opened[-1]

    yield rung_of
    for rung in opened:
        rung.close()


@pytest.fixture
def rung(rung_of: RungOf) -> KubernetesRung:
    return rung_of()


@pytest.fixture
def started(rung: KubernetesRung, spec_of: SpecOf) -> Iterator[AgentSession]:
    session = begin(rung, spec_of())
    session.wait_ready(60)
    yield session
    session.close()


def begin(rung: KubernetesRung, spec: LaunchSpec) -> AgentSession:
    return AgentSession(rung.launch(spec), spec, "test", shares_files=False)


def ignores(pid: int, number: signal.Signals) -> bool:
    (mask,) = (line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn:"))
    return bool(int(mask, 16) & 1 << number - 1)


def test_a_probe_is_a_real_run(rung: KubernetesRung, cluster: FakeCluster) -> None:
    report = rung.probe()
    assert (report.works, report.problem) == (True, "")
    assert (report.found["namespace"], report.found["user namespaces"]) == (NAMESPACE, "asked for")
    assert any("no network by permission" in gap for gap in report.gaps)
    assert not any("users of the node" in gap for gap in report.gaps)
    assert cluster.names("networkpolicies") == [POLICY]
    assert cluster.names("pods") == []
    rung.close()
    assert (cluster.names("leases"), cluster.names("configmaps")) == ([], [])


def test_without_a_namespace_no_cluster_is_touched() -> None:
    report = open_rung(RungName.KUBERNETES, SandboxSettings(), LIMITS).probe()
    assert not report.works
    assert "DUALTRACK_SANDBOX__KUBERNETES__NAMESPACE" in report.problem


def test_an_older_cluster_gives_no_user_namespaces(rung: KubernetesRung, cluster: FakeCluster) -> None:
    cluster.minor = "30+"
    report = rung.probe()
    assert report.works
    assert any("users of the node" in gap for gap in report.gaps)


@pytest.mark.parametrize(
    ("printed", "problem"),
    [(b"42\ndenied\n", ""), (b"42\nconnected\n", "does not enforce policies"), (b"", "Python does not run"), (b"42\n", "does not enforce")],
)
def test_a_network_that_enforces_no_policy_is_found_out(printed: bytes, problem: str) -> None:
    found = trial_problem(printed, "said")
    assert problem in found
    assert bool(found) == bool(problem)


def test_it_refuses_without_a_policy_it_may_make(rung: KubernetesRung, cluster: FakeCluster) -> None:
    cluster.denied.add("POST networkpolicies")
    report = rung.probe()
    assert not report.works
    assert "sandbox-rbac.yaml" in report.problem
    assert cluster.requests.count("POST pods") == 0
    cluster.store.create("networkpolicies", policy_manifest())  # an administrator's
    assert rung.probe().works


def test_it_refuses_a_policy_that_was_changed(rung: KubernetesRung, cluster: FakeCluster) -> None:
    cluster.store.create("networkpolicies", policy_manifest() | {"spec": {**policy_manifest()["spec"], "egress": [{}]}})
    assert "does not keep sandboxes from all networks" in rung.probe().problem


def test_it_refuses_other_policies_that_open_a_way(rung: KubernetesRung, cluster: FakeCluster) -> None:
    opening = {"metadata": {"name": "allow-dns"}, "spec": {"podSelector": {}, "egress": [{}], "policyTypes": ["Egress"]}}
    others = {
        "metadata": {"name": "web"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "egress": [{}], "policyTypes": ["Egress"]},
    }
    cluster.store.create("networkpolicies", others)
    assert rung.probe().works
    cluster.store.create("networkpolicies", opening)
    assert "allow-dns" in rung.probe().problem


def test_a_wrong_token_is_told(cluster: FakeCluster) -> None:
    settings = cluster.settings().model_copy(update={"kubeconfig": cluster.kubeconfig("another")})
    report = KubernetesRung(SandboxSettings(kubernetes=settings), LIMITS).probe()
    assert "Unauthorized" in report.problem


def test_what_is_not_offered_is_refused_by_name(rung_of: RungOf, spec_of: SpecOf, cluster: FakeCluster) -> None:
    rung = rung_of(images={"python-data": "registry.example/data:1"})
    with pytest.raises(SandboxUnavailable, match="no network by permission"):
        rung.launch(spec_of(relay_port=8080))
    with pytest.raises(SandboxUnavailable, match="into an image"):
        rung.launch(spec_of(mounts=(Mount(Path("/opt/data"), "/data"),)))
    with pytest.raises(SandboxUnavailable, match="KUBERNETES__IMAGES"):
        rung_of().launch(spec_of(environment={"DUALTRACK_TEMPLATE": "python-data"}))
    sandbox = rung.launch(spec_of(environment={"DUALTRACK_TEMPLATE": "python-data"}))
    (pod,) = cluster.store.select("pods")
    sandbox.close()
    assert pod["spec"]["containers"][0]["image"] == "registry.example/data:1"
    assert pod["metadata"]["labels"]["dualtrack-template"] == "python-data"


def test_an_image_that_can_not_be_fetched_is_told(rung: KubernetesRung, spec_of: SpecOf, cluster: FakeCluster) -> None:
    cluster.kubelet.broken = {"reason": "ErrImagePull", "message": "no such image"}
    session = begin(rung, spec_of())
    with pytest.raises(SandboxFailed, match="ErrImagePull: no such image"):
        session.wait_ready(60)
    session.close()
    assert cluster.names("pods") == []


def test_it_can_be_ended_while_it_starts(rung: KubernetesRung, spec_of: SpecOf, cluster: FakeCluster) -> None:
    cluster.kubelet.broken = {"reason": "ContainerCreating"}
    rung.launch(spec_of()).close()

    def use() -> None:
        started = time.monotonic()
        sandbox = rung.launch(spec_of())
        time.sleep(0.1)
        sandbox.kill()
        sandbox.kill()
        assert os.read(sandbox.output, 1) == b""
        sandbox.close()
        sandbox.close()
        assert time.monotonic() - started < PATIENCE_S
        assert cluster.names("pods") == []

    assert leaves_no_descriptors(use)


def test_passing_failures_are_passed(rung: KubernetesRung, spec_of: SpecOf, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualtrack.sandbox.kubernetes_api._LONGEST_S", 0.05)
    rung.sweep()
    cluster.faults.extend((429, 503, 500))
    session = begin(rung, spec_of())
    cluster.faults.extend((503,) * 6)  # more than are tried, while it starts
    session.wait_ready(60)
    cluster.faults.extend((429, 504))
    session.close()
    assert cluster.names("pods") == []


def test_a_server_that_keeps_failing_is_told(
    rung: KubernetesRung, spec_of: SpecOf, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung.sweep()
    monkeypatch.setattr("dualtrack.sandbox.kubernetes_api._LONGEST_S", 0.01)
    cluster.faults.extend((503,) * 10)
    with pytest.raises(SandboxFailed, match="a fault of the test"):
        rung.launch(spec_of())


def test_a_full_quota_passes(rung: KubernetesRung, spec_of: SpecOf, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    rung.sweep()
    cluster.denied.add("POST pods")
    with pytest.raises(SandboxUnavailable, match="forbidden"):
        rung.launch(spec_of())
    cluster.refusal = 'pods "x" is forbidden: exceeded quota: sandboxes'
    with pytest.raises(SandboxFailed, match="exceeded quota"):
        rung.launch(spec_of())


def test_a_broken_connection_ends_the_session(started: AgentSession, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualtrack.sandbox.kubernetes_sandbox._REASON_S", 0.5)  # the pod has none: it still runs
    threading.Timer(0.5, cluster.break_connections).start()
    with pytest.raises(SandboxFailed, match="broke off"):
        runner(started)("sleep", "100")
    assert started.ended is EndReason.BROKEN
    assert comes_true(lambda: cluster.names("pods") == [])


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active on the node longer than the specified deadline"},
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
    ],
    ids=lambda status: status["reason"],
)
def test_ends_that_are_no_limit_are_told_in_the_clusters_words(started: AgentSession, cluster: FakeCluster, status: dict[str, str]) -> None:
    (pod,) = cluster.names("pods")
    threading.Timer(0.3, cluster.kubelet.end, (pod, status)).start()
    with pytest.raises(SandboxFailed, match=f"{status['reason']}: {status['message']}"):
        runner(started)("sleep", "100")


def test_the_environment_has_nothing_of_the_cluster(started: AgentSession) -> None:
    printed = started.run(Command(("env",)), LIMITS, NEVER).stdout.decode()
    names = {line.partition("=")[0] for line in printed.splitlines()}
    assert {"PATH", "HOME", "LANG", "TMPDIR"} <= names
    assert not [name for name in names if "KUBERNETES" in name]


def test_the_kubelets_first_signal_ends_every_process_of_a_pod(rung: KubernetesRung, spec_of: SpecOf, cluster: FakeCluster) -> None:
    """The container's own command, as the first process of a pid namespace: most signals don't reach one."""
    sandbox = rung.launch(spec_of())
    (pod,) = cluster.store.select("pods")
    sandbox.close()
    command = pod["spec"]["containers"][0]["command"]
    with subprocess.Popen(["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", *command]) as unshare:
        try:
            children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
            assert comes_true(lambda: unshare.poll() is not None or children.read_text().strip())
            if unshare.poll() is not None:
                pytest.skip("no pid namespace can be made here")
            first = int(children.read_text())
            assert comes_true(lambda: ignores(first, signal.SIGCHLD))  # from then on it waits
            os.kill(first, signal.SIGTERM)
            assert unshare.wait(60) is not None
        finally:
            unshare.kill()


def test_only_what_the_dead_have_left_is_removed(rung_of: RungOf, spec_of: SpecOf, cluster: FakeCluster) -> None:
    alive, dead, looking = (rung_of(lease_s=seconds) for seconds in (60.0, 1.0, 60.0))  # on a busy machine a second may pass unrenewed
    session = begin(alive, spec_of())
    session.wait_ready(60)
    left = dead.launch(spec_of())
    dead._ready().owner._stop.set()  # as if its process had been killed
    foreign = {"metadata": {"name": "foreign", "labels": {"app": "web"}}, "status": {"phase": "Running"}}
    orphan = {"metadata": {"name": "orphan", "labels": {"dualtrack-sandbox": "pod", "dualtrack-owner": "nobody"}}}
    cluster.store.create("pods", foreign)
    cluster.store.create("pods", orphan)
    removed = list(looking.sweep())
    assert removed == ["pod orphan"]

    def all_removed() -> bool:
        removed.extend(looking.sweep())
        return len(removed) >= 4

    assert comes_true(all_removed)
    name = dead._ready().owner.name
    assert sorted(removed[1:]) == sorted([f"configmap {name}", f"lease {name}", f"pod {left._name}"])
    assert runner(session)("echo", "on").stdout == b"on\n"
    assert comes_true(lambda: len(cluster.names("pods")) == 2)
    assert "foreign" in cluster.names("pods")
    session.close()
    left.close()


def test_a_lease_is_renewed_and_made_anew(rung_of: RungOf, spec_of: SpecOf, cluster: FakeCluster) -> None:
    rung = rung_of(lease_s=1.0)
    rung.sweep()
    (lease,) = cluster.store.select("leases")
    name = lease["metadata"]["name"]

    def renewed() -> bool:
        now = cluster.store.get("leases", name)
        return now is not None and now["spec"]["renewTime"] > lease["spec"]["renewTime"]

    assert comes_true(renewed)
    cluster.delete("leases", name)
    assert comes_true(lambda: cluster.names("leases") == cluster.names("configmaps") == [name])
    session = begin(rung, spec_of())
    session.wait_ready(60)
    session.close()


def test_an_executors_sandboxes_are_pods(cluster: FakeCluster, folder: Path) -> None:
    """With templates, warm ones and files both ways; nothing is built, whatever a template holds."""
    kubernetes = cluster.settings(images={"python-data": "registry.example/data:1"})
    settings = SandboxSettings(
        driver="kubernetes", kubernetes=kubernetes, workspaces=folder, pool_templates=["default", "shell"], pool_max=1
    )
    opened: list[KubernetesRung] = []

    def open_it() -> KubernetesRung:
        opened.append(KubernetesRung(settings, LIMITS))
        return opened[-1]

    with Sandboxes(partial(open_it), settings, LIMITS) as sandboxes:
        assert sandboxes.report.rung is RungName.KUBERNETES
        assert not sandboxes.templates.definition("python-data").built
        assert sandboxes.templates.get("python-data").mounts == ()
        given, kept = folder / "given", folder / "kept"
        given.mkdir()
        kept.mkdir()
        (given / "in.txt").write_text("from outside")
        session = sandboxes.pool.claim(SessionRequest(LIMITS, "shell"))
        session.adopt(given)
        outcome = session.run(Command(("sh", "-c", "cat in.txt > out.txt; cat out.txt")), LIMITS, NEVER)
        with session.quiet():
            session.pull()
        session.close(keep=kept)
        assert outcome.stdout == b"from outside"
        assert (kept / "out.txt").read_text() == "from outside"
    assert cluster.names("pods") == []
    opened[0].close()
