"""The workspace of a sandbox that shares no file system with its host: a directory here, one inside, made equal through the agent.

Only what differs is sent: files are taken for equal where size, modification time and mode are.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import InvalidPath
from dualtrack.domain.limits import SandboxLimits
from dualtrack.domain.paths import workspace_path
from dualtrack.objects.cancelling import Check
from dualtrack.objects.nofollow import DIRECTORY_FLAGS, change_mode, opened
from dualtrack.objects.trees import MAX_TARGET_BYTES, WorkspaceTooLarge, parent_of, regular_file, remove, scan
from dualtrack.sandbox.inside import protocol
from dualtrack.sandbox.inside.files import DIRECTORY, FILE, LINK
from dualtrack.sandbox.wire import AgentLost, AgentWire, Frame

_WINDOW: Final = 32
"""Files asked for or sent without waiting for the answer."""
_REMOVALS: Final = 500
"""Paths in one request: however long they are, it stays within its limit."""
_NUMBERS: Final = 2**63
_QUIET_S: Final = 30.0
_LOOK_S: Final = 0.2
"""Between two looks at whether to go on, while the agent says nothing."""
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, directory or link, on either side."""

    kind: str
    mode: int
    size: int = 0
    mtime_ns: int = 0
    target: str = ""


class Mirror:
    """Both ways. The caller has the wire to itself, and nothing inside runs meanwhile. Raises `Cancelled` once `check` does, in the middle
    of the conversation.
    """

    def __init__(self, wire: AgentWire, next_channel: Callable[[], int], workspace: Path, limits: SandboxLimits, check: Check) -> None:
        self._wire = wire
        self._next_channel = next_channel
        self._workspace = workspace
        self._limits = limits
        self._check = check
        self._answered: set[int] = set()
        self._strays: list[str] = []
        """What is inside and no workspace can hold."""

    def push(self) -> None:
        """Make what is inside equal to what is here.

        Raises:
            ProtocolError: the agent has gone, does not speak the protocol, or could not write a file.
        """
        with opened(self._workspace, DIRECTORY_FLAGS) as root:
            here, there = self._here(root), self._there()
            gone = _tops([*self._strays, *(path for path, entry in there.items() if path not in here or here[path].kind != entry.kind)])
            waiting: deque[int] = deque()
            for at in range(0, len(gone), _REMOVALS):
                waiting.append(self._next_channel())
                self._wire.send(protocol.control(protocol.REMOVE, waiting[-1], paths=gone[at : at + _REMOVALS]))
            for path, entry in here.items():
                self._check()
                if _differ(entry, there.get(path)):
                    channel = self._next_channel()
                    self._wire.send(_put(channel, path, entry))
                    if entry.kind == FILE:
                        self._send_file(root, path, channel)
                    waiting.append(channel)
                    self._settle(waiting, _WINDOW)
            self._settle(waiting, 0)

    def pull(self) -> None:
        """Make what is here equal to what is inside; what no workspace can hold (FIFOs, names that are no text) is left out.

        Raises:
            ProtocolError: the agent has gone, or does not speak the protocol.
            WorkspaceTooLarge: there is more than `disk_bytes` or `disk_files` inside.
        """
        with opened(self._workspace, DIRECTORY_FLAGS) as root:
            here, there = self._here(root), self._there()
            gone = _tops(path for path, entry in here.items() if path not in there or there[path].kind != entry.kind)
            for path in gone:
                with parent_of(root, path) as (parent, name):
                    remove(parent, name, self._check)
            here = _without(here, gone)
            wanted: deque[tuple[str, Entry]] = deque()
            for path, entry in sorted(there.items()):
                self._check()
                if not _differ(entry, here.get(path)):
                    continue
                if entry.kind == FILE:
                    wanted.append((path, entry))
                    continue
                with parent_of(root, path) as (parent, name):
                    if entry.kind == LINK:
                        remove(parent, name)
                        os.symlink(entry.target, name, dir_fd=parent)
                    elif path not in here:
                        os.mkdir(name, dir_fd=parent)
                        change_mode(name, entry.mode, parent)
                    else:
                        change_mode(name, entry.mode, parent)
            while wanted:
                self._fetch(root, [wanted.popleft() for _ in range(min(_WINDOW, len(wanted)))])

    def _here(self, root: int) -> dict[str, Entry]:
        tree = scan(root, max_entries=self._limits.disk_files, max_bytes=self._limits.disk_bytes, check=self._check)
        kinds = {stat.S_IFREG: FILE, stat.S_IFDIR: DIRECTORY, stat.S_IFLNK: LINK}
        return {
            path: _entry(
                kinds[stat.S_IFMT(found.status.st_mode)],
                found.status.st_mode,
                found.status.st_size,
                max(0, found.status.st_mtime_ns),
                found.target,
            )
            for path, found in tree.found.items()
        }

    def _there(self) -> dict[str, Entry]:
        channel = self._next_channel()
        self._wire.send(protocol.frame(protocol.LIST, channel))
        found: dict[str, Entry] = {}
        size = count = 0
        for kind, payload in self._answers(channel):
            if kind == protocol.DONE:
                return found
            if kind != protocol.ENTRIES:
                raise protocol.ProtocolError(f"the agent answered with a frame of kind {kind}")
            for path, entry in _entries(payload):
                count += 1
                size += entry.size if entry.kind == FILE else 0
                if count > self._limits.disk_files or size > self._limits.disk_bytes:
                    raise WorkspaceTooLarge("The workspace has grown beyond its limits in files or bytes: delete some.")
                if _usable(path, entry, found):
                    found[path] = entry
                else:
                    self._strays.append(path)
        return found

    def _fetch(self, root: int, wanted: list[tuple[str, Entry]]) -> None:
        """Get some files, all of which are asked for at once."""
        channels = [self._next_channel() for _ in wanted]
        for channel, (path, _) in zip(channels, wanted, strict=True):
            self._wire.send(protocol.control(protocol.GET, channel, path=path))
        with contextlib.ExitStack() as stack:
            files = {}
            for channel, (path, entry) in zip(channels, wanted, strict=True):
                with parent_of(root, path) as (parent, name):
                    remove(parent, name)
                    files[channel] = [os.open(name, _NEW_FILE, 0o600, dir_fd=parent), entry.size]
                    stack.callback(os.close, files[channel][0])
            unfinished = set(channels)
            while unfinished:
                for kind, channel, payload in self._next_frames():
                    if channel not in unfinished:
                        continue
                    if kind == protocol.DATA:
                        files[channel][1] -= len(payload)
                        if files[channel][1] < 0:  # nothing inside runs: it has not grown since it was listed
                            raise protocol.ProtocolError("the agent sent more than the file has")
                        _write(files[channel][0], payload)
                    elif kind == protocol.DONE:
                        unfinished.discard(channel)
                    else:
                        raise protocol.ProtocolError(f"the agent could not read a file: {protocol.Fields(payload).text('error')}")
            for channel, (_, entry) in zip(channels, wanted, strict=True):
                os.fchmod(files[channel][0], entry.mode)
                os.utime(files[channel][0], ns=(entry.mtime_ns, entry.mtime_ns))

    def _send_file(self, root: int, path: str, channel: int) -> None:
        with parent_of(root, path) as (parent, name), regular_file(parent, name) as (descriptor, _):
            while data := os.read(descriptor, protocol.MAX_PAYLOAD):
                self._wire.send(protocol.frame(protocol.DATA, channel, data))
                while self._wire.backlog > _WINDOW * protocol.MAX_PAYLOAD:
                    self._check()
                    self._note(self._wire.turn(_LOOK_S))
        self._wire.send(protocol.frame(protocol.DATA_END, channel))

    def _settle(self, waiting: deque[int], most: int) -> None:
        """Wait until at most `most` of the channels are unanswered."""
        while len(waiting) > most:
            self._note(self._next_frames())
            while waiting and waiting[0] in self._answered:
                self._answered.discard(waiting.popleft())

    def _note(self, frames: Iterable[Frame]) -> None:
        for kind, channel, payload in frames:
            if kind == protocol.REFUSED:
                raise protocol.ProtocolError(f"the agent could not write a file: {protocol.Fields(payload).text('error')}")
            if kind == protocol.DONE:
                self._answered.add(channel)

    def _answers(self, channel: int) -> Iterator[tuple[int, bytes]]:
        while True:
            for kind, number, payload in self._next_frames():
                if number == channel:
                    yield kind, payload

    def _next_frames(self) -> list[Frame]:
        deadline = time.monotonic() + _QUIET_S
        while (left := deadline - time.monotonic()) > 0:
            self._check()
            if frames := self._wire.turn(min(left, _LOOK_S)):
                return frames
        raise AgentLost(f"the agent did not answer within {_QUIET_S:g} s")


