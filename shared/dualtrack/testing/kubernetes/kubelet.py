"""The node of the cluster: runs pods as sandboxes of this machine, one agent each, and ends them for their limits as a kubelet does."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.bubblewrap import BubblewrapRung
from dualtrack.sandbox.bundle import TARGET
from dualtrack.sandbox.bwrap_sandbox import BwrapSandbox
from dualtrack.sandbox.rung import LaunchSpec, Mount
from dualtrack.settings import SandboxSettings
from dualtrack.testing.kubernetes.store import Store, Thing

LOOK_S = 0.1
PROCESSES = 200
"""Of a pod, as `podPidsLimit` sets."""


class Runtime(BubblewrapRung):
    """Starts any program in a sandbox of this machine."""

    def start(self, spec: LaunchSpec, argv: Sequence[str], mounts: Sequence[Mount]) -> BwrapSandbox:
        return BwrapSandbox(self._ready(), self._spawner, spec, argv, mounts)


@dataclass
class Running:
    """A pod on the node."""

    directory: tempfile.TemporaryDirectory[str]
    workspace: Path
    agent: Path
    limits: SandboxLimits
    execs: list[BwrapSandbox] = field(default_factory=list)
    over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Kubelet:
    """Pods of a store. Set `broken` to a waiting state (`{"reason": "ImagePullBackOff", …}`) that new pods stay in."""

    def __init__(self, store: Store) -> None:
        self.broken: Thing | None = None
        self._store = store
        self._root = tempfile.TemporaryDirectory(prefix="dualtrack-kubelet-", dir="/var/tmp")
        Path(self._root.name).chmod(0o711)
        self._runtime = Runtime(SandboxSettings(workspaces=Path(self._root.name) / "runtime"), SandboxLimits())
        self._lock = threading.Lock()
        self._pods: dict[str, Running] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kubelet", daemon=True)
        self._thread.start()

    def start(self, pod: Thing) -> None:
        name = pod["metadata"]["name"]
        if self.broken is not None:
            self._tell(name, {"phase": "Pending", "containerStatuses": [{"state": {"waiting": self.broken}}]})
            return
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        found = self._store.get("configmaps", volumes["agent"]["configMap"]["name"])
        if found is None:
            waiting = {"reason": "CreateContainerConfigError", "message": "configmap not found"}
            self._tell(name, {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]})
            return
        directory = tempfile.TemporaryDirectory(prefix="pod-", dir=self._root.name)
        top = Path(directory.name)
        top.chmod(0o711)
        (top / "workspace").mkdir()
        (top / "workspace").chmod(0o777)
        for item in volumes["agent"]["configMap"]["items"]:
            path = top / "agent" / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found["data"][item["key"]])
        limits = SandboxLimits(
            memory_bytes=int(pod["spec"]["containers"][0]["resources"]["limits"]["memory"]),
            disk_bytes=int(volumes["workspace"]["emptyDir"]["sizeLimit"]),
            processes=PROCESSES,
        )
        with self._lock:
            self._pods[name] = Running(directory, top / "workspace", top / "agent", limits)
        self._tell(name, {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]})

    def execute(self, name: str, command: Sequence[str]) -> BwrapSandbox | None:
        """Start a command of the form `env -i NAME=VALUE… PROGRAM…` in a pod; None where it does not run."""
        with self._lock:
            pod = self._pods.get(name)
        if pod is None:
            return None
        if tuple(command[:2]) != ("env", "-i"):
            raise AssertionError(f"the environment of {command!r} is not its own")
        words = list(command[2:])
        environment = dict(words.pop(0).split("=", 1) for _ in range(len(words)) if "=" in words[0])
        spec = LaunchSpec(pod.workspace, pod.limits, environment=environment)
        with pod.lock:
            if pod.over:
                return None
            started = self._runtime.start(spec, words, [Mount(pod.agent, TARGET)])
            pod.execs.append(started)
        return started

    def check_memory(self, name: str) -> bool:
        """Whether the kernel has killed in it for memory: the whole container has ended then, as with `memory.oom.group`."""
        with self._lock:
            pod = self._pods.get(name)
        if pod is None or not any(sandbox.counters().out_of_memory for sandbox in pod.execs):
            return False
        ended = {"reason": "OOMKilled", "exitCode": 137}
        self._end(name, {"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]})
        return True

    def end(self, name: str, status: Mapping[str, Any]) -> None:
        """End a pod for a reason; it stays an object."""
        self._end(name, dict(status))

    def remove(self, name: str) -> None:
        """End a pod, and then remove it."""
        self._store.change("pods", name, lambda pod: pod["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
        with self._lock:
            pod = self._pods.pop(name, None)
        if pod is not None:
            _kill(pod)
            with contextlib.suppress(OSError):
                pod.directory.cleanup()
        self._store.remove("pods", name)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for name in list(self._pods):
            self.remove(name)
        self._root.cleanup()

    def _end(self, name: str, status: Thing) -> None:
        self._tell(name, status)
        with self._lock:
            pod = self._pods.get(name)
        if pod is not None:
            _kill(pod)

    def _tell(self, name: str, status: Thing) -> None:
        self._store.change("pods", name, lambda pod: pod.update(status=status))

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            with self._lock:
                pods = list(self._pods.items())
            for name, pod in pods:
                if not pod.over and _size(pod.workspace) > pod.limits.disk_bytes:
                    message = f'Usage of EmptyDir volume "workspace" exceeds the limit "{pod.limits.disk_bytes}". '
                    self._end(name, {"phase": "Failed", "reason": "Evicted", "message": message})


def _kill(pod: Running) -> None:
    with pod.lock:
        pod.over = True
        for sandbox in pod.execs:
            with contextlib.suppress(SandboxFailed):
                sandbox.kill()
                sandbox.close()


def _size(directory: Path) -> int:
    total = 0
    for parent, _, files in os.walk(directory):
        for name in files:
            with contextlib.suppress(OSError):
                total += Path(parent, name).lstat().st_size
    return total
