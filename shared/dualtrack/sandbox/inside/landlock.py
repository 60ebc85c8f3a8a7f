"""Restricting this process, and all it will start, by the kernel's Landlock and a system call filter: no way back, no privileges needed.

Numbers are those of linux/landlock.h and linux/prctl.h; the system calls have the same ones on every architecture.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_GIVE_VERSION = 1
_RULE_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << bit for bit in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = (1 << bit for bit in range(13, 16))
_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Rights that files can have; all others are those of directories."""
READ = EXECUTE | READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | TRUNCATE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_FIFO | MAKE_SYM | REFER
DEVICE = READ_FILE | WRITE_FILE
_NETWORK = 3
"""Binding and connecting TCP sockets."""
_SCOPES = 3
"""Abstract unix sockets and signals: of processes outside, none is reached."""
_FIRST_WITH = ((1, (1 << 13) - 1), (2, REFER), (3, TRUNCATE), (5, IOCTL_DEV))
NETWORK_ABI = 4
SCOPES_ABI = 6

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_FILTER_BYTES = 8
"""Of one instruction."""

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def supported_abi() -> int:
    """The version of Landlock this kernel has; 0: none, or it is switched off."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_GIVE_VERSION))))


def no_new_privileges() -> None:
    """No program that is started from now on gets more rights than it was started with (setuid). Raises OSError."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def restrict(abi: int, rights: list[tuple[str, int]]) -> None:
    """Allow what is said, and nothing else of what this version of Landlock knows.

    Args:
        abi: the version to use, at most the supported one.
        rights: path and what is allowed on it and everything beneath; paths that are not there are left out.

    Raises:
        OSError: the kernel does not do it.
    """
    handled = 0
    for version, added in _FIRST_WITH:
        if abi >= version:
            handled |= added
    attributes = struct.pack("=Q", handled)
    if abi >= NETWORK_ABI:
        attributes += struct.pack("=Q", _NETWORK)
    if abi >= SCOPES_ABI:
        attributes += struct.pack("=Q", _SCOPES)
    ruleset = _check(_libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0)), "Landlock's ruleset")
    try:
        for path, allowed in rights:
            _allow(ruleset, path, allowed & handled)
        _check(_libc.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0)), "Landlock")
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, allowed: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            allowed &= _FILES
        rule = struct.pack("=Qi", allowed, descriptor)
        _check(_libc.syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_RULE_PATH_BENEATH), rule, ctypes.c_uint(0)), path)
    finally:
        os.close(descriptor)


def filter_calls(program: bytes) -> None:
    """Install a system call filter, a BPF program. Needs `no_new_privileges` first. Raises OSError."""
    buffer = ctypes.create_string_buffer(program, len(program))
    filled = _Program(len(program) // _FILTER_BYTES, ctypes.cast(buffer, ctypes.c_void_p))
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filled), 0, 0), "the system call filter")


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (what, os.strerror(number)))
    return result
