"""Running Python source in a forked child of the preloaded interpreter, so that it looks to the source like `python3 FILE`."""

from __future__ import annotations

import ast
import builtins
import io
import json
import linecache
import os
import signal
import sys
import types

from . import ending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any


_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""Where the agent lies: no place for a cell to find modules in."""


def reseed() -> None:
    """Let no two children draw the same numbers. Python's own generator does it by itself at a fork."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.seed()


def become_python() -> None:
    """In a new child: what an interpreter has at its start. A line is out as soon as it is printed."""
    reseed()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    streams: Any = sys
    streams.stdin = streams.__stdin__ = _stream(0, "rb", "surrogateescape")
    streams.stdout = streams.__stdout__ = _stream(1, "wb", "surrogateescape")
    streams.stderr = streams.__stderr__ = _stream(2, "wb", "backslashreplace")


def _stream(descriptor: int, mode: str, errors: str) -> io.TextIOWrapper:
    raw = open(descriptor, mode, closefd=False)  # noqa: SIM115 - as long as the process
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=mode == "wb")


def new_main() -> None:
    """A `__main__` module as a file has."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main


def set_path(workspace: str) -> None:
    """Let modules be found in the workspace first, and where PYTHONPATH says."""
    os.chdir(workspace)
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    first = [workspace, *(path for path in given if path != workspace)]
    sys.path[:] = first + [path for path in sys.path if path not in (*first, _OWN)]


class Status:
    """How a cell ended."""

    def __init__(self, code: int, *, exits: bool) -> None:
        self.code = code
        self.exits = exits
        """Whether it asked for the end of the interpreter."""


def run(source: str, number: int, *, echo: bool) -> Status:
    """Run source in `__main__`; with `echo` the value of a last expression is printed as in a notebook. Tracebacks go to stderr.

    The source gets a file of its own, so that tracebacks, `inspect` and `multiprocessing` find its lines.
    """
    path = _file(source, number)
    try:
        namespace = sys.modules["__main__"].__dict__
        namespace["__file__"] = path
        sys.argv = [path]
        for code in _compiled(source, path, echo=echo):
            exec(code, namespace)  # noqa: S102 - the purpose of a sandbox
    except SystemExit as error:
        return Status(ending.exit_code(error), exits=True)
    except BaseException as error:
        _report(error, path)
        return Status(1, exits=False)
    return Status(0, exits=False)


def warm_up(source: str) -> None:
    """Do all that a cell does, so that the first one finds this process's memory its own and its code paths tried."""
    json.loads(json.dumps([source, {"limit": 1}]))
    namespace = {"__builtins__": builtins}
    for echo in (False, True):
        for code in _compiled(source, "<warm up>", echo=echo):
            exec(code, namespace)  # noqa: S102 - our own
    linecache.cache["<warm up>"] = (0, None, [], "")
    linecache.cache.clear()
    sys.stdout.write("")
    sys.stdout.flush()


def _file(source: str, number: int) -> str:
    path = "%s/cell_%d.py" % (os.environ.get("TMPDIR", "/tmp"), number)  # noqa: S108 - the sandbox's own
    try:
        with open(path, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(source)
    except OSError:  # full, or not writable
        path = "<cell %d>" % number
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    return path


def _compiled(source: str, path: str, *, echo: bool) -> list[CodeType]:
    if not echo:
        return [compile(source, path, "exec", dont_inherit=True)]
    tree = ast.parse(source, path)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    codes = [compile(tree, path, "exec", dont_inherit=True)] if tree.body else []
    if last is not None:
        codes.append(compile(ast.Interactive([last]), path, "single", dont_inherit=True))
    return codes


def _report(error: BaseException, path: str) -> None:
    """Print the traceback of what the cell in `path` raised, as the interpreter does: from the cell's own first line on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    error.__traceback__ = trace  # None for a syntax error, which shows its line by itself
    sys.excepthook(type(error), error, trace)
