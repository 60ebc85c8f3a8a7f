"""The system call filter of containers: an allow-list, kept as JSON in Docker's form beside this module (`container_seccomp.json`).

It lets through what ordinary programs need. What the filter of bubblewrap denies (`seccomp`) is not in it; against Docker's own default
it also takes away vsock and other unusual sockets, ptrace, process_vm_*, io_uring, keyrings and setuid bits.
"""

from __future__ import annotations

import json
import platform
from functools import cache
from importlib import resources
from typing import Any, Final

_FILE: Final = "container_seccomp.json"
_ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


@cache
def docker_profile() -> str:
    """The profile as Docker takes it."""
    return resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8")


@cache
def gvisor_profile() -> dict[str, Any] | None:
    """The profile as runsc takes it, in an OCI configuration; None on an architecture it is not written for.

    gVisor denies with EPERM whatever error is asked for. Libraries fall back to older calls on ENOSYS only: that is what it answers to
    calls that are to be shown to a tracer, where there is none.
    """
    architecture = _ARCHITECTURES.get(platform.machine())
    if architecture is None:
        return None
    document = json.loads(docker_profile())
    rules = []
    for rule in document["syscalls"]:
        kept = {name: value for name, value in rule.items() if name not in {"comment", "errnoRet"}}
        if "errnoRet" in rule:
            kept["action"] = "SCMP_ACT_TRACE"
        rules.append(kept)
    return {"defaultAction": document["defaultAction"], "architectures": [architecture], "syscalls": rules}
