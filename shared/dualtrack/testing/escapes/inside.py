"""Runs attempts inside a sandbox (or, as the control, outside of any), each in a process of its own; a report line for each.

Standard library only and alone in its file, since it is handed to `python3 -c`; standard input is a JSON object: `host` (what the attempts
know of the host), `attempts` (name and source of each) and `patience_s` for each. A report is one JSON line after `MARK`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import platform
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

MARK = "escape-report:"
OUTPUT_BYTES = 32768
ARM = platform.machine() == "aarch64"
WORKSPACE = os.getcwd()  # noqa: PTH109 - a text, and pathlib need not be loaded

libc = ctypes.CDLL(None, use_errno=True)

NUMBERS = {  # x86_64, aarch64 (-1: has none); from 424 on they are the same everywhere
    "ioctl": (16, 29),
    "socket": (41, 198),
    "clone": (56, 220),
    "ptrace": (101, 117),
    "syslog": (103, 116),
    "personality": (135, 92),
    "vhangup": (153, 58),
    "modify_ldt": (154, -1),
    "pivot_root": (155, 41),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "lookup_dcookie": (212, 18),
    "clock_settime": (227, 112),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "migrate_pages": (256, 238),
    "unshare": (272, 97),
    "vmsplice": (278, 75),
    "move_pages": (279, 239),
    "fallocate": (285, 47),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "clock_adjtime": (305, 266),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "finit_module": (313, 273),
    "seccomp": (317, 277),
    "memfd_create": (319, 279),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "execveat": (322, 281),
    "userfaultfd": (323, 282),
    "pkey_alloc": (330, 289),
    "chroot": (161, 51),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "semget": (64, 190),
    "semctl": (66, 191),
    "mq_open": (240, 180),
    "inotify_init1": (294, 26),
    "openat": (257, 56),
    "fchmod": (91, 52),
    "mknodat": (259, 33),
    "pidfd_send_signal": (424, 424),
    "io_uring_setup": (425, 425),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "pidfd_open": (434, 434),
    "clone3": (435, 435),
    "openat2": (437, 437),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "mount_setattr": (442, 442),
    "quotactl_fd": (443, 443),
    "memfd_secret": (447, -1),
    "process_mrelease": (448, 448),
    "fchmodat2": (452, 452),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "lsm_set_self_attr": (460, 460),
    "open_tree_attr": (467, 467),
    "file_setattr": (469, 469),
}
REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_executable: list[mmap.mmap] = []  # kept as long as the functions in them


class Refused(Exception):
    """It did not work, and this is why."""


def call(name: str, *arguments: Any) -> int:
    """A system call by number: what it returns. Raises `OSError` where it fails, whatever the reason."""
    number = NUMBERS[name][1 if ARM else 0]
    if number < 0:
        raise Refused(f"this architecture has no {name}")
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return int(result)


def heard(name: str, *arguments: Any) -> str:
    """A system call with arguments that can do no harm: worked if the kernel looked at them, whatever it then says of them."""
    try:
        return f"{name} answered {call(name, *arguments)}"
    except OSError as error:
        if error.errno in REFUSALS:
            raise
        return f"{name} went as far as {errno.errorcode.get(error.errno or 0, error.errno)}"


def buffer(size: int) -> Any:
    """Zeroed memory to pass to a call."""
    return ctypes.create_string_buffer(size)


def first_that_works(attempts: list[Callable[[], Any]]) -> Any:
    """The result of the first of these functions that is not refused. Raises the last refusal."""
    last: Exception = Refused("nothing to try")
    for attempt in attempts:
        try:
            return attempt()
        except (OSError, Refused) as error:
            last = error
    raise last


def code(machine_code: bytes) -> Callable[[int, int, int], int]:
    """A function made of machine code: takes up to three numbers, returns one."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(machine_code)
    function = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_long)(
        ctypes.addressof(ctypes.c_char.from_buffer(memory))
    )
    _executable.append(memory)
    return function


def call_by_int_0x80(number: int, first: int = 0, second: int = 0) -> int:
    """A system call of 32-bit x86 from a 64-bit process."""
    if platform.machine() != "x86_64":
        raise Refused("only x86_64 has this way in")
    # push rbx; mov eax,edi; mov ebx,esi; mov ecx,edx; xor edx,edx; xor esi,esi; xor edi,edi; int 0x80; movsxd rax,eax; pop rbx; ret
    result = code(b"\x53\x89\xf8\x89\xf3\x89\xd1\x31\xd2\x31\xf6\x31\xff\xcd\x80\x48\x63\xc0\x5b\xc3")(number, first, second)
    if -4096 < result < 0:
        raise OSError(-result, f"32-bit call {number}")
    return result


def call_x32(number: int, first: int = 0, second: int = 0) -> int:
    """A system call of the x32 interface."""
    if platform.machine() != "x86_64":
        raise Refused("only x86_64 has this way in")
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(0x40000000 | number), ctypes.c_long(first), ctypes.c_long(second))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"x32 call {number}")
    return int(result)


