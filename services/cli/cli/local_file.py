"""Files on this machine: what stands at a path, whether it can be uploaded, and under which name."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cli.outcome import UsageProblem


def describe(mode: int) -> str:
    """What a file is, by its mode: `a directory`, `a pipe (FIFO)`."""
    for is_kind, name in (
        (stat.S_ISREG, "a regular file"),
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a pipe (FIFO)"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISLNK, "a symbolic link that leads in a circle"),
    ):
        if is_kind(mode):
            return name
    return "something else"


def fault(path: Path) -> str | None:
    """Why `path` can't be uploaded, as the rest of a sentence; None for a regular file that can be read."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            with path.open("rb"):
                return None
    except (FileNotFoundError, NotADirectoryError):
        return "there is no such file."
    except OSError as error:
        return f"it can't be read: {error.strerror}."
    return f"it is {describe(mode)}, and only a regular file can be uploaded."


def upload_name(path: Path) -> str:
    """The name that a file is uploaded under: its own.

    Raises:
        UsageProblem: the platform takes no such name.
    """
    from dualtrack.domain.errors import InvalidPath
    from dualtrack.domain.paths import file_name

    try:
        return file_name(utf8(path.name))
    except UnicodeError as error:
        raise UsageProblem(f"{path}: its name is no valid UTF-8.") from error
    except InvalidPath as error:
        raise UsageProblem(f"{path}: its name can't be used. {error.message}") from error


def utf8(text: str) -> str:
    """Text from the command line or a file name as what its bytes say in UTF-8, whatever the locale.

    Raises:
        UnicodeError: they are no UTF-8.
    """
    return os.fsencode(text).decode()
