"""Seeing, stopping and reading processes of the host."""

from __future__ import annotations

from typing import Final

from dualtrack.testing.escapes.attempt import Attempt, Kind, Proof, said_so
from dualtrack.testing.escapes.proofs import harmed_witness, leaked


def _attempt(name: str, tries: str, source: str, proof: Proof = said_so, *, root: bool = False, alone: bool = False) -> Attempt:
    return Attempt(name, Kind.PROCESSES, tries, source, proof, root=root, alone=alone)


_WITNESS: Final = "pid = HOST['witnesses'][NAME]\n"
"""Attempts with this in their source are given a process of the host, of the same user, to work on."""

PROCESSES: Final = (
    _attempt(
        "list-processes",
        "find processes of the host in /proc",
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "  try: line = open(f'/proc/{pid}/cmdline', errors='replace').read()\n"
        "  except OSError: continue\n"
        "  if 'witness-' in line: print(line)\n"
        "DETAIL = 'read all command lines'\n" + _WITNESS,
        leaked("witness_name"),
    ),
    _attempt("kill", "end a process of the host of the same user", _WITNESS + "os.kill(pid, signal.SIGTERM)", harmed_witness),
    _attempt(
        "stop",
        "stop a process of the host",
        _WITNESS + "os.kill(pid, signal.SIGSTOP)",
        harmed_witness,
    ),
    _attempt(
        "kill-by-pidfd",
        "end a process of the host through a process descriptor",
        _WITNESS + "call('pidfd_send_signal', call('pidfd_open', pid, 0), signal.SIGTERM, 0, 0)",
        harmed_witness,
    ),
    _attempt("kill-group", "end a process group of the host", _WITNESS + "os.killpg(pid, signal.SIGTERM)", harmed_witness),
    _attempt(
        "kill-launcher",
        "end the program that started the sandbox (only whether it could is asked: signal 0)",
        "os.kill(HOST['own_pid'], 0)",
        root=True,
    ),
    _attempt(
        "trace",
        "attach to a process of the host as its debugger",
        _WITNESS + "call('ptrace', 0x4206, pid, 0, 0)\n",  # PTRACE_SEIZE
    ),
    _attempt(
        "read-memory",
        "read the memory of a process of the host",
        _WITNESS + "DETAIL = read(f'/proc/{pid}/environ')",
        leaked("witness_memory"),
    ),
    _attempt(
        "read-memory-by-call",
        "read the memory of a process of the host by process_vm_readv",
        _WITNESS + "import struct\n"
        "start = next(int(l.split('-')[0], 16) for l in open(f'/proc/{pid}/maps') if '[stack]' in l)\n"
        "end = next(int(l.split()[0].split('-')[1], 16) for l in open(f'/proc/{pid}/maps') if '[stack]' in l)\n"
        "data = buffer(end - start)\n"
        "local = buffer(16)\n"
        "struct.pack_into('QQ', local, 0, ctypes.addressof(data), end - start)\n"
        "call('process_vm_readv', pid, local, 1, ctypes.create_string_buffer(struct.pack('QQ', start, end - start)), 1, 0)\n"
        "print(data.raw.strip(b'\\0').decode(errors='replace'))",
        leaked("witness_memory"),
    ),
    _attempt("write-memory", "open the memory of a process of the host for writing", _WITNESS + "os.open(f'/proc/{pid}/mem', os.O_RDWR)"),
    _attempt(
        "steal-descriptor",
        "take an open file out of a process of the host",
        _WITNESS + "call('pidfd_getfd', call('pidfd_open', pid, 0), 0, 0)",
    ),
    _attempt(
        "advise-memory",
        "throw a process' memory out of the machine's (process_madvise, process_mrelease)",
        _WITNESS + "fd = call('pidfd_open', pid, 0)\nDETAIL = heard('process_madvise', fd, buffer(16), 1, 21, 0)",
        root=True,
    ),
    _attempt("move-memory", "move a process' memory between nodes", _WITNESS + "call('move_pages', pid, 0, 0, 0, 0, 0)"),
    _attempt("compare", "compare what two processes of the host have open", _WITNESS + "call('kcmp', pid, pid, 2, 0, 0)"),
    _attempt("renice", "make a process of the host slow", _WITNESS + "os.setpriority(os.PRIO_PROCESS, pid, 19)", harmed_witness),
    _attempt(
        "reach-user",
        "reach all processes of the user at once, by a call that names the user (only asks for their niceness)",
        _WITNESS + "if os.getpriority(os.PRIO_USER, 0) > HOST['witness_niceness']: raise Refused('none of the host is among them')",
    ),
    _attempt(
        "limit", "change the resource limits of a process of the host", _WITNESS + "import resource\nresource.prlimit(pid, 4, (0, 0))"
    ),
    _attempt(
        "doom",
        "offer a process of the host to the out-of-memory killer",
        _WITNESS + "os.write(os.open(f'/proc/{pid}/oom_score_adj', os.O_WRONLY), b'1000')",
    ),
    _attempt(
        "affinity",
        "pin a process of the host to a processor",
        _WITNESS + "os.sched_setaffinity(pid, os.sched_getaffinity(pid))",
    ),
    _attempt(
        "enter-namespaces",
        "enter the namespaces of a process of the host",
        _WITNESS + "DETAIL = heard('setns', call('pidfd_open', pid, 0), 0x40000000)",
        root=True,
    ),
    _attempt(
        "signal-all",
        "signal every process that can be reached (by a signal that others ignore)",
        _WITNESS + "signal.signal(signal.SIGWINCH, signal.SIG_IGN)\nos.kill(-1, signal.SIGWINCH)",
        harmed_witness,
        alone=True,
    ),
)


def wants_witness(attempt: Attempt) -> bool:
    """Whether it works on a process of the host."""
    return "HOST['witnesses'][NAME]" in attempt.source
