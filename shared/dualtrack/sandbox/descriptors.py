"""Descriptors for programs that are started: pipes and anonymous files whose ends have owners, and waiting for them."""

from __future__ import annotations

import contextlib
import os
import resource
import select
from typing import Final

_SESSION: Final = 8
"""Descriptors that a session takes here, and room for the files that are moved and saved for it."""
_OTHERS: Final = 1024


def pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """The reading and the writing end of a pipe, each closed with its own stack."""
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends


def anonymous_file(owner: contextlib.ExitStack, content: bytes) -> int:
    """An anonymous file at its beginning, closed with `owner`."""
    descriptor = os.memfd_create("dualtrack", os.MFD_CLOEXEC)
    owner.callback(os.close, descriptor)
    write_all(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it to a blocking descriptor."""
    while content:
        content = content[os.write(descriptor, content) :]


def readable(descriptor: int, patience_s: float) -> bool:
    """Whether it can be read (a process: has ended, a pipe: has data or is at its end) by then."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(max(0.0, patience_s) * 1000))


def raise_limit(sessions: int) -> int:
    """Let this process have descriptors for so many sessions at once, as far as its hard limit goes; what it may have now.

    Many systems allow a process 1024 unless it asks for more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OTHERS + _SESSION * sessions
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
