"""Ways around a system call filter: other calling conventions, and arguments whose upper half the kernel ignores and a filter may not."""

from __future__ import annotations

from typing import Final

from dualtrack.testing.escapes.attempt import Attempt, Kind


def _attempt(name: str, tries: str, source: str, *, root: bool = False) -> Attempt:
    return Attempt(name, Kind.ABI, tries, source, root=root)


_HIGH: Final = "0x100000000 | "

ABI: Final = (
    _attempt(
        "32-bit-call",
        "make a system call of 32-bit x86 (int 0x80), which a filter for 64-bit does not know",
        "if call_by_int_0x80(20) != os.getpid(): raise Refused('answered by something else')",  # getpid
    ),
    _attempt("32-bit-keyring", "reach the user's key ring by a 32-bit call", "call_by_int_0x80(288, 0, -4 & 0xFFFFFFFF)"),
    _attempt("32-bit-unshare", "make a user namespace by a 32-bit call", "call_by_int_0x80(310, 0x10000000)"),
    _attempt(
        "x32-call", "make a system call of the x32 interface", "if call_x32(39) != os.getpid(): raise Refused('answered by something else')"
    ),
    _attempt("x32-keyring", "reach the user's key ring by an x32 call", "call_x32(250, 0, -4)"),
    _attempt("x32-unshare", "make a user namespace by an x32 call", "call_x32(272, 0x10000000)"),
    _attempt("terminal-injection", "type into its controlling terminal (TIOCSTI, CVE-2017-5226)", "DETAIL = in_terminal(0x5412)"),
    _attempt(
        "terminal-injection-high-bits",
        "type into its terminal, with a bit in the half of the request that the kernel ignores (CVE-2019-10063)",
        "DETAIL = in_terminal(" + _HIGH + "0x5412)",
    ),
    _attempt("console-paste", "paste into its terminal (TIOCLINUX)", "DETAIL = in_terminal(0x541C)"),
    _attempt("socket-high-bits", "open a vsock, with a bit in the ignored half of its family", "call('socket', " + _HIGH + "40, 1, 0)"),
    _attempt(
        "packet-high-bits",
        "open a packet socket, with a bit in the ignored half of its family",
        "call('socket', " + _HIGH + "17, 3, 0)",
        root=True,
    ),
    _attempt(
        "netlink-high-bits",
        "open a netlink socket of another protocol, with a bit in the ignored half",
        "call('socket', 16, 3, " + _HIGH + "4)",
    ),
    _attempt(
        "clone-high-bits",
        "start a process in a user namespace, with a bit in the ignored half of the flags",
        "pid = call('clone', " + _HIGH + "0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)",
    ),
    _attempt(
        "setid-high-bits",
        "set a setuid bit, with bits in the ignored half of the mode",
        "fd = os.open(NAME, os.O_CREAT | os.O_RDWR)\n"
        "call('fchmod', fd, " + _HIGH + "0o4755)\n"
        "mode = os.fstat(fd).st_mode\n"
        "os.unlink(NAME)\n"
        "if not mode & 0o4000: raise Refused('the bit is not set')",
    ),
    _attempt(
        "setid-openat2",
        "make a setuid file by openat2, whose mode lies in memory",
        "import struct\n"
        "how = ctypes.create_string_buffer(struct.pack('QQQ', os.O_CREAT | os.O_RDWR, 0o4755, 0))\n"
        "fd = call('openat2', -100, NAME.encode(), how, 24)\n"
        "mode = os.fstat(fd).st_mode\n"
        "os.unlink(NAME)\n"
        "if not mode & 0o4000: raise Refused('the bit is not set')",
    ),
    _attempt(
        "setid-fchmodat2",
        "set a setuid bit by fchmodat2",
        "open(NAME, 'w').close()\ntry: call('fchmodat2', -100, NAME.encode(), 0o4755, 0)\nfinally: os.unlink(NAME)",
    ),
    _attempt(
        "far-call",
        "switch to 32-bit mode by a far return and make a call from there",
        "import mmap\n"
        "if platform.machine() != 'x86_64': raise Refused('only x86_64 has this way in')\n"
        "low = ctypes.CDLL(None).mmap\n"
        "low.restype = ctypes.c_void_p\n"
        "page = low(ctypes.c_void_p(0x20000000), ctypes.c_size_t(8192), 7, 0x32, -1, ctypes.c_long(0))\n"  # private, anonymous, 32-bit
        "if page is None or page >= 1 << 32: raise Refused('no memory below 4 GiB')\n"
        # push rbx; mov r8,rsp; mov rsp,page+0x1f00; push 0x23; push page+0x40; retfq; 32 bit: mov eax,20; int 0x80; jmp far 0x33:page+0x60
        "p = page.to_bytes(4, 'little')\n"
        "at = lambda n: (page + n).to_bytes(4, 'little')\n"
        "program = b'\\x53\\x49\\x89\\xe0\\xbc' + at(0x1f00) + b'\\x6a\\x23\\x68' + at(0x40) + b'\\x48\\xcb'\n"
        "program = program.ljust(0x40, b'\\x90') + b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xea' + at(0x60) + b'\\x33\\0'\n"
        "program = program.ljust(0x60, b'\\x90') + b'\\x4c\\x89\\xc4\\x5b\\xc3'\n"
        "ctypes.memmove(page, program, len(program))\n"
        "if ctypes.CFUNCTYPE(ctypes.c_int)(page)() != os.getpid(): raise Refused('answered by something else')",
    ),
)
