"""Files in and out through the agent, for sandboxes that share no file system with their host.

Inside the sandbox nothing has to be kept from following links: whoever lays a trap here catches only what is theirs.
"""

from __future__ import annotations

import json
import os
import stat

from . import protocol
from .protocol import Fields
from .wire import CHUNK, Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Entry = tuple[str, str, int, int, int, str]
    """Path, kind (file, directory, link, other), mode, size, modification time in ns, target of a link."""

FILE, DIRECTORY, LINK, OTHER = "f", "d", "l", "o"
MAX_DEPTH = 200
_BATCH = 100
"""Entries in one frame."""
_BATCH_CHARS = 5000
"""Characters of paths and targets in one frame of several entries: as JSON a character takes up to 6 bytes. A single one has 8,192."""


class Files:
    """The workspace, which is the current directory."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._open: dict[int, tuple[int, Fields]] = {}
        """Files being written, by channel."""

    def list(self, channel: int, _: bytes) -> None:
        """Send what is there."""
        self._stream(self._listing(channel))

    def get(self, channel: int, payload: bytes) -> None:
        """Send a regular file."""
        path = Fields(payload).text("path")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            self._refuse(channel, error)
            return
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            self._refuse(channel, OSError("no regular file"))
            return
        self._stream(self._content(channel, descriptor))

    def put(self, channel: int, payload: bytes) -> None:
        """Create or replace a file, whose content follows, or a directory or link."""
        fields = Fields(payload)
        path, kind = fields.text("path"), fields.text("type")
        mode = fields.number("mode", 0, 0o777)
        try:
            if kind == DIRECTORY:
                if not _is_directory(path):
                    _remove(path)
                    os.mkdir(path)
                os.chmod(path, mode)
            elif kind == LINK:
                _remove(path)
                os.symlink(fields.text("target"), path)
            else:
                _remove(path)
                self._open[channel] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), fields
                return
        except OSError as error:
            self._refuse(channel, error)
            return
        self._done(channel)

    def data(self, channel: int, payload: bytes) -> None:
        """More of a file that is being written; what comes after a failure is dropped."""
        if channel in self._open:
            try:
                rest = memoryview(payload)
                while rest:
                    rest = rest[os.write(self._open[channel][0], rest) :]
            except OSError as error:
                os.close(self._open.pop(channel)[0])
                self._refuse(channel, error)

    def data_end(self, channel: int, _: bytes) -> None:
        """The end of it."""
        if channel in self._open:
            descriptor, fields = self._open.pop(channel)
            try:
                os.fchmod(descriptor, fields.number("mode", 0, 0o777))
                changed = fields.number("mtime_ns")
                os.utime(descriptor, ns=(changed, changed))
            except OSError as error:
                self._refuse(channel, error)
                return
            finally:
                os.close(descriptor)
            self._done(channel)

    def remove(self, channel: int, payload: bytes) -> None:
        """Remove what is named, with all that is in it."""
        try:
            for path in Fields(payload).texts("paths"):
                _remove(path)
        except OSError as error:
            self._refuse(channel, error)
            return
        self._done(channel)

    def _listing(self, channel: int) -> Iterator[bytes]:
        batch: list[Entry] = []
        size = 0
        for entry in _walk(".", 0):
            length = len(entry[0]) + len(entry[5])
            if batch and (len(batch) >= _BATCH or size + length > _BATCH_CHARS):
                yield protocol.frame(protocol.ENTRIES, channel, json.dumps({"entries": batch}).encode())
                batch, size = [], 0
            batch.append(entry)
            size += length
        if batch:
            yield protocol.frame(protocol.ENTRIES, channel, json.dumps({"entries": batch}).encode())
        yield protocol.frame(protocol.DONE, channel)

    def _content(self, channel: int, descriptor: int) -> Iterator[bytes]:
        try:
            while True:
                try:
                    data = os.read(descriptor, CHUNK)
                except OSError as error:
                    self._refuse(channel, error)
                    return
                if not data:
                    break
                yield protocol.frame(protocol.DATA, channel, data)
        finally:
            os.close(descriptor)
        yield protocol.frame(protocol.DONE, channel)

    def _stream(self, frames: Iterator[bytes]) -> None:
        """Send as much as the host reads, and go on when it has read more."""
        for data in frames:
            self._wire.send(data)
            if self._wire.full:
                self._wire.when_relieved(lambda: self._stream(frames))
                return

    def _done(self, channel: int) -> None:
        self._wire.send(protocol.frame(protocol.DONE, channel))

    def _refuse(self, channel: int, error: OSError) -> None:
        self._wire.send(protocol.control(protocol.REFUSED, channel, error=str(error), errno=error.errno or 0))


def _walk(directory: str, depth: int) -> Iterator[Entry]:
    try:
        with os.scandir(directory) as listing:
            found = list(listing)
    except OSError:
        return
    for item in found:
        try:
            status = item.stat(follow_symlinks=False)
            kind, target = OTHER, ""
            if stat.S_ISREG(status.st_mode):
                kind = FILE
            elif stat.S_ISDIR(status.st_mode):
                kind = DIRECTORY
            elif stat.S_ISLNK(status.st_mode):
                kind, target = LINK, os.readlink(item.path)
        except OSError:  # gone meanwhile
            continue
        yield item.path[2:], kind, stat.S_IMODE(status.st_mode) & 0o777, status.st_size, status.st_mtime_ns, target
        if kind == DIRECTORY and depth < MAX_DEPTH:
            yield from _walk(item.path, depth + 1)


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _remove(path: str) -> None:
    """Whatever is there, if anything."""
    if not _is_directory(path):
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        return
    os.chmod(path, 0o700)
    for name in os.listdir(path):
        _remove(path + "/" + name)
    os.rmdir(path)