def _put(channel: int, path: str, entry: Entry) -> bytes:
    return protocol.control(
        protocol.PUT, channel, path=path, type=entry.kind, mode=entry.mode, mtime_ns=entry.mtime_ns, target=entry.target
    )


def _entry(kind: str, mode: int, size: int, mtime_ns: int, target: str) -> Entry:
    """Directories are always their owner's to write to: else nothing in them could be mirrored."""
    return Entry(kind, mode & 0o777 | (stat.S_IRWXU if kind == DIRECTORY else 0), size, mtime_ns, target)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _entries(payload: bytes) -> Iterator[tuple[str, Entry]]:
    """What the agent lists; raises `ProtocolError` for what is no list of entries."""
    try:
        listed = json.loads(payload)["entries"]
        for path, kind, mode, size, mtime_ns, target in listed:
            if not _sound((path, kind, target), (mode, size, mtime_ns)):
                raise protocol.ProtocolError("an entry of the agent's list of files is none")
            yield path, _entry(kind, mode, size, mtime_ns, target)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise protocol.ProtocolError("the agent's list of files is none") from error


def _sound(texts: tuple[object, ...], numbers: tuple[object, ...]) -> bool:
    return all(isinstance(text, str) for text in texts) and all(type(number) is int and 0 <= number < _NUMBERS for number in numbers)


