"""What a sandbox's pod is made of, field by field: no rights, no token, no network, nothing of the node but the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dualtrack.domain.limits import MIB
from dualtrack.sandbox.bundle import TARGET
from dualtrack.sandbox.rung import WORKSPACE, LaunchSpec
from dualtrack.sandbox.system_view import TMP_BYTES, environment
from dualtrack.settings import KubernetesSettings

Manifest = dict[str, Any]
"""A Kubernetes object as its JSON."""

CONTAINER: Final = "sandbox"
SANDBOX_LABEL: Final = "dualtrack-sandbox"
"""Label of everything that the driver makes; the network policy selects pods by it."""
OWNER_LABEL: Final = "dualtrack-owner"
"""Label that names the executor, by its lease."""
TEMPLATE_LABEL: Final = "dualtrack-template"
SANDBOX: Final = "pod"
AGENT: Final = "agent"
LEASE: Final = "lease"
"""Values of `SANDBOX_LABEL`: what a thing is."""

_TMP: Final = "/tmp"  # noqa: S108 - the sandbox's own
_MARGIN_BYTES: Final = 64 * MIB
"""Of the node's disk beside workspace and /tmp: what the kubelet itself writes for a pod."""
_SLEEP: Final = "import signal as s; s.pthread_sigmask(s.SIG_BLOCK, {s.SIGTERM}); s.signal(s.SIGCHLD, s.SIG_IGN); s.sigwait({s.SIGTERM})"
"""The first process: it holds the pod open, and its end, by the kubelet's SIGTERM, is that of every process in it. To a first process
only signals that it blocks or handles are delivered."""


@dataclass(frozen=True, slots=True)
class PodPlan:
    """What of a pod is the rung's choice, beside the settings."""

    name: str
    owner: str
    """The executor's lease."""
    owner_uid: str
    agent: str
    """Name of the ConfigMap with the agent's sources."""
    agent_files: Mapping[str, str]
    """Its keys, by the path below the agent's directory."""
    image: str
    template: str
    user: int
    user_namespace: bool


def labels(kind: str, owner: str) -> dict[str, str]:
    """What tells whose it is, and that it is ours at all."""
    return {SANDBOX_LABEL: kind, OWNER_LABEL: owner}


def owned_by(name: str, uid: str) -> list[Manifest]:
    """Owner references: the cluster removes what has them once the executor's lease is gone."""
    return [{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": name, "uid": uid}]


def pod_manifest(plan: PodPlan, spec: LaunchSpec, settings: KubernetesSettings) -> Manifest:
    """The whole pod. Its only container waits; the agent is started in it by `agent_command`."""
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": False,
        "hostPID": False,
        "hostIPC": False,
        "shareProcessNamespace": False,
        "hostname": "sandbox",
        # No name can be looked up: there is no network, and the cluster's names are nobody's business inside.
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "restartPolicy": "Never",
        "activeDeadlineSeconds": settings.pod_lifetime_s,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": plan.user,
            "runAsGroup": plan.user,
            "fsGroup": plan.user,
            "seccompProfile": _seccomp(settings),
        },
        "containers": [_container(plan, spec, settings)],
        "volumes": [
            {"name": "workspace", "emptyDir": {"sizeLimit": str(spec.limits.disk_bytes)}},
            {"name": "tmp", "emptyDir": {"sizeLimit": str(TMP_BYTES)}},
            {
                "name": "agent",
                "configMap": {
                    "name": plan.agent,
                    "defaultMode": 0o444,
                    "items": [{"key": key, "path": path} for path, key in sorted(plan.agent_files.items())],
                },
            },
        ],
    }
    if plan.user_namespace:
        pod["hostUsers"] = False
    if settings.runtime_class:
        pod["runtimeClassName"] = settings.runtime_class
    if settings.node_selector:
        pod["nodeSelector"] = dict(settings.node_selector)
    if settings.tolerations:
        pod["tolerations"] = [toleration.model_dump(exclude_none=True) for toleration in settings.tolerations]
    if settings.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": plan.name,
            "labels": {**labels(SANDBOX, plan.owner), TEMPLATE_LABEL: plan.template},
            "annotations": dict(settings.annotations),
            "ownerReferences": owned_by(plan.owner, plan.owner_uid),
        },
        "spec": pod,
    }


def agent_command(spec: LaunchSpec, argv: Sequence[str]) -> list[str]:
    """The agent as it is started in the pod's container, with its whole environment: a container has more than we give it."""
    return _clean({"HOME": WORKSPACE, **spec.environment}, argv)


def _container(plan: PodPlan, spec: LaunchSpec, settings: KubernetesSettings) -> Manifest:
    memory = str(spec.limits.memory_bytes)
    storage = str(spec.limits.disk_bytes + TMP_BYTES + _MARGIN_BYTES)
    return {
        "name": CONTAINER,
        "image": plan.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": _clean({}, ["python3", "-I", "-S", "-c", _SLEEP]),
        "workingDir": WORKSPACE,
        "stdin": False,
        "tty": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": plan.user,
            "runAsGroup": plan.user,
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": _seccomp(settings),
        },
        "resources": {
            "limits": {"memory": memory, "cpu": f"{settings.cpus:g}", "ephemeral-storage": storage},
            "requests": {"memory": memory, "cpu": f"{min(settings.cpu_request, settings.cpus):g}", "ephemeral-storage": storage},
        },
        "volumeMounts": [
            {"name": "workspace", "mountPath": WORKSPACE},
            {"name": "tmp", "mountPath": _TMP},
            {"name": "agent", "mountPath": TARGET, "readOnly": True},
        ],
    }


def _seccomp(settings: KubernetesSettings) -> Manifest:
    if settings.seccomp_profile:
        return {"type": "Localhost", "localhostProfile": settings.seccomp_profile}
    return {"type": "RuntimeDefault"}


def _clean(further: Mapping[str, str], argv: Sequence[str]) -> list[str]:
    return ["env", "-i", *(f"{name}={value}" for name, value in environment(None, further).items()), *argv]
