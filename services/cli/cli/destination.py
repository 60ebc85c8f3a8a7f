"""Where a download goes: into a file in one step, or into a device, pipe or open descriptor as it comes."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cli.local_file import describe
from cli.outcome import OutputProblem, UsageProblem

STDOUT: Final = 1
_NAMED: Final = {"/dev/stdout": STDOUT, "/dev/stderr": 2}
_NUMBERED: Final = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,9})")


def descriptor(text: str) -> int | None:
    """The number of the open descriptor that a path such as `/dev/stdout` or `/dev/fd/3` stands for, else None."""
    found = _NUMBERED.fullmatch(text)
    return int(found[1]) if found else _NAMED.get(text)


def save(chunks: Iterable[bytes], target: Path, *, force: bool) -> int:
    """Write `chunks` to `target`; the number of bytes.

    A file appears or is replaced in one step, a symbolic link stays and the file behind it is written. Character devices,
    pipes and descriptors are never replaced: they get the bytes as they come.

    Args:
        chunks: the content as it arrives.
        target: where it goes; its directory must exist.
        force: replace a file that is there.

    Raises:
        UsageProblem: a file is there already and `force` is off, something else than a file is, or the directory can't be written.
        OutputProblem: the writing failed, as on a full disk.

    Whatever `chunks` raises goes on to the caller; then as well no file is left behind.
    """
    number = descriptor(str(target))
    if number is not None or _takes_bytes(target):
        return _pour(chunks, target, number)
    real = Path(os.path.realpath(target))
    mode = _mode(target, real)
    if not force and os.path.lexists(target):
        raise _exists(target)
    try:
        handle, name = tempfile.mkstemp(prefix=".dualtrack-", suffix=".part", dir=real.parent)
    except OSError as error:
        raise UsageProblem(f"Can't write to {target.parent}: {error.strerror}.") from error
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            count = sum(file.write(chunk) for chunk in chunks)
        part.chmod(_new_mode() if mode is None else stat.S_IMODE(mode) & 0o777)
        if force:
            _mode(target, real)  # once more: a download takes long enough for something else to have come there
            part.replace(real)
        else:
            _appear(part, real)
    except FileExistsError as error:
        raise _exists(target) from error
    except OSError as error:
        raise OutputProblem(f"{target} can't be written: {error.strerror}.") from error
    finally:
        part.unlink(missing_ok=True)
    return count


def _takes_bytes(target: Path) -> bool:
    try:
        mode = target.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _pour(chunks: Iterable[bytes], target: Path, number: int | None) -> int:
    try:
        # Without O_CREAT and O_TRUNC: what has become a file meanwhile is neither made nor emptied.
        handle = os.open(target, os.O_WRONLY | getattr(os, "O_NOCTTY", 0)) if number is None else os.dup(number)
    except OSError as error:
        raise UsageProblem(f"{target} can't be opened for writing: {error.strerror}.") from error
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            count = 0
            for chunk in chunks:
                rest = memoryview(chunk)
                while rest:
                    rest = rest[file.write(rest) or 0 :]
                count += len(chunk)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputProblem(f"{target} can't be written: {error.strerror}.") from error
    return count


def _mode(target: Path, real: Path) -> int | None:
    """The mode of the regular file at `real`, None where nothing is; whatever else is there is refused."""
    try:
        mode = real.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageProblem(f"{target} can't be written: {error.strerror}.") from error
    if not stat.S_ISREG(mode):
        raise UsageProblem(f"{target} is {describe(mode)}, which a download never replaces: choose another place with -o.")
    return mode


def _new_mode() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def _appear(part: Path, real: Path) -> None:
    try:
        os.link(part, real)  # unlike a rename, fails where somebody was faster
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(real):
            raise FileExistsError from None
        part.replace(real)


def _exists(target: Path) -> UsageProblem:
    return UsageProblem(f"{target} is there already: choose another place with -o, or replace it with --force.")