def _usable(path: str, entry: Entry, found: dict[str, Entry]) -> bool:
    """Whether it can be in a workspace, below directories that are in it."""
    try:
        normal = workspace_path(path) == path != "."
        target = len(entry.target.encode())
    except (InvalidPath, UnicodeEncodeError):
        return False
    parent = path.rpartition("/")[0]
    known = not parent or (parent in found and found[parent].kind == DIRECTORY)
    return normal and known and entry.kind in {FILE, DIRECTORY, LINK} and target <= MAX_TARGET_BYTES and (entry.kind != LINK or target > 0)


def _differ(entry: Entry, other: Entry | None) -> bool:
    if other is None or entry.kind != other.kind:
        return True
    if entry.kind == LINK:
        return entry.target != other.target
    if entry.mode != other.mode:
        return True
    return entry.kind == FILE and (entry.size, entry.mtime_ns) != (other.size, other.mtime_ns)


def _without(entries: Mapping[str, Entry], tops: Sequence[str]) -> dict[str, Entry]:
    """The entries that are none of `tops`, which `_tops` gives, and lie below none."""
    left: dict[str, Entry] = {}
    gone = set(tops)
    for path, entry in entries.items():  # parents come before what they hold
        if path in gone or path.rpartition("/")[0] in gone:
            gone.add(path)
        else:
            left[path] = entry
    return left


def _tops(paths: Iterable[str]) -> list[str]:
    """The paths that lie below no other of them."""
    result: list[str] = []
    for path in sorted(paths, key=lambda path: path.split("/")):
        if not result or not path.startswith(f"{result[-1]}/"):
            result.append(path)
    return result
