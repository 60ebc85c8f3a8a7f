"""Running Python source in a forked child of the preloaded interpreter, so that it looks to the source like `python3 FILE`."""

from __future__ import annotations

import builtins
import io
import linecache
import os
import signal
import sys
import types

from . import children

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

    Job = Callable[[], int]


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


def new_main(workspace: str) -> dict[str, Any]:
    """A `__main__` module as a file has, and the module path of one in the workspace; returns its namespace."""
    main = types.ModuleType("__main__")
    namespace = main.__dict__
    namespace["__builtins__"] = builtins
    sys.modules["__main__"] = main
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.path[:1] = [workspace, *given]
    return namespace


class Cell:
    """A piece of source with a file of its own, so that tracebacks, `inspect` and `multiprocessing` find its lines."""

    def __init__(self, source: str, number: int) -> None:
        self.source = source
        directory = os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - the sandbox's own
        self.path = "%s/cell_%d.py" % (directory, number)
        try:
            with open(self.path, "w", encoding="utf-8", errors="surrogatepass") as file:
                file.write(source)
        except OSError:  # full, or not writable
            self.path = "<cell %d>" % number
        linecache.cache[self.path] = (len(source), None, source.splitlines(keepends=True), self.path)

    def run(self, namespace: dict[str, Any], *, echo: bool) -> None:
        """Run it; with `echo` the value of a last expression is printed as in a notebook.

        Raises:
            BaseException: whatever the source raises.
        """
        namespace["__file__"] = self.path
        sys.argv = [self.path]
        for code in self._compiled(echo):
            exec(code, namespace)  # noqa: S102 - the purpose of a sandbox

    def _compiled(self, echo: bool) -> list[CodeType]:  # noqa: FBT001 - private
        if not echo:
            return [compile(self.source, self.path, "exec", dont_inherit=True)]
        import ast

        tree = ast.parse(self.source, self.path)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        codes = [compile(tree, self.path, "exec", dont_inherit=True)] if tree.body else []
        if last is not None:
            codes.append(compile(ast.Interactive([last]), self.path, "single", dont_inherit=True))
        return codes


def run_file(source: str, number: int, limits: dict[str, int], env: dict[str, str], workspace: str) -> int:
    """Run a fresh cell in a new child; returns the exit status, with which the interpreter must then end as it always does.

    Raises:
        SystemExit: as the source does.
    """
    os.environ.update(env)
    os.chdir(workspace)
    children.limit(limits)
    become_python()
    namespace = new_main(workspace)
    return 0 if finished(Cell(source, number), namespace, echo=False) else 1


def finished(cell: Cell, namespace: dict[str, Any], *, echo: bool) -> bool:
    """Run a cell; False if it raised something, whose traceback is on stderr.

    Raises:
        SystemExit: as the source does.
    """
    try:
        cell.run(namespace, echo=echo)
    except SystemExit:
        raise
    except BaseException as error:
        report(error, cell.path)
        return False
    return True


def report(error: BaseException, path: str) -> None:
    """Print the traceback of what the cell in `path` raised, as the interpreter does: from the cell's own first line on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    error.__traceback__ = trace  # None for a syntax error, which shows its line by itself
    sys.excepthook(type(error), error, trace)
