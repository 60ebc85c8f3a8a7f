"""Descriptors for programs that are started: pipes and anonymous files whose ends have owners, and waiting for them."""

from __future__ import annotations

import contextlib
import os
import select


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
