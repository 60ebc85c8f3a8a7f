"""The kubernetes rung: a pod for every session in a namespace of a cluster, with the runtime that its RuntimeClass names.

The pod is what the cluster isolates; the driver gives it no rights, no token, no network and no volume but empty ones. Files go through the
agent, which is started in the pod by an exec: what a container writes itself would be kept on the node, as its log.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import re
import secrets
import select
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from dualtrack.domain.errors import DualtrackError, SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.bundle import MAIN, PACKAGE, agent_argv
from dualtrack.sandbox.kubernetes_api import Cluster
from dualtrack.sandbox.kubernetes_network import ensure_denied
from dualtrack.sandbox.kubernetes_owner import DURATION_S, Owner
from dualtrack.sandbox.kubernetes_pod import PodPlan, agent_command, pod_manifest
from dualtrack.sandbox.kubernetes_sandbox import KubernetesSandbox
from dualtrack.sandbox.rung import LaunchSpec, RungName, RungReport
from dualtrack.sandbox.template_catalog import definitions
from dualtrack.sandbox.templates import VARIABLE
from dualtrack.settings import KubernetesSettings, SandboxSettings

_STRENGTH: Final = "pod: unprivileged user, no capabilities, read-only image, no token, no network; shares the node's kernel"
_STRENGTH_RUNTIME: Final = "pod without capabilities, token and network in the runtime class {runtime}"
_USERS: Final = (10_000, 59_999)
"""A pod has a user of its own: limits on processes are counted by user, on a node without user namespaces for all pods together."""
_USER_NAMESPACES_SINCE: Final = (1, 33)
_PROOF: Final = """
import socket, sys
print(6 * 7)
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)
    print("connected")
except OSError:
    print("denied")
"""
_PRINTED_BYTES: Final = 1000
_PLAIN: Final = "default"


@dataclass(frozen=True, slots=True)
class _Setup:
    """What was found of the cluster, and made in it for this process."""

    cluster: Cluster
    owner: Owner
    version: str
    user_namespace: bool


class KubernetesRung:
    """`Rung` by pods. Thread-safe; asks the cluster on first use."""

    name = RungName.KUBERNETES
    shares_files = False

    def __init__(self, settings: SandboxSettings, limits: SandboxLimits, *, lease_s: float = DURATION_S) -> None:
        """Nothing is started yet.

        Args:
            settings: of sandboxes, `kubernetes` above all.
            limits: those that trial sandboxes run under.
            lease_s: an executor that has not renewed its lease for so long is dead.
        """
        self._settings = settings.kubernetes
        self._limits = limits
        self._lease_s = lease_s
        self._timeout_s = settings.start_timeout_s
        self._built = {name for name, definition in definitions(settings.templates).items() if definition.built}
        self._lock = threading.Lock()
        self._setup: _Setup | None = None
        self._process = 0

    def launch(self, spec: LaunchSpec) -> KubernetesSandbox:
        """See `Rung.launch`. Returns before the pod runs."""
        self._refuse_impossible(spec)
        return self._start(self._ready(), spec, agent_argv())

    def probe(self) -> RungReport:
        """See `Rung.probe`. The trial also tries to reach the cluster's API from inside, which the network policy must prevent."""
        runtime = self._settings.runtime_class
        strength = _STRENGTH_RUNTIME.format(runtime=runtime) if runtime else _STRENGTH
        try:
            setup = self._ready()
            ensure_denied(setup.cluster)
            started = time.monotonic()
            printed, said = self._trial(setup)
            took = time.monotonic() - started
        except (SandboxUnavailable, SandboxFailed) as error:
            return RungReport(self.name, works=False, strength=strength, found={}, problem=error.message)
        found = {
            "cluster": f"{setup.cluster.configuration.host} ({setup.version})",
            "namespace": setup.cluster.namespace,
            "image": self._settings.image,
            "runtime class": runtime or "the cluster's default",
            "user namespaces": "asked for" if setup.user_namespace else "no",
            "system call filter": self._settings.seccomp_profile or "the runtime's default",
            "start, Python and end": f"{took * 1000:.0f} ms",
        }
        return RungReport(
            self.name,
            works=not (problem := trial_problem(printed, said)),
            strength=strength,
            found=found,
            gaps=_gaps(setup, self._settings),
            problem=problem,
        )

    def sweep(self) -> Sequence[str]:
        """See `Rung.sweep`. Looks at what carries the driver's labels in the namespace, and at no more. Mends the network policy too."""
        setup = self._ready()
        ensure_denied(setup.cluster)
        return setup.owner.sweep()

    def close(self) -> None:
        """Give up this process's lease; its sandboxes must have ended. Done at its exit as well."""
        with self._lock:
            setup, self._setup = self._setup, None
        if setup is not None and self._process == os.getpid():  # not in a forked child
            setup.owner.close()
            setup.cluster.close()

    def _refuse_impossible(self, spec: LaunchSpec) -> None:
        if spec.relay_port is not None:
            raise SandboxUnavailable("The kubernetes sandbox has no network by permission: use agents without one, or another driver.")
        if spec.mounts:
            raise SandboxUnavailable(
                f"The kubernetes sandbox can't show the directory {spec.mounts[0].source} of this machine: put it into an image, and name "
                "that in DUALTRACK_SANDBOX__KUBERNETES__IMAGES."
            )

    def _image(self, template: str) -> str:
        image = self._settings.images.get(template)
        if image is None and template in self._built:
            raise SandboxUnavailable(
                f"The sandbox template {template} has packages or files, which are in an image here: make one and name it in "
                "DUALTRACK_SANDBOX__KUBERNETES__IMAGES."
            )
        return image or self._settings.image

    def _start(self, setup: _Setup, spec: LaunchSpec, argv: Sequence[str]) -> KubernetesSandbox:
        template = spec.environment.get(VARIABLE, _PLAIN)
        plan = PodPlan(
            name=f"{setup.owner.name}-{secrets.token_hex(6)}",
            owner=setup.owner.name,
            owner_uid=setup.owner.uid,
            agent=setup.owner.name,
            agent_files={path: key for key, (path, _) in _agent().items()},
            image=self._image(template),
            template=template,
            user=self._settings.uid or random.randint(*_USERS),  # noqa: S311 - to be different, not to be secret
            user_namespace=setup.user_namespace,
        )
        return KubernetesSandbox(setup.cluster, pod_manifest(plan, spec, self._settings), agent_command(spec, argv))

    def _ready(self) -> _Setup:
        with self._lock:
            if self._setup is None:
                cluster = Cluster(self._settings)
                version = cluster.demand("GET", "/version")
                ensure_denied(cluster)
                owner = Owner(cluster, self._lease_s)
                try:
                    owner.keep_agent({key: content for key, (_, content) in _agent().items()})
                except BaseException:
                    owner.close()
                    raise
                wanted = self._settings.user_namespaces
                able = _version(version) >= _USER_NAMESPACES_SINCE and self._settings.runtime_class is None
                self._setup = _Setup(cluster, owner, str(version.get("gitVersion")), able if wanted is None else wanted)
                self._process = os.getpid()
                atexit.register(self.close)
            return self._setup

    def _trial(self, setup: _Setup) -> tuple[bytes, str]:
        """What a quick command printed, and what was said to tell why it did not."""
        address = urlsplit(setup.cluster.configuration.host)
        port = address.port or (443 if address.scheme == "https" else 80)
        argv = ["python3", "-I", "-S", "-c", _PROOF, str(address.hostname), str(port)]
        sandbox = self._start(setup, LaunchSpec(Path(), self._limits), argv)
        printed = b""
        try:
            deadline = time.monotonic() + self._timeout_s
            poll = select.poll()
            poll.register(sandbox.output, select.POLLIN)
            while len(printed) < _PRINTED_BYTES and poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                data = os.read(sandbox.output, _PRINTED_BYTES)
                if not data:
                    break
                printed += data
            said = ""
            if not printed:
                said = sandbox.said() or ("no message" if time.monotonic() < deadline else f"no end after {self._timeout_s:g} s")
        finally:
            with contextlib.suppress(DualtrackError):
                sandbox.kill()
            sandbox.close()
        return printed, said


