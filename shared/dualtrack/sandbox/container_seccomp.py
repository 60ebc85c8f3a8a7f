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

_SIGNALLING: Final = ("kill", "tgkill")
"""Their first argument is a process."""
_DENIED_IN_GVISOR: Final = ("tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
"""Forms of those that nothing needs."""
_PID_BITS: Final = 16
"""gVisor has no process numbers of more. A rule for each of the bits takes some of the 4096 instructions that a filter may have."""


@cache
def docker_profile() -> str:
    """The profile as Docker takes it."""
    return resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8")


@cache
def gvisor_profile() -> dict[str, Any] | None:
    """The profile as runsc takes it, in an OCI configuration; None on an architecture it is not written for.

    gVisor denies with EPERM whatever error is asked for. Libraries fall back to older calls on ENOSYS only: that is what it answers to
    calls that are to be shown to a tracer, where there is none. And it lets processes end the first one of their namespace, which Linux
    does not: signals for that one, the agent, are denied.
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
        elif "args" not in rule:
            kept["names"] = [name for name in rule["names"] if name not in (*_SIGNALLING, *_DENIED_IN_GVISOR)]
        rules.append(kept)
    rules += [{"names": list(_SIGNALLING), "action": "SCMP_ACT_ALLOW", "args": [condition]} for condition in _not_the_first_process()]
    return {"defaultAction": document["defaultAction"], "architectures": [architecture], "syscalls": rules}


def _not_the_first_process() -> list[dict[str, object]]:
    """Conditions of which one holds where the first argument is any process or group but number 1.

    A plain comparison would be one of 64 bits, the upper half of which the kernel ignores.
    """
    group, nobody = (0x80000000, 0x80000000), (0xFFFFFFFF, 0)
    others = [(1 << bit, 1 << bit) for bit in range(1, _PID_BITS)]
    return [{"index": 0, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"} for mask, value in (group, nobody, *others)]
