"""The command line of a container: what a sandbox gets of the engine. Each option is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dualtrack.domain.limits import KIB
from dualtrack.domain.paths import CONTROL
from dualtrack.sandbox.gvisor_bundle import AGENT_DESCRIPTORS, OWN_TASKS, TASKS_EACH
from dualtrack.sandbox.rung import WORKSPACE, Enforced, LaunchSpec
from dualtrack.sandbox.system_view import SHM_BYTES, TMP_BYTES

_EMPTY_BYTES: Final = 64 * KIB


@dataclass(frozen=True, slots=True)
class Image:
    """What containers are made of, and how."""

    name: str
    runtime: str
    """Empty: the engine's default."""
    seccomp: Path | None
    """Profile; None: the runtime filters system calls by itself."""
    own_kernel: bool
    """Whether the runtime puts one of its own between (gVisor), whose threads the engine counts instead of the processes inside."""
    user: int
    group: int
    enforced: Enforced


def create_options(image: Image, spec: LaunchSpec, argv: Sequence[str], labels: Mapping[str, str]) -> list[str]:
    """All arguments of `docker create`.

    Args:
        image: what it is made of.
        spec: its workspace, all that is mounted, environment and limits.
        argv: what is started, as the container's first process.
        labels: tell whose it is.
    """
    limits = spec.limits
    tasks = limits.processes + 1 + (spec.relay_port is not None)  # with the agent and its relay
    if image.own_kernel:
        tasks = OWN_TASKS + TASKS_EACH * limits.processes
    environment = {"HOME": WORKSPACE, "LANG": "C.UTF-8", "TMPDIR": "/tmp", **spec.environment}  # noqa: S108 - the sandbox's own
    result = [
        *("--interactive", "--pull", "never", "--log-driver", "none", "--restart", "no"),
        *("--network", "none", "--ipc", "private", "--cgroupns", "private", "--hostname", "sandbox"),
        *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--user", f"{image.user}:{image.group}", "--workdir", WORKSPACE),
        # Over the machine's hardware, its names and numbers, which are nobody's business.
        *("--tmpfs", f"/sys:ro,noexec,nosuid,nodev,size={_EMPTY_BYTES},mode=555"),
        *("--tmpfs", f"/tmp:rw,exec,nosuid,nodev,size={TMP_BYTES},mode=1777", "--shm-size", str(SHM_BYTES)),  # noqa: S108
        *("--pids-limit", str(tasks)),
        *("--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes)),
        *("--ulimit", "core=0", "--ulimit", f"nofile={max(AGENT_DESCRIPTORS, limits.open_files)}"),
        *("--mount", _bind(spec.workspace, WORKSPACE, writable=spec.writable)),
    ]
    for mount in spec.mounts:
        result += ["--mount", _bind(mount.source, mount.target)]
    if image.seccomp is not None:
        result += ["--security-opt", f"seccomp={image.seccomp}"]
    if image.runtime:
        result += ["--runtime", image.runtime]
    for key, value in labels.items():
        result += ["--label", f"{key}={value}"]
    for key, value in environment.items():
        result += ["--env", f"{key}={value}"]
    return [*result, "--entrypoint", argv[0], image.name, *argv[1:]]


def _bind(source: Path, target: str, *, writable: bool = False) -> str:
    text = str(source.absolute())
    if "," in text or '"' in text or CONTROL.search(text):
        raise ValueError(f"Docker can't mount a directory with such a name: {text!r}.")
    return f"type=bind,source={text},target={target}" + ("" if writable else ",readonly")