def trial_problem(printed: bytes, said: str) -> str:
    """What the proof's output says against the rung, and what to do; empty if all is well."""
    lines = printed.split()
    if lines[:1] != [b"42"]:
        return (
            f"Python does not run in a pod ({said}). DUALTRACK_SANDBOX__KUBERNETES__IMAGE must have python3 and env; where the node's "
            "runtime has no user namespaces, set DUALTRACK_SANDBOX__KUBERNETES__USER_NAMESPACES=false."
        )
    if lines[1:] != [b"denied"]:
        return (
            "A pod can reach the cluster's API although a network policy denies it everything: the cluster's network does not enforce "
            "policies. Use one that does (Calico, Cilium and others)."
        )
    return ""


def _gaps(setup: _Setup, settings: KubernetesSettings) -> list[str]:
    runtime = settings.runtime_class
    shared_user = settings.uid is not None and not setup.user_namespace and runtime is None
    gaps = {
        "users inside are users of the node: no user namespaces (DUALTRACK_SANDBOX__KUBERNETES__USER_NAMESPACES)": not setup.user_namespace
        and runtime is None,
        "the limit on processes is one for all pods of a node: they have the same user (DUALTRACK_SANDBOX__KUBERNETES__UID)": shared_user,
        "no network by permission: agents that ask for one are refused": True,
        "a read-only workspace can be written to; what is written is dropped": True,
        "a command can end its own session, by a signal to the agent": True,
        "CPU time is limited per process and not counted; a pod has no more than its share at a time": True,
        "processes are limited by RLIMIT_NPROC and hits are not counted; podPidsLimit of the kubelets is the fence": True,
        "the workspace's size is looked at by the kubelet, some ten seconds apart; its number of files when they are fetched": True,
    }
    return [text for text, applies in gaps.items() if applies]


def _version(found: Mapping[str, object]) -> tuple[int, int]:
    major, minor = (re.match(r"\d*", str(found.get(name, "")).strip()) for name in ("major", "minor"))
    return int(major[0] or 0) if major else 0, int(minor[0] or 0) if minor else 0


def _agent() -> dict[str, tuple[str, bytes]]:
    """The agent's sources by key: their path below its directory, and their text."""
    found = {"main": ("__main__.py", MAIN.encode())}
    for source in resources.files("dualtrack.sandbox.inside").iterdir():
        if source.name.endswith(".py"):
            found[source.name] = (f"{PACKAGE}/{source.name}", source.read_bytes())
    return found
