"""Resource limits, set by the sandbox's own `/bin/sh` just before it becomes the command.

Set inside the sandbox because the process limit then counts within its user namespace only, and because a thread of a worker must not run
Python code between fork and exec. The dialects of `ulimit` in dash, bash and busybox are all served.
"""

from __future__ import annotations

import resource

from dualtrack.domain.limits import KIB, SandboxLimits

_BLOCK = 512  # unit of `ulimit -f` (POSIX)


def limited(argv: tuple[str, ...], limits: SandboxLimits, *, address_space: bool, processes: bool) -> list[str]:
    """`argv` under limits on CPU seconds, file size and open files, without core dumps.

    Args:
        argv: the command.
        limits: the figures; where this process's own hard limit is lower, that one holds.
        address_space: also limit each process's address space to `memory_bytes` (where no control group limits memory).
        processes: also limit the number of processes (where no control group does).
    """
    cpu = _within(limits.cpu_time_s + 1, resource.RLIMIT_CPU)
    script = [
        "ulimit -c 0",
        f"ulimit -S -t {max(1, cpu - 1)}",  # SIGXCPU, which names the reason; a second later SIGKILL
        f"ulimit -H -t {cpu}",
        f"ulimit -f {max(1, _within(limits.file_bytes, resource.RLIMIT_FSIZE) // _BLOCK)}",
        f"ulimit -n {_within(limits.open_files, resource.RLIMIT_NOFILE)}",
    ]
    if address_space:
        script.append(f"ulimit -v {max(1, _within(limits.memory_bytes, resource.RLIMIT_AS) // KIB)}")
    if processes:
        count = _within(limits.processes + 1, resource.RLIMIT_NPROC)  # one more: the sandbox's own init
        script.append(f"{{ ulimit -u {count} || ulimit -p {count}; }} 2>/dev/null")
    script.append('exec "$@"')
    return ["/bin/sh", "-c", " && ".join(script), "sh", *argv]


def _within(wanted: int, kind: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
