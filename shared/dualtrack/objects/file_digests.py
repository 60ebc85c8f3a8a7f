"""Digests of files on this machine, remembered for as long as a file can't have changed unseen."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections import OrderedDict
from typing import Final

MAX_FILES: Final = 250_000
"""Files remembered by a process, at about 230 bytes each, and 120 for digests that no manifest in memory shares."""
_MARGIN_NS: Final = 20_000_000  # where the clock of file times can't be read; Linux's coarsest tick is 10 ms
_LINUX: Final = os.uname().sysname == "Linux"
_CLOCK_REALTIME_COARSE: Final = 5  # linux/time.h; the time module names it not

_KEY: Final = struct.Struct("=QQQqq")


def file_clock_ns() -> int:
    """The time, in nanoseconds since the epoch, that a file changed from now on gets as its `ctime`, or an earlier one."""
    if _LINUX:
        return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
    return time.time_ns() - _MARGIN_NS


class FileDigests:
    """SHA-256 by device, inode, size, mtime and ctime. Thread-safe; the least recently used are forgotten first.

    Programs can set a file's mtime, not its ctime. A change within the same tick of the clock would go unseen, so a file
    is only remembered when its last change lies in an earlier tick than its reading (git calls the others "racily clean").
    """

    def __init__(self, max_files: int = MAX_FILES) -> None:
        self._max = max_files
        self._digests: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, status: os.stat_result) -> str | None:
        """The digest of the file that has this status, if it is known."""
        key = _key(status)
        with self._lock:
            digest = self._digests.get(key)
            if digest is not None:
                self._digests.move_to_end(key)
            return digest

    def remember(self, status: os.stat_result, digest: str, *, read_ns: int) -> None:
        """The file had this status before and after it was read, which began at `read_ns` of `file_clock_ns`."""
        if status.st_ctime_ns >= read_ns:
            return
        with self._lock:
            self._digests[_key(status)] = digest
            if len(self._digests) > self._max:
                self._digests.popitem(last=False)


def _key(status: os.stat_result) -> bytes:
    return _KEY.pack(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
