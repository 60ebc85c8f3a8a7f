"""The system call filter of the rungs that share this kernel: a deny-list that leaves threads, multiprocessing, asyncio and sqlite working.

Without it bubblewrap lets user namespaces, ptrace of its own pid 1, keyctl, io_uring, perf, userfaultfd and AF_VSOCK through.
Everything denied answers EPERM, except calls with a well-known older form, which answer ENOSYS so that libraries fall back to it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Final, Protocol

from dualtrack.domain.errors import SandboxUnavailable

_DENIED: Final = (
    # namespaces and mounts
    *("unshare", "setns", "mount", "umount", "umount2", "pivot_root", "chroot"),
    # other processes' memory, and the kernel's key rings
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "add_key", "request_key", "keyctl"),
    # large attack surfaces that no tool needs
    *("bpf", "perf_event_open", "io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd"),
    *("open_by_handle_at", "name_to_handle_at", "fanotify_init", "lookup_dcookie", "vmsplice", "vhangup", "modify_ldt"),
    # the machine itself
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff", "acct", "quotactl"),
    *(
        "settimeofday",
        "clock_settime",
        "adjtimex",
        "clock_adjtime",
        "sethostname",
        "setdomainname",
        "syslog",
        "iopl",
        "ioperm",
        "nfsservctl",
    ),
    *("mknod", "mknodat", "personality"),
)
# By number (the same on every architecture from 424 on), since older libseccomp releases do not know the names.
_DENIED_NUMBERS: Final = (
    *(428, 429, 430, 431, 432, 433),  # open_tree move_mount fsopen fsconfig fsmount fspick
    *(438, 440, 442, 443, 457, 458, 467),  # pidfd_getfd process_madvise mount_setattr quotactl_fd statmount listmount open_tree_attr
    *(447, 459, 460, 461, 469),  # memfd_secret, lsm_get_self_attr lsm_set_self_attr lsm_list_modules, file_setattr
)
_ABSENT_NUMBERS: Final = (435, 437, 452)  # clone3, openat2, fchmodat2: their arguments lie in memory or have an older, filtered form
# Where no namespace hides what is the machine's: sockets but pairs (a unix socket's path is not for Landlock to refuse, nor is UDP), and
# System V's and POSIX's shared objects.
_DENIED_IN_THE_OPEN: Final = (
    *("socket", "shmget", "shmat", "shmctl", "msgget", "msgsnd", "msgrcv", "msgctl", "semget", "semop", "semtimedop", "semctl", "ipc"),
    *("mq_open", "mq_unlink", "migrate_pages", "move_pages"),
)
# The first argument is a process; any but the caller may be another sandbox's of the same user.
_SELF_ONLY: Final = ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")
# Of kind (argument 0) and number (argument 1): kinds that are a whole user's.
_OF_USERS: Final = (("setpriority", 2), ("getpriority", 2), ("ioprio_set", 3), ("ioprio_get", 3))
_CLONE_NEW_FLAGS: Final = (0x00000080, 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
_SETID_BITS: Final = (stat.S_ISUID, stat.S_ISGID)
_O_TMPFILE: Final = 0o20000000
_TERMINAL_INJECTION: Final = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_AF_UNIX: Final = 1
_AF_NETLINK: Final = 16
_FAMILIES: Final = frozenset({1, 2, 10, _AF_NETLINK})  # UNIX, INET, INET6, NETLINK (NETLINK_ROUTE only)
_FAMILY_END: Final = 64
_INTERNET: Final = (2, 10)
_LAST_PROTOCOL: Final = 58  # ICMPv6; TCP, UDP and ICMP are below, SCTP, UDP-Lite, raw and multipath TCP above
_DCCP: Final = 33
_NEW_LISTENER: Final = 8  # SECCOMP_FILTER_FLAG_NEW_LISTENER
_LOW_32_BITS: Final = 0xFFFFFFFF


class _Rules(Protocol):
    """The part of `pyseccomp.SyscallFilter` used to add rules."""

    def add_rule(self, action: int, syscall: int, *arguments: object) -> None:
        """Add one."""
        ...


@cache
def filter_program(*, namespaces: bool = True) -> bytes:
    """The filter as a BPF program; built once per process (under 1 ms).

    `namespaces`: the sandbox has namespaces of its own; else more is denied that would reach beyond it.

    Raises:
        SandboxUnavailable: when libseccomp is missing.
    """
    try:
        import pyseccomp
    except (ImportError, RuntimeError) as error:
        raise SandboxUnavailable(
            "The sandbox needs libseccomp: install the system package 'libseccomp2' (Debian, Ubuntu) or 'libseccomp' "
            f"(Fedora, Arch) and the Python package 'pyseccomp' ({error})."
        ) from error
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    deny = pyseccomp.ERRNO(errno.EPERM)
    _add_calls(pyseccomp, rules, deny)
    _add_arguments(pyseccomp, rules, deny)
    if not namespaces:
        _add_in_the_open(pyseccomp, rules, deny)
    descriptor = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "r+b") as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _add_calls(pyseccomp: ModuleType, rules: _Rules, deny: int) -> None:
    for name in _DENIED:
        number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
        if number >= 0:  # negative: this architecture has no such call
            rules.add_rule(deny, number)
    for number in _DENIED_NUMBERS:
        rules.add_rule(deny, number)
    for number in _ABSENT_NUMBERS:
        rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), number)


def _add_arguments(pyseccomp: ModuleType, rules: _Rules, deny: int) -> None:
    """Calls that are denied for some arguments only."""

    def masked(index: int, bits: int) -> object:
        return pyseccomp.Arg(index, pyseccomp.MASKED_EQ, bits, bits)

    def add(name: str, *arguments: object) -> None:
        number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
        if number >= 0:
            rules.add_rule(deny, number, *arguments)

    for flag in _CLONE_NEW_FLAGS:
        add("clone", masked(0, flag))
    for request in _TERMINAL_INJECTION:
        add("ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, _LOW_32_BITS, request))
    for bit in _SETID_BITS:
        add("chmod", masked(1, bit))
        add("fchmod", masked(1, bit))
        add("fchmodat", masked(2, bit))
        add("creat", masked(1, bit))
        for creating in (os.O_CREAT, _O_TMPFILE):  # otherwise the mode argument is not read, and holds anything
            add("open", masked(1, creating), masked(2, bit))
            add("openat", masked(2, creating), masked(3, bit))
    add("seccomp", masked(1, _NEW_LISTENER))
    _add_sockets(pyseccomp, add)


def _add_sockets(pyseccomp: ModuleType, add: Callable[..., None]) -> None:
    """Sockets of other families, and protocols that no tool speaks."""
    for family in range(_FAMILY_END):
        if family not in _FAMILIES:
            add("socket", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _LOW_32_BITS, family))
    add("socket", pyseccomp.Arg(0, pyseccomp.GE, _FAMILY_END))
    for family in _INTERNET:
        of_family = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _LOW_32_BITS, family)
        add("socket", of_family, pyseccomp.Arg(2, pyseccomp.GT, _LAST_PROTOCOL))
        add("socket", of_family, pyseccomp.Arg(2, pyseccomp.MASKED_EQ, _LOW_32_BITS, _DCCP))
    add("socket", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _LOW_32_BITS, _AF_NETLINK), pyseccomp.Arg(2, pyseccomp.GT, 0))


def _add_in_the_open(pyseccomp: ModuleType, rules: _Rules, deny: int) -> None:
    """Calls that namespaces would make harmless."""

    def add(name: str, *arguments: object) -> None:
        number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
        if number >= 0:
            rules.add_rule(deny, number, *arguments)

    for name in _DENIED_IN_THE_OPEN:
        add(name)
    for name in _SELF_ONLY:
        add(name, pyseccomp.Arg(0, pyseccomp.NE, 0))
    for name, users in _OF_USERS:
        add(name, pyseccomp.Arg(1, pyseccomp.NE, 0))
        add(name, pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _LOW_32_BITS, users))
    add("socketpair", pyseccomp.Arg(0, pyseccomp.NE, _AF_UNIX))
