"""System V and POSIX objects of the host that hold a secret and that everybody may use."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
from typing import Any, Final, Self

_CREATE: Final = 0o1000
_REMOVE: Final = 0
_SIZE: Final = 4096
_SET_VALUE: Final = 16


class SystemVObjects:
    """A shared memory segment, a message queue with a message, a semaphore, a POSIX message queue; use as a context manager."""

    def __init__(self) -> None:
        self.secret = f"secret-{secrets.token_hex(12)}"
        self.facts: dict[str, Any] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        libc = self._libc
        libc.shmat.restype = ctypes.c_void_p
        key = secrets.randbelow(0x7FFF0000) + 1
        with contextlib.ExitStack() as stack:
            segment = self._made(libc.shmget(key, _SIZE, _CREATE | 0o666), "shmget")
            stack.callback(libc.shmctl, segment, _REMOVE, None)
            address = ctypes.c_void_p(libc.shmat(segment, None, 0))
            ctypes.memmove(address, self.secret.encode(), len(self.secret))
            libc.shmdt(address)
            queue = self._made(libc.msgget(key, _CREATE | 0o666), "msgget")
            stack.callback(libc.msgctl, queue, _REMOVE, None)
            message = ctypes.create_string_buffer(b"\1" + b"\0" * 7 + self.secret.encode())
            self._made(libc.msgsnd(queue, message, len(self.secret), 0), "msgsnd")
            semaphore = self._made(libc.semget(key, 1, _CREATE | 0o666), "semget")
            stack.callback(libc.semctl, semaphore, 0, _REMOVE)
            self._made(libc.semctl(semaphore, 0, _SET_VALUE, ctypes.c_int(key % 30000 + 1)), "semctl")
            self.facts = {"ipc_key": key, "semaphore_value": key % 30000 + 1}
            self.facts["posix_queue"] = self._posix_queue(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _posix_queue(self, stack: contextlib.ExitStack) -> str:
        """Its name; empty where the kernel has none."""
        name = f"/dualtrack-{secrets.token_hex(6)}".encode()
        with contextlib.suppress(OSError, AttributeError):
            before = os.umask(0)
            try:
                queue = self._made(self._libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o666, None), "mq_open")
            finally:
                os.umask(before)
            stack.callback(self._libc.mq_unlink, name)
            self._made(self._libc.mq_send(queue, self.secret.encode(), len(self.secret), 0), "mq_send")
            self._libc.mq_close(queue)
            return name.decode()
        return ""

    @staticmethod
    def _made(result: int, what: str) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), what)
        return result
