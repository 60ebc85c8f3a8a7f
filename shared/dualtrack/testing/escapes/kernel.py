"""Kernel interfaces that no tool of an agent needs, and system calls that change the machine. All are tried with arguments that can do no
harm where they are let through: a refusal is told from a complaint about the arguments.
"""

from __future__ import annotations

from typing import Final

from dualtrack.testing.escapes.attempt import Attempt, Kind


def _attempt(name: str, tries: str, source: str, *, root: bool = False) -> Attempt:
    return Attempt(name, Kind.KERNEL, tries, source, root=root)


def _heard(name: str, tries: str, call: str, *arguments: str, root: bool = False) -> Attempt:
    return _attempt(name, tries, f"DETAIL = heard({', '.join([repr(call), *arguments])})", root=root)


_NAMESPACES: Final = (
    _heard("user-namespace", "make a user namespace, in which it is root", "unshare", "0x10000000"),
    _heard("mount-namespace", "make a mount namespace", "unshare", "0x00020000", root=True),
    _heard("cgroup-namespace", "make a control group namespace", "unshare", "0x02000000", root=True),
    _heard("time-namespace", "make a time namespace", "unshare", "0x00000080", root=True),
    _attempt(
        "clone-user-namespace",
        "start a process in a user namespace of its own",
        "pid = call('clone', 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)",
    ),
    _heard("clone3", "start a process by clone3, whose flags no filter can see", "clone3", "0", "0"),
    _heard("mount", "mount a file system over its /tmp", "mount", "b'none'", "b'/tmp'", "b'tmpfs'", "0", "0", root=True),
    _heard("remount", "make the root file system writable", "mount", "0", "WORKSPACE.encode()", "0", "4096 | 32", "0", root=True),
    _heard("bind-mount", "show a directory at another place", "mount", "b'/usr'", "b'/tmp'", "0", "4096", "0", root=True),
    _heard("unmount", "take away a mount that hides something", "umount2", "b'/proc/sys'", "2 | 8", root=True),
    _heard("fsopen", "mount by the new calls (fsopen)", "fsopen", "b'tmpfs'", "0", root=True),
    _heard("open-tree", "copy a tree of mounts (open_tree)", "open_tree", "-100", "b'/'", "1", root=True),
    _heard("move-mount", "move a mount (move_mount)", "move_mount", "-1", "b''", "-1", "b''", "0", root=True),
    _heard(
        "mount-setattr",
        "change a mount's attributes (mount_setattr)",
        "mount_setattr",
        "-1",
        "b''",
        "0x1000",
        "buffer(32)",
        "32",
        root=True,
    ),
    _heard("list-mounts", "list all mounts, hidden ones too (listmount)", "listmount", "buffer(32)", "buffer(64)", "4", "0"),
    _heard("chroot", "change the root directory, to climb out of it", "chroot", "b'.'", root=True),
    _heard("pivot-root", "change the root mount", "pivot_root", "b'.'", "b'.'", root=True),
)

