"""The command line of a container: what a sandbox gets of the engine. Each option is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dualtrack.domain.paths import CONTROL
from dualtrack.sandbox.rung import WORKSPACE, LaunchSpec
from dualtrack.sandbox.system_view import SHM_BYTES, TMP_BYTES

AGENT_DESCRIPTORS: Final = 4096
"""Open files that the agent, and no command, may have."""


@dataclass(frozen=True, slots=True)
class Image:
    """What containers are made of, and how."""

    name: str
    runtime: str
    """Empty: the engine's default."""
    seccomp: Path | None
    """Profile; None: the runtime filters system calls by itself."""
    user: int
    group: int


def create_options(image: Image, spec: LaunchSpec, argv: Sequence[str], labels: Mapping[str, str]) -> list[str]:
    """All arguments of `docker create`.

    Args:
        image: what it is made of.
        spec: its workspace, all that is mounted, environment and limits.
        argv: what is started, as the container's first process.
        labels: tell whose it is.
    """
    limits = spec.limits
    environment = {"HOME": WORKSPACE, "LANG": "C.UTF-8", "TMPDIR": "/tmp", **spec.environment}  # noqa: S108 - the sandbox's own
    result = [
        *("--interactive", "--pull", "never", "--log-driver", "none", "--restart", "no"),
        *("--network", "none", "--ipc", "private", "--cgroupns", "private", "--hostname", "sandbox"),
        *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--user", f"{image.user}:{image.group}", "--workdir", WORKSPACE),
        *("--tmpfs", f"/tmp:rw,exec,nosuid,nodev,size={TMP_BYTES},mode=1777", "--shm-size", str(SHM_BYTES)),  # noqa: S108
        *("--pids-limit", str(limits.processes + 1 + (spec.relay_port is not None))),  # with the agent and its relay
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
