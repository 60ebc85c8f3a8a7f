"""The bubblewrap command line: what a sandbox sees of this machine. Measured and tried against escapes; each option is needed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dualtrack.sandbox.rung import LaunchSpec
from dualtrack.sandbox.system_view import ETC, SANDBOX_ID, SHM_BYTES, SYSTEM_DIRECTORIES, TMP_BYTES, environment

_HIDDEN_IN_PROC: Final = ("cmdline", "keys", "key-users", "kallsyms", "timer_list", "kpageflags", "kpagecount")


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Inherited file descriptors that bubblewrap reads from; it closes them before the command starts."""

    passwd: int
    group: int
    seccomp: int
    status: int


@dataclass(frozen=True, slots=True)
class Variant:
    """What differs between machines.

    `disable_userns` needs a writable /proc/sys, and a fresh /proc one that nothing is mounted over: a container has neither by default.
    Without the first, the system call filter alone forbids new user namespaces; without the second, the sandbox has an empty /proc.
    """

    disable_userns: bool = True
    proc: bool = True


VARIANTS: Final = (Variant(), Variant(disable_userns=False), Variant(disable_userns=False, proc=False))


def options(variant: Variant, interpreter: Path | None, spec: LaunchSpec, descriptors: Descriptors) -> list[str]:
    """All options for one sandbox, for `bwrap --args`.

    Args:
        variant: what this machine allows.
        interpreter: prefix of a Python installation outside /usr to show read-only and put on the PATH.
        spec: its workspace, further mounts and environment (the sandbox's own PATH, HOME, LANG and TMPDIR can be overridden).
        descriptors: inherited descriptors.
    """
    result = [
        *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup"),
        *(["--disable-userns"] if variant.disable_userns else []),
        *("--uid", str(SANDBOX_ID), "--gid", str(SANDBOX_ID), "--hostname", "sandbox"),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
    ]
    for name, value in environment(interpreter, spec.environment).items():
        result += ["--setenv", name, value]
    result += _system(descriptors)
    if interpreter:
        result += ["--ro-bind", str(interpreter), str(interpreter)]
    result += _kernel(variant)
    result += ["--size", str(TMP_BYTES), "--perms", "1777", "--tmpfs", "/tmp"]  # noqa: S108 - the sandbox's own
    result += ["--size", str(SHM_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108 - the sandbox's own
    for mount in spec.mounts:
        result += ["--ro-bind", str(mount.source), mount.target]
    result += ["--bind" if spec.writable else "--ro-bind", str(spec.workspace), "/workspace", "--remount-ro", "/", "--chdir", "/workspace"]
    result += ["--seccomp", str(descriptors.seccomp), "--json-status-fd", str(descriptors.status)]
    return result


def _system(descriptors: Descriptors) -> list[str]:
    result = ["--ro-bind", "/usr", "/usr"]
    for name in SYSTEM_DIRECTORIES:
        path = f"/{name}"
        if os.path.islink(path):  # noqa: PTH114 - a merged /usr
            result += ["--symlink", os.readlink(path), path]  # noqa: PTH115 - as it stands, relative
        elif os.path.isdir(path):  # noqa: PTH112
            result += ["--ro-bind", path, path]
    result += ["--dir", "/etc"]
    for name in ETC:
        result += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    result += ["--perms", "0444", "--file", str(descriptors.passwd), "/etc/passwd"]
    result += ["--perms", "0444", "--file", str(descriptors.group), "/etc/group"]
    return result


def _kernel(variant: Variant) -> list[str]:
    """/proc and /dev."""
    if not variant.proc:
        return ["--dir", "/proc", "--dev", "/dev"]
    result = ["--proc", "/proc"]
    for name in _HIDDEN_IN_PROC:
        if os.path.exists(f"/proc/{name}"):  # noqa: PTH110
            result += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    return [*result, "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"]