_MACHINE: Final = (
    _heard("load-module", "load a kernel module", "init_module", "0", "0", "b''", root=True),
    _heard("load-module-file", "load a kernel module from a file", "finit_module", "-1", "b''", "0", root=True),
    _heard("unload-module", "unload a kernel module", "delete_module", "b'none-of-that-name'", "0x800", root=True),
    _heard("kexec", "start another kernel", "kexec_load", "0", "0", "0", "-1", root=True),
    _heard("kexec-file", "start another kernel from a file", "kexec_file_load", "-1", "-1", "0", "b''", "0", root=True),
    _heard("reboot", "restart the machine (with a wrong magic number)", "reboot", "0", "0", "0", "0", root=True),
    _heard("swap-on", "swap to a file of its choice", "swapon", "b'/none-of-that-name'", "0", root=True),
    _heard("swap-off", "turn swapping off", "swapoff", "b'/none-of-that-name'", root=True),
    _heard("accounting", "write process accounting to a file of its choice", "acct", "b'/none-of-that-name'", root=True),
    _heard("quota", "change quotas", "quotactl", "0x80000700", "b'/none-of-that-name'", "0", "0", root=True),
    _heard("quota-descriptor", "change quotas (quotactl_fd)", "quotactl_fd", "-1", "0x80000700", "0", "0", root=True),
    _heard("set-time", "set the machine's time zone to what it is", "settimeofday", "0", "buffer(8)", root=True),
    _heard(
        "adjust-clock", "adjust the machine's clock", "clock_adjtime", "0", "ctypes.create_string_buffer(b'\\x00\\x10', 208)", root=True
    ),
    _heard("host-name", "rename the machine", "sethostname", "os.uname().nodename.encode()", "len(os.uname().nodename)", root=True),
    _heard("domain-name", "rename the machine's domain", "setdomainname", "b'(none)'", "6", root=True),
    _heard("kernel-log", "read the kernel's log", "syslog", "3", "buffer(128)", "128", root=True),
    _heard("hang-up", "hang up the terminal of the machine", "vhangup", root=True),
    _heard("io-privileges", "get at the machine's ports (iopl)", "iopl", "3", root=True),
    _heard("io-ports", "get at the machine's ports (ioperm)", "ioperm", "0x80", "1", "1", root=True),
    _attempt(
        "core-pattern",
        "have the kernel run a program as root at the next crash (core_pattern)",
        "os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)",
        root=True,
    ),
    _attempt(
        "kernel-helpers",
        "have the kernel run a program as root (modprobe, hotplug, binfmt_misc, a control group's release agent)",
        "import glob\n"
        "paths = ['/proc/sys/kernel/modprobe', '/proc/sys/kernel/hotplug', '/sys/kernel/uevent_helper',\n"
        "  '/proc/sys/fs/binfmt_misc/register',"
        "  *glob.glob('/sys/fs/cgroup/*/release_agent'), *glob.glob('/sys/kernel/debug/*')[:1]]\n"
        "first_that_works([lambda p=p: os.open(p, os.O_WRONLY) for p in paths])",
        root=True,
    ),
    _attempt(
        "sysctl",
        "change a setting of the kernel",
        "import glob\n"
        "paths = ['vm/overcommit_memory', 'kernel/randomize_va_space', 'net/ipv4/ip_forward', 'user/max_user_namespaces']\n"
        "DETAIL = first_that_works([lambda p=p: os.open('/proc/sys/' + p, os.O_WRONLY) and p for p in paths])",
        root=True,
    ),
    _attempt("sysrq", "press the machine's reset key", "os.open('/proc/sysrq-trigger', os.O_WRONLY)", root=True),
    _attempt(
        "control-groups",
        "change its own limits in the control group file system",
        "import glob\n"
        "paths = [f for d in ('memory', 'pids', '.') for n in ('*.max', 'memory.limit_in_bytes', 'cgroup.procs')"
        " for f in glob.glob(f'/sys/fs/cgroup/{d}/{n}')]\n"
        "first_that_works([lambda p=p: os.open(p, os.O_WRONLY) for p in paths])",
        root=True,
    ),
    _attempt(
        "kernel-addresses",
        "read where the kernel lies in memory",
        "line = open('/proc/kallsyms').readline()\nif set(line.split(' ')[0]) <= {'0', ''}: raise Refused('all zeros')\nDETAIL = line[:60]",
        root=True,
    ),
    _attempt("kernel-keys", "read the list of the kernel's keys", "if not open('/proc/keys').read(): raise Refused('empty')", root=True),
    _attempt(
        "kernel-command-line",
        "read the command line of the machine's kernel",
        "DETAIL = open('/proc/cmdline').read()[:60]\nif not DETAIL: raise Refused('empty')",
    ),
    _attempt(
        "kernel-timers", "read the timers of all processes", "if not open('/proc/timer_list').read(1): raise Refused('empty')", root=True
    ),
    _attempt(
        "page-flags",
        "read what the machine's memory pages hold",
        "if not open('/proc/kpageflags', 'rb').read(8): raise Refused('empty')",
        root=True,
    ),
    _attempt("kernel-core", "read the kernel's memory", "if not open('/proc/kcore', 'rb').read(4): raise Refused('empty')", root=True),
    _attempt(
        "hardware",
        "learn what hardware the machine has, from /sys",
        "import glob\nDETAIL = first_that_works([lambda p=p: open(p).read().strip() for p in glob.glob('/sys/block/*/size')])",
    ),
    _attempt(
        "write-sys",
        "change a setting of the hardware in /sys",
        "import glob\nfirst_that_works([lambda p=p: os.open(p, os.O_WRONLY) for p in glob.glob('/sys/block/*/queue/read_ahead_kb')])",
        root=True,
    ),
)

