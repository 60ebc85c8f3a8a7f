"""What a sandbox's pod asks a cluster for, field by field, by the cluster's own schemas; and what its status is read as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from dualtrack.domain.limits import GIB, MIB, SandboxLimits
from dualtrack.sandbox.bundle import agent_argv
from dualtrack.sandbox.kubernetes_network import POLICY, policy_manifest
from dualtrack.sandbox.kubernetes_owner import CONFIG_MAPS, LEASES
from dualtrack.sandbox.kubernetes_pod import PodPlan, agent_command, pod_manifest
from dualtrack.sandbox.kubernetes_sandbox import PODS
from dualtrack.sandbox.kubernetes_status import pod_status
from dualtrack.sandbox.rung import LaunchSpec
from dualtrack.settings import KubernetesSettings

VERSIONS = ("1.33", "1.37")
MANIFESTS = Path(__file__).parents[2] / "infra" / "kubernetes"
PLAN = PodPlan("pod-1", "owner-1", "uid-1", "agent-1", {"__main__.py": "main", "package/x.py": "x.py"}, "image:1", "default", 12345, True)
SPEC = LaunchSpec(Path("/nowhere"), SandboxLimits(memory_bytes=512 * MIB, disk_bytes=2 * GIB), environment={"STYLE": "short"})


def manifest(**settings: Any) -> dict[str, Any]:
    pod = pod_manifest(PLAN, SPEC, KubernetesSettings(namespace="sandboxes", **settings))
    for version in VERSIONS:
        kubernetes_validate.validate(pod, version, strict=True)
    return pod


def test_a_pod_has_no_rights() -> None:
    pod = manifest()["spec"]
    (container,) = pod["containers"]
    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
    assert [pod[name] for name in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers")] == [False] * 5
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 12345,
        "runAsGroup": 12345,
        "fsGroup": 12345,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 12345,
        "runAsGroup": 12345,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert "serviceAccountName" not in pod
    assert not {"env", "envFrom", "ports", "lifecycle"} & set(container)
    assert not {"initContainers", "ephemeralContainers"} & set(pod)


def test_a_pod_sees_nothing_but_empty_volumes_and_the_agent() -> None:
    pod = manifest()["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["workspace"]["emptyDir"] == {"sizeLimit": str(2 * GIB)}
    assert volumes["tmp"]["emptyDir"] == {"sizeLimit": str(256 * MIB)}
    assert volumes["agent"]["configMap"] == {
        "name": "agent-1",
        "defaultMode": 0o444,
        "items": [{"key": "main", "path": "__main__.py"}, {"key": "x.py", "path": "package/x.py"}],
    }
    assert set(volumes) == {"workspace", "tmp", "agent"}
    assert pod["containers"][0]["volumeMounts"] == [
        {"name": "workspace", "mountPath": "/workspace"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "agent", "mountPath": "/run/dualtrack/agent", "readOnly": True},
    ]
    assert (pod["dnsPolicy"], pod["dnsConfig"], pod["hostname"]) == ("None", {"nameservers": ["127.0.0.1"]}, "sandbox")


def test_a_pod_is_limited_and_ends() -> None:
    pod = manifest(cpus=2, cpu_request=0.5, pod_lifetime_s=600)["spec"]
    storage = str(2 * GIB + 256 * MIB + 64 * MIB)
    assert pod["containers"][0]["resources"] == {
        "limits": {"memory": str(512 * MIB), "cpu": "2", "ephemeral-storage": storage},
        "requests": {"memory": str(512 * MIB), "cpu": "0.5", "ephemeral-storage": storage},
    }
    assert (pod["restartPolicy"], pod["activeDeadlineSeconds"], pod["terminationGracePeriodSeconds"]) == ("Never", 600, 1)


def test_a_pod_says_whose_it_is() -> None:
    metadata = manifest(annotations={"team": "data"})["metadata"]
    assert metadata["labels"] == {"dualtrack-sandbox": "pod", "dualtrack-owner": "owner-1", "dualtrack-template": "default"}
    assert metadata["annotations"] == {"team": "data"}
    assert [(owner["kind"], owner["name"], owner["uid"]) for owner in metadata["ownerReferences"]] == [("Lease", "owner-1", "uid-1")]


def test_what_the_operator_may_choose() -> None:
    pod = manifest(
        runtime_class="gvisor",
        seccomp_profile="profiles/ours.json",
        node_selector={"pool": "sandboxes"},
        tolerations=[{"key": "sandboxes", "operator": "Exists", "effect": "NoSchedule"}],
        image_pull_secrets=["registry"],
        image_pull_policy="Always",
    )["spec"]
    profile = {"type": "Localhost", "localhostProfile": "profiles/ours.json"}
    assert pod["runtimeClassName"] == "gvisor"
    assert pod["securityContext"]["seccompProfile"] == pod["containers"][0]["securityContext"]["seccompProfile"] == profile
    assert pod["nodeSelector"] == {"pool": "sandboxes"}
    assert pod["tolerations"] == [{"key": "sandboxes", "operator": "Exists", "effect": "NoSchedule"}]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["containers"][0]["imagePullPolicy"] == "Always"


def test_the_environment_is_ours_alone() -> None:
    """A kubelet puts the API server's address into every container."""
    expected = ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/workspace", "LANG=C.UTF-8", "TMPDIR=/tmp"]
    assert agent_command(SPEC, agent_argv()) == ["env", "-i", *expected, "STYLE=short", "python3", "-I", "-B", "/run/dualtrack/agent"]
    assert manifest()["spec"]["containers"][0]["command"][:6] == ["env", "-i", *expected]


