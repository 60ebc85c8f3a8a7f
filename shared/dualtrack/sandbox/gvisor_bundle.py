"""OCI bundles for runsc: a root that is nothing but mount points, shared by a process's sandboxes, and the configuration of one."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dualtrack.sandbox.container_seccomp import gvisor_profile
from dualtrack.sandbox.rung import WORKSPACE, LaunchSpec, Mount
from dualtrack.sandbox.system_view import ETC, GROUP, PASSWD, SANDBOX_ID, SHM_BYTES, SYSTEM_DIRECTORIES, TMP_BYTES, environment

AGENT_DESCRIPTORS: Final = 4096
"""Open files that the agent, and no command, may have."""
TASKS_EACH: Final = 4
"""Threads of this machine for each process inside, at most: gVisor's kernel panics where it can't have those it needs."""
OWN_TASKS: Final = 256
"""Those of gVisor itself, at most."""
_OCI_VERSION: Final = "1.0.2"
_POINTS: Final = ("usr", "etc", "tmp", "proc", "dev", "sys", "run", "workspace")
_CAPABILITY_SETS: Final = ("bounding", "effective", "permitted", "inheritable", "ambient")
_NAMESPACES: Final = ("pid", "network", "ipc", "uts", "mount")
_GUARD_IDS: Final = (65533, 65532)


@dataclass(frozen=True, slots=True)
class Ids:
    """Whose rights gVisor's own processes have on this machine, and who the agent is inside."""

    inside: int
    outside: int | None
    """User that the agent's files belong to; None: the present, unprivileged user, who is 0 inside."""
    guard: int | None = None
    """User that gVisor's kernel and file server run as, who is 0 in their user namespace."""

    @classmethod
    def for_root(cls, uid: int) -> Ids:
        """For a process of root: nothing of a sandbox runs as root on this machine. `uid` owns the files."""
        return cls(SANDBOX_ID, uid, next(guard for guard in _GUARD_IDS if guard != uid))

    @classmethod
    def rootless(cls) -> Ids:
        """For a process of an ordinary user, who may map no user but itself."""
        return cls(0, None)


def write_root(directory: Path) -> None:
    """Make the root of all sandboxes in a new directory.

    Raises:
        OSError: it can't be written.
    """
    directory.mkdir()
    for name in _POINTS:
        (directory / name).mkdir()
    for name in SYSTEM_DIRECTORIES:
        path = Path("/", name)
        if path.is_symlink():
            (directory / name).symlink_to(path.readlink())
        elif path.is_dir():
            (directory / name).mkdir()
    _write_etc(directory / "etc")
    for path_text, names, files in os.walk(directory):
        for name, mode in (*((name, 0o755) for name in names), *((name, 0o644) for name in files)):
            path = Path(path_text, name)
            if not path.is_symlink():
                path.chmod(mode)
    directory.chmod(0o755)


def _write_etc(directory: Path) -> None:
    for name in ETC:
        source, target = Path("/etc", name), directory / name
        target.parent.mkdir(exist_ok=True)
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, target, symlinks=True)
        elif source.exists():
            shutil.copy2(source, target, follow_symlinks=False)
    (directory / "passwd").write_bytes(PASSWD)
    (directory / "group").write_bytes(GROUP)


def make_mount_points(root: Path, mounts: Sequence[Mount]) -> None:
    """Where something is shown in a sandbox there must be something already: gVisor's file server may not write to the root.

    Raises:
        OSError: it can't be made, or there is nothing to show.
    """
    for mount in mounts:
        point = root / mount.target.lstrip("/")
        if mount.source.is_dir():
            point.mkdir(parents=True, exist_ok=True)
        elif not mount.source.exists():  # runsc does not say which one
            raise FileNotFoundError(errno.ENOENT, "there is nothing to show", str(mount.source))
        else:
            point.parent.mkdir(parents=True, exist_ok=True)
            point.touch()


def system_mounts(interpreter: Path | None) -> list[Mount]:
    """What of this machine is shown; `interpreter`: prefix of a Python installation outside /usr."""
    paths = [Path("/usr"), *(Path("/", name) for name in SYSTEM_DIRECTORIES)]
    mounts = [Mount(path, str(path)) for path in paths if path.is_dir() and not path.is_symlink()]
    return mounts if interpreter is None else [*mounts, Mount(interpreter, str(interpreter))]


def config(root: Path, ids: Ids, interpreter: Path | None, spec: LaunchSpec, argv: Sequence[str]) -> bytes:
    """The bundle's `config.json`.

    Args:
        root: what `write_root` made.
        ids: of the users.
        interpreter: prefix of a Python installation outside /usr, which goes on the PATH.
        spec: its workspace, all that is mounted, environment and limits.
        argv: what is started inside.
    """
    limits = spec.limits
    mounts = [_bind(mount.source, mount.target) for mount in spec.mounts]
    mounts += [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "noexec", "mode=755"]},
        _tmpfs("/dev/shm", SHM_BYTES),  # noqa: S108 - the sandbox's own
        _tmpfs("/tmp", TMP_BYTES),  # noqa: S108 - the sandbox's own
        _bind(spec.workspace, WORKSPACE, writable=spec.writable),
    ]
    document: dict[str, Any] = {
        "ociVersion": _OCI_VERSION,
        "hostname": "sandbox",
        "root": {"path": str(root), "readonly": True},
        "mounts": mounts,
        "process": {
            "terminal": False,
            "user": {"uid": ids.inside, "gid": ids.inside, "additionalGids": []},
            "args": list(argv),
            "cwd": WORKSPACE,
            "env": [f"{name}={value}" for name, value in environment(interpreter, spec.environment).items()],
            "capabilities": {name: [] for name in _CAPABILITY_SETS},
            "noNewPrivileges": True,
            "rlimits": [
                _rlimit("RLIMIT_CORE", 0),
                _rlimit("RLIMIT_NOFILE", max(AGENT_DESCRIPTORS, limits.open_files)),
                # gVisor counts all processes of the sandbox's one user together.
                _rlimit("RLIMIT_NPROC", limits.processes + 1 + (spec.relay_port is not None)),  # with the agent and its relay
            ],
        },
        "linux": {"namespaces": [{"type": name} for name in _NAMESPACES]},
    }
    seccomp = gvisor_profile()
    if seccomp is not None:
        document["linux"]["seccomp"] = seccomp
    if ids.guard is not None and ids.outside is not None:
        mapped = [
            {"containerID": 0, "hostID": ids.guard, "size": 1},
            {"containerID": ids.inside, "hostID": ids.outside, "size": 1},
        ]
        document["linux"]["namespaces"].append({"type": "user"})
        document["linux"] |= {"uidMappings": mapped, "gidMappings": mapped}
    return json.dumps(document).encode()


def _bind(source: Path, target: str, *, writable: bool = False) -> dict[str, object]:
    options = ["bind", "private", "nosuid", "nodev", "rw" if writable else "ro"]
    return {"destination": target, "type": "bind", "source": str(source), "options": options}


def _tmpfs(target: str, size: int) -> dict[str, object]:
    return {"destination": target, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777", f"size={size}"]}


def _rlimit(name: str, value: int) -> dict[str, object]:
    return {"type": name, "hard": value, "soft": value}