_SURFACE: Final = (
    _heard("trace-init", "debug the sandbox's own init", "ptrace", "0x4206", "1", "0", "0", root=True),
    _heard("trace-me", "debug a child of its own", "ptrace", "0", "0", "0", "0"),
    _heard("init-memory", "read the memory of the sandbox's own init", "process_vm_readv", "1", "0", "0", "0", "0", "0"),
    _heard("bpf", "load a program into the kernel (bpf)", "bpf", "5", "buffer(128)", "128", root=True),
    _heard("bpf-map", "make a table in the kernel (bpf)", "bpf", "0", "buffer(72)", "72", root=True),
    _attempt(
        "perf",
        "count events of the processor (perf_event_open)",
        "import struct\n"
        "what = struct.pack('IIQQQQQ', 1, 112, 0, 0, 0, 0, 1 << 5 | 1 << 6)\n"  # a software clock, without the kernel's part
        "DETAIL = heard('perf_event_open', ctypes.create_string_buffer(what, 128), 0, -1, -1, 0)",
    ),
    _heard("userfaultfd", "stop the kernel in the middle of a copy (userfaultfd)", "userfaultfd", "0", root=True),
    _heard("userfaultfd-user", "stop its own page faults (userfaultfd, user mode only)", "userfaultfd", "1"),
    _heard("io-uring", "make system calls past the filter (io_uring)", "io_uring_setup", "4", "buffer(128)"),
    _heard("keyring", "reach the user's key ring, which no namespace separates", "keyctl", "0", "-4", "0"),
    _heard("add-key", "leave a key with the kernel", "add_key", "b'user'", "b'dualtrack-escape'", "b'x'", "1", "-2"),
    _heard("request-key", "have the kernel start its key program", "request_key", "b'user'", "b'none-of-that-name'", "0", "0"),
    _heard("fanotify", "watch all file accesses of a mount (fanotify)", "fanotify_init", "0x200", "0"),
    _heard("dcookie", "turn kernel cookies into paths", "lookup_dcookie", "0", "buffer(64)", "64", root=True),
    _heard("vmsplice", "put memory pages into a pipe (vmsplice)", "vmsplice", "-1", "buffer(16)", "1", "0"),
    _heard("segment-table", "install segments of its own (modify_ldt)", "modify_ldt", "0", "buffer(16)", "16"),
    _heard("address-randomisation", "turn address randomisation off", "personality", "0x0040000"),
    _heard("memory-policy", "choose memory nodes (set_mempolicy)", "set_mempolicy", "0", "0", "0"),
    _heard("migrate-pages", "move its memory between nodes", "migrate_pages", "0", "1", "buffer(8)", "buffer(8)"),
    _heard("secret-memory", "take memory that the kernel itself can't see (memfd_secret)", "memfd_secret", "0"),
    _heard("statmount", "ask for facts of mounts (statmount)", "statmount", "buffer(32)", "buffer(64)", "64", "0"),
    _heard("file-setattr", "set flags on files (file_setattr)", "file_setattr", "-100", "b'none-of-that-name'", "buffer(24)", "24", "0"),
    _heard("security-attribute", "change its security label (lsm_set_self_attr)", "lsm_set_self_attr", "100", "buffer(32)", "32", "0"),
    _attempt(
        "core-scheduling",
        "share a processor core's secrets with chosen processes only (prctl)",
        "if libc.prctl(62, 0, HOST['own_pid'], 0, 0) != 0: raise OSError(ctypes.get_errno(), 'prctl')",
        root=True,
    ),
    _attempt(
        "filter-listener",
        "take its own system call filter over, to answer calls of later programs (seccomp user notification)",
        "import struct\n"
        "allow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7FFF0000))\n"
        "libc.prctl(38, 1, 0, 0, 0)\n"
        "program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 1, ctypes.addressof(allow)))\n"
        "call('seccomp', 1, 8, program)",
    ),
)

KERNEL: Final = (*_NAMESPACES, *_MACHINE, *_SURFACE)
