"""Starting a program under its limits, by the sandbox's own `/bin/sh`: limits must be set between fork and exec.

A spawn does not copy the agent's memory, however much is preloaded into it; with the shell in between it still takes half the time of a
fork of the agent itself (1.1 against 2.1 ms). The dialects of `ulimit` in dash, bash and busybox are all served.
"""

from __future__ import annotations

import os
import resource
import signal

from . import children

_SHELL = "/bin/sh"
_BLOCK = 512  # unit of `ulimit -f` (POSIX)
_KIB = 1024
_DEFAULTS = [*children.IGNORED, signal.SIGPIPE, signal.SIGXFSZ]


def spawn(argv: list[str], env: dict[str, str], stdin: int, stdout: int, stderr: int, limits: dict[str, int]) -> int:
    """Start `argv` in a session of its own; `argv[0]` is looked up on the PATH of `env`. Returns its process number.

    Raises:
        OSError: it could not be started; EAGAIN where there are as many processes as there may be.
    """
    return os.posix_spawn(
        _SHELL,
        ["sh", "-c", script(limits), "sh", *argv],
        env,
        file_actions=[(os.POSIX_SPAWN_DUP2, stdin, 0), (os.POSIX_SPAWN_DUP2, stdout, 1), (os.POSIX_SPAWN_DUP2, stderr, 2)],
        setsid=True,
        setsigdef=_DEFAULTS,
    )


def script(limits: dict[str, int]) -> str:
    """What the shell does before it becomes the command."""
    cpu = _within(limits["cpu_s"] + 1, resource.RLIMIT_CPU)
    steps = [
        "ulimit -c 0",
        "ulimit -S -t %d" % max(1, cpu - 1),  # SIGXCPU, which names the reason; a second later SIGKILL
        "ulimit -H -t %d" % cpu,
        "ulimit -f %d" % max(1, _within(limits["file_bytes"], resource.RLIMIT_FSIZE) // _BLOCK),
        "ulimit -n %d" % _within(limits["open_files"], resource.RLIMIT_NOFILE),
    ]
    if "memory_bytes" in limits:
        steps.append("ulimit -v %d" % max(1, _within(limits["memory_bytes"], resource.RLIMIT_AS) // _KIB))
    if "processes" in limits:
        count = _within(limits["processes"], resource.RLIMIT_NPROC)
        steps.append("{ ulimit -u %d || ulimit -p %d; } 2>/dev/null" % (count, count))
    # The kernel shall kill it before the agent, where it can tell them apart.
    return "{ echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null; " + " && ".join([*steps, 'exec "$@"'])


def _within(wanted: int, kind: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
