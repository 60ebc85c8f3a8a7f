"""What a forked child does before it becomes what was asked for: it keeps nothing of the agent, and gets the limits of one command."""

from __future__ import annotations

import os
import resource
import signal

from . import system

IGNORED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTSTP,
)
"""Signals the agent ignores, so that an ordinary `kill` or `pkill` inside does not end the session."""
DESCRIPTORS = 4096
"""Above every descriptor the agent has: its own limit on them."""
CONTROL = 3
"""Descriptor by which the lasting interpreter speaks to the agent."""
_OOM_FIRST = b"1000"


def settle(stdin: int, stdout: int, stderr: int, control: int = -1) -> None:
    """Take three descriptors as 0, 1 and 2 (and `control` as 3), close all others, and be an ordinary process in a session of its own."""
    os.setsid()
    os.dup2(stdin, 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    if control >= 0 and control != CONTROL:
        os.dup2(control, CONTROL, inheritable=False)
    os.closerange(CONTROL if control < 0 else CONTROL + 1, DESCRIPTORS)
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    system.set_dumpable(True)  # also makes its files in /proc its own, which the next step needs
    try:
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        try:
            os.write(descriptor, _OOM_FIRST)
        finally:
            os.close(descriptor)
    except OSError:  # no /proc, or a kernel without it: then nothing distinguishes it from the agent
        pass


def limit(limits: dict[str, int], *, lasting: bool = False) -> None:
    """Set resource limits.

    Args:
        limits: `cpu_s`, `file_bytes`, `open_files`; `memory_bytes` and `processes` where nothing outside limits these.
        lasting: the process goes on to other commands with limits of theirs: only soft limits are set, CPU time from now.
    """
    set_limit(resource.RLIMIT_CORE, 0, 0)
    cpu = limits["cpu_s"]
    if lasting:
        used = resource.getrusage(resource.RUSAGE_SELF)
        set_limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + cpu)
    else:
        set_limit(resource.RLIMIT_CPU, cpu, cpu + 1)  # SIGXCPU, which names the reason; a second later SIGKILL
    for name, kind in (
        ("file_bytes", resource.RLIMIT_FSIZE),
        ("open_files", resource.RLIMIT_NOFILE),
        ("memory_bytes", resource.RLIMIT_AS),
        ("processes", resource.RLIMIT_NPROC),
    ):
        if name in limits:
            set_limit(kind, limits[name], None if lasting else limits[name])


def set_limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, or the lower one that already holds; `hard` None: the one that holds."""
    most = resource.getrlimit(kind)[1]
    if hard is None:
        hard = most
    elif most != resource.RLIM_INFINITY:
        hard = min(hard, most)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(kind, (soft, hard))