def linger(marker: str, *, hold: bool = False) -> None:
    """Become a long sleep with that marker in its command line; `hold`: with all that is open."""
    if not hold:
        os.closerange(0, 64)
    os.execvp("sleep", ["sleep", marker])


def in_terminal(request: int) -> str:
    """An ioctl on the controlling terminal of a session of its own."""
    import pty

    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.setsid()
            _, terminal = pty.openpty()
            libc.ioctl(terminal, 0x540E, 0)  # TIOCSCTTY
            try:
                os.write(tell, f"0 {heard('ioctl', terminal, request, b'x')}".encode())
            except OSError as error:
                os.write(tell, str(error.errno).encode())
        os._exit(0)
    os.close(tell)
    os.waitpid(pid, 0)
    number, _, text = os.read(told, 4096).decode().partition(" ")
    if not number:
        raise Refused("the process ended")
    if number != "0":
        raise OSError(int(number), "ioctl")
    if "ENOTTY" in text:
        raise Refused("there is no such request")
    return text


def read(path: str, size: int = 4096) -> str:
    """The beginning of a file; prints it, for the host to find its secret in it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        data = os.read(descriptor, size)
    finally:
        os.close(descriptor)
    os.write(1, data)
    return f"read {len(data)} bytes"


def knock(family: int, address: Any, name: str, kind: int = socket.SOCK_STREAM) -> str:
    """Connect to a listener of the host and say who knocks."""
    with socket.socket(family, kind) as sock:
        sock.settimeout(2)
        sock.connect(address)
        sock.sendall(name.encode())
    return f"sent to {address!r}"


def _report(name: str, said: str, detail: str, output: str) -> None:
    text = json.dumps({"name": name, "said": said, "detail": detail[:300], "output": output})
    os.write(1, f"\n{MARK}{text}\n".encode())


def _execute(attempt: dict[str, str], host: dict[str, Any]) -> tuple[str, str]:
    """What it says of itself, and a detail."""
    names: dict[str, Any] = dict(globals(), HOST=host, NAME=attempt["name"], DETAIL="")
    try:
        exec(compile(attempt["source"], attempt["name"], "exec"), names)
        said, detail = "worked", str(names["DETAIL"])
    except Refused as refusal:
        said, detail = "refused", str(refusal)
    except OSError as error:
        said, detail = "refused", errno.errorcode.get(error.errno or 0, type(error).__name__)
    except MemoryError:
        said, detail = "refused", "MemoryError"
    except BaseException:  # noqa: BLE001 - whatever it is, it is a mistake of the attempt
        said, detail = "broken", traceback.format_exc()[-300:]
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    return said, detail


def _child(attempt: dict[str, str], host: dict[str, Any], say: int, output: int) -> None:
    os.setpgid(0, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    with contextlib.suppress(OSError):  # a sandbox may have no /dev
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.write(say, json.dumps(_execute(attempt, host)).encode())


def _run(attempt: dict[str, str], host: dict[str, Any], patience: float) -> None:
    say_read, say = os.pipe()
    out_read, out = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(say_read)
        os.close(out_read)
        with contextlib.suppress(BaseException):
            _child(attempt, host, say, out)
        os._exit(0)
    os.close(say)
    os.close(out)
    printed, verdict, deadline = b"", b"", time.monotonic() + patience
    waiting = [say_read, out_read]
    while say_read in waiting and time.monotonic() < deadline:
        for ready in select.select(waiting, [], [], max(0.0, deadline - time.monotonic()))[0]:
            data = os.read(ready, 65536)
            if not data:
                waiting.remove(ready)
            elif ready == say_read:
                verdict += data
            else:
                printed = (printed + data)[:OUTPUT_BYTES]
    os.set_blocking(out_read, False)
    with contextlib.suppress(BlockingIOError):
        printed = (printed + os.read(out_read, 65536))[:OUTPUT_BYTES]
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)
    late = time.monotonic() >= deadline
    status = os.waitpid(child, 0)[1]
    os.close(say_read)
    os.close(out_read)
    if verdict:
        said, detail = json.loads(verdict)
    elif late:
        said, detail = "refused", f"no answer in {patience:g} s"
    else:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        said, detail = "refused", f"killed by {signal.Signals(number).name}" if number else "its process ended"
    _report(attempt["name"], said, detail, printed.decode(errors="replace"))


def main() -> None:
    """All attempts that standard input lists; a single one runs in this process itself."""
    order = json.loads(sys.stdin.buffer.read())
    attempts, host = order["attempts"], order["host"]
    if len(attempts) == 1:
        said, detail = _execute(attempts[0], host)
        _report(attempts[0]["name"], said, detail, "")
        return
    for attempt in attempts:
        _run(attempt, host, order["patience_s"])


if __name__ == "__main__":
    main()