@pytest.mark.parametrize("path", sorted(MANIFESTS.glob("*.yaml")), ids=lambda path: path.name)
def test_manifests_for_operators_are_valid(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    assert documents
    for document in documents:
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)


def test_the_policy_for_operators_is_the_drivers_own() -> None:
    shown = yaml.safe_load((MANIFESTS / "sandbox-network.yaml").read_text(encoding="utf-8"))
    shown["metadata"].pop("namespace")
    assert shown == policy_manifest()
    assert shown["metadata"]["name"] == POLICY
    kubernetes_validate.validate(policy_manifest(), VERSIONS[-1], strict=True)


def test_the_role_names_what_the_driver_uses() -> None:
    documents = yaml.safe_load_all((MANIFESTS / "sandbox-rbac.yaml").read_text(encoding="utf-8"))
    (role,) = (document for document in documents if document["kind"] == "Role")
    allowed = {(group, resource) for rule in role["rules"] for group in rule["apiGroups"] for resource in rule["resources"]}
    used = {("coordination.k8s.io" if "coordination" in path else "", path.rpartition("/")[2]) for path in (PODS, LEASES, CONFIG_MAPS)}
    assert allowed == {*used, ("", "pods/exec"), ("networking.k8s.io", "networkpolicies")}
    assert "*" not in str(role["rules"])
    assert "secrets" not in str(role["rules"])


def state(**container: Any) -> dict[str, Any]:
    return {"phase": "Running", "containerStatuses": [{"state": container}]}


@pytest.mark.parametrize(
    ("status", "read"),
    [
        ({}, (False, False, False, False)),
        (state(running={"startedAt": "now"}), (True, False, False, False)),
        (state(waiting={"reason": "ContainerCreating"}), (False, False, False, False)),
        (state(waiting={"reason": "ImagePullBackOff"}), (False, True, False, False)),
        (state(terminated={"reason": "OOMKilled", "exitCode": 137}), (False, True, True, False)),
        (state(terminated={"reason": "Error", "exitCode": 137}), (False, True, False, False)),
        ({"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active too long"}, (False, True, False, False)),
        (
            {"phase": "Failed", "reason": "Evicted", "message": 'Usage of EmptyDir volume "workspace" exceeds the limit "1Gi". '},
            (False, True, False, True),
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": 'Usage of EmptyDir volume "tmp" exceeds the limit "256Mi". '},
            (False, True, False, False),
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "Container sandbox exceeded its local ephemeral storage limit"},
            (False, True, False, True),
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."},
            (False, True, False, False),
        ),
    ],
)
def test_a_status_is_read_and_never_guessed(status: dict[str, Any], read: tuple[bool, bool, bool, bool]) -> None:
    found = pod_status({"metadata": {}, "status": status})
    assert (found.running, found.over, found.out_of_memory, found.disk_exceeded) == read


def test_reasons_are_told() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    assert pod_status({"status": {"phase": "Pending", "conditions": [unscheduled]}}).reason == "Unschedulable: 0/3 nodes are available"
    waiting = {"reason": "ErrImagePull", "message": "no such image"}
    assert pod_status({"status": state(waiting=waiting)}).reason == "ErrImagePull: no such image"
    assert pod_status({"metadata": {"deletionTimestamp": "now"}, "status": state(running={})}).running is False
