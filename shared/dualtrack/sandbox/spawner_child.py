"""The program of a spawner process (see `spawner`): starts other programs for its owner, and ends with it.

What it has started it ends first, and whatever that has left: it is a subreaper, so all orphans become its children. (A bubblewrap that is
killed while it starts leaves its init waiting for it forever.)

Run as a file by `python -I -S`, as the unprivileged user from the start of its loop on; imports nothing but the standard library.

A request is one message on the socket at descriptor 0: JSON `{"executable", "argv"}` with the descriptors that the program gets as 0, 1, 2
and so on. The answer is `{"pid"}` with a pidfd of it, or `{"error"}`.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import select
import signal
import socket
import sys
from typing import Final

MESSAGE_BYTES: Final = 96 * 1024
"""Longest request or answer."""
MAX_DESCRIPTORS: Final = 16
"""Most descriptors of one program. Received ones lie above these numbers, so that none is overwritten before it is in its place."""
_PR_SET_CHILD_SUBREAPER: Final = 36
_IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


def main() -> None:
    """Arguments: process number of the owner, and the user to become (-1: stay)."""
    owner, user = (int(argument) for argument in sys.argv[1:3])
    watched = os.pidfd_open(owner)
    if os.getppid() != owner:  # it died meanwhile, and the number is another's
        return
    channel = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    while (reserved := os.open(os.devnull, os.O_RDONLY)) < MAX_DESCRIPTORS:
        pass
    os.close(reserved)
    if user >= 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Whoever stops a service tells every process of it; sandboxes end when their owner says so.
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    try:
        _serve(channel, watched)
    finally:
        _end_all()


def _serve(channel: socket.socket, watched: int) -> None:
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    started: set[int] = set()
    waiting = select.poll()
    for descriptor in (channel.fileno(), watched, ended):
        waiting.register(descriptor, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in waiting.poll()}
        if watched in ready:
            return
        if ended in ready:
            os.read(ended, 4096)
            _reap(started)
        if channel.fileno() in ready and not _answer(channel, started):
            return


def _answer(channel: socket.socket, started: set[int]) -> bool:
    """Serve one request; False when the owner has closed the channel."""
    try:
        message, descriptors = receive(channel)
    except ConnectionResetError:
        return False
    if not message:
        return False
    given: list[int] = []
    try:
        request = json.loads(message)
        pid = os.posix_spawn(
            request["executable"],
            request["argv"],
            {},
            file_actions=[(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(descriptors)],
            setsigdef=[*_IGNORED, signal.SIGCHLD],
        )
        started.add(pid)
        given = [os.pidfd_open(pid)]  # before it is reaped, which only this thread does
        answer: dict[str, object] = {"pid": pid}
    except OSError as error:
        answer = {"error": str(error)}
    try:
        socket.send_fds(channel, [json.dumps(answer).encode()], given)
    except (BrokenPipeError, ConnectionResetError):
        return False
    finally:
        for descriptor in (*descriptors, *given):
            os.close(descriptor)
    return True


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """One message and its descriptors, which no program inherits (`socket.recv_fds` can't do that). Empty: the other end is closed.

    Raises:
        OSError: as `recvmsg`.
    """
    descriptors = array.array("i")
    message, ancillary, _, _ = channel.recvmsg(
        MESSAGE_BYTES, socket.CMSG_SPACE(MAX_DESCRIPTORS * descriptors.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return message, list(descriptors)


def _reap(started: set[int]) -> None:
    """Take note of what has ended, and end what it has left."""
    try:
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            started.discard(pid)
    except ChildProcessError:
        return
    for pid in _children() - started:
        os.kill(pid, signal.SIGKILL)


def _end_all() -> None:
    try:
        while True:
            for pid in _children():
                os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def _children() -> set[int]:
    """Process numbers of our children, ended ones too."""
    own = os.getpid()
    try:
        with open(f"/proc/{own}/task/{own}/children", "rb") as file:  # noqa: PTH123 - pathlib would double the time to start
            return {int(pid) for pid in file.read().split()}
    except OSError:  # a kernel without it
        return {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) == own}  # noqa: PTH208 - as above


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


if __name__ == "__main__":
    main()
