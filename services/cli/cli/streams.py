"""The three standard streams, any of which may be closed, full or cut off."""

from __future__ import annotations

import os
import sys
from typing import Any, Final, TextIO, cast

_DESCRIPTORS: Final = {"stdin": 0, "stdout": 1, "stderr": 2}


def prepare() -> None:
    """Make standard input and error usable whatever the caller did with them; a closed standard output stays closed.

    A closed input reads as empty, a closed or failing error stream swallows what it gets: there is nobody to tell.
    """
    if is_closed("stdin"):
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115 - lives as long as the process
    if is_closed("stderr"):
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - lives as long as the process
    sys.stderr = cast("TextIO", _Forgiving(sys.stderr))


def is_closed(name: str) -> bool:
    """Whether the process was started without the stream `stdin`, `stdout` or `stderr`."""
    # Python then puts None there, against the declared type.
    return getattr(sys, name) is None


def silence(name: str) -> None:
    """Point the stream at nothing, so that the interpreter's last flush into a broken one can't fail again."""
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, _number(name))
        os.close(nothing)
    except (OSError, ValueError):
        return


def _number(name: str) -> int:
    stream: TextIO | None = getattr(sys, name)
    return _DESCRIPTORS[name] if stream is None else stream.fileno()


class _Forgiving:
    """Standard error that never fails a command that did its work; only a broken pipe is told, as for any program."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the stream has
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write or swallow `text`."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            raise
        except OSError:
            silence("stderr")
            return len(text)

    def flush(self) -> None:
        """Flush, or swallow what can't be."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError:
            silence("stderr")
