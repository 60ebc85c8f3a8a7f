"""The end of a process that has run cells: all that a program can see of an interpreter's end, without walking through all its memory.

A full finalisation touches, and so copies, every page that the child shares with the agent: 13 ms, against less than 1 ms for this.
"""

from __future__ import annotations

import atexit
import gc
import io
import sys
import threading

from . import system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_NOT_FLUSHED = 120
"""Exit status of an interpreter whose last output could not be written."""


def leave(code: int) -> NoReturn:
    """End this process as the interpreter does.

    In this order: other threads end, functions of `atexit` run, objects are finalised (open files written), streams are flushed.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - joins what is no daemon
        atexit._run_exitfuncs()  # noqa: SLF001
        if not flush():
            code = _NOT_FLUSHED
        _finalise()
    except BaseException as error:  # such as an interrupt while threads are waited for
        sys.excepthook(type(error), error, error.__traceback__)
    flush()
    system.leave(code)


def flush() -> bool:
    """Flush the standard streams; False where that failed."""
    done = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:  # the cell may have replaced it by anything
            done = False
    return done


def _finalise() -> None:
    """Write what open files hold, then let go of `__main__`."""
    # First: in a cycle of garbage the layers of a file are finalised in any order, and what the upper one holds may be lost.
    for item in gc.get_objects():
        if isinstance(item, (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)) and not item.closed:
            try:
                item.flush()
            except (OSError, ValueError):
                pass
    sys.modules.pop("__main__", None)
    sys.last_value = sys.last_traceback = None
    gc.collect()


def exit_code(error: SystemExit) -> int:
    """The status that `sys.exit` asks for; what is no number is printed."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    flush()
    sys.stderr.write("%s\n" % (error.code,))
    return 1
