"""Standard output for what was asked for, standard error for everything else."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cli import streams
from cli.outcome import CliError, Exit, OutputProblem
from cli.text import clean, duration, one_line, to_json

if TYPE_CHECKING:
    from rich.console import Console


class Output:
    """Where the command writes to. With `as_json`, standard output carries JSON and nothing else.

    All that writes to standard output raises `OutputProblem` where that fails, `BrokenPipeError` where nobody reads any more.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    @cached_property
    def errors(self) -> Console:
        """Rich's console on standard error: no colours when it is no terminal or `NO_COLOR` is set."""
        import typer
        from rich.console import Console

        class Errors(Console):
            def on_broken_pipe(self) -> None:
                streams.silence("stderr")
                raise typer.Exit(Exit.BROKEN_PIPE)  # rich's own answer is status 1, which says that a job failed

        return Errors(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)

    @property
    def live(self) -> bool:
        """Whether standard error is a terminal that can redraw a line."""
        return self.errors.is_terminal and not self.errors.is_dumb_terminal

    @property
    def to_terminal(self) -> bool:
        """Whether standard output is a terminal."""
        return sys.stdout.isatty()

    def document(self, value: Mapping[str, Any]) -> None:
        """One JSON document, indented for a person at a terminal."""
        self._write(to_json(value, indent=2 if self.to_terminal else None) + "\n")

    def json_line(self, value: Mapping[str, Any]) -> None:
        """One line of JSON, flushed at once."""
        self._write(to_json(value) + "\n")

    def text(self, text: object, *, end: str = "\n") -> None:
        """Text for a person, made safe for the terminal, flushed at once."""
        self._write(clean(text) + end)

    def raw(self, data: bytes) -> None:
        """Bytes as they are; for downloads, never to a terminal."""
        with _writing():
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Rows under headings: aligned at a terminal, separated by tabs and complete elsewhere."""
        plain = [[one_line("" if cell is None else cell, 400) for cell in row] for row in rows]
        if not self.to_terminal:
            self._write("".join("\t".join(row) + "\n" for row in [list(columns), *plain]))
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, no_wrap=column == columns[0], overflow="fold")
        for row in plain:
            table.add_row(*(Text(cell) for cell in row))
        console = Console(highlight=False, markup=False, emoji=False)
        with console.capture() as rendered:
            console.print(table)
        self._write(rendered.get())

    def fields(self, pairs: Sequence[tuple[str, object]]) -> None:
        """Names and values, one pair a line; pairs without a value are left out."""
        shown = [(name, value) for name, value in pairs if value not in (None, "", [], {})]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            first, *rest = clean(value).splitlines() or [""]
            self._write("".join(f"{line}\n" for line in [f"{name:<{width}}  {first}", *(" " * (width + 2) + line for line in rest)]))

    def say(self, text: object, style: str = "") -> None:
        """Progress or a hint on standard error."""
        self.errors.print(clean(text), style=style or None)

    def error(self, error: CliError) -> None:
        """A failure on standard error: a sentence for a person, the API's error document with `--json`."""
        if self.as_json:
            sys.stderr.write(to_json(error.as_json()) + "\n")
            return
        param = getattr(error, "param", None)
        code = getattr(error, "status", None) is not None and error.code
        later = getattr(error, "retry_after", None)
        again = None if later is None else f"try again in {duration(later)}"
        where = ", ".join(one_line(part, 80) for part in (param, code, again) if part)
        self.say(f"Error: {error.message}{f' ({where})' if where else ''}", "red")

    def _write(self, text: str) -> None:
        with _writing():
            try:
                sys.stdout.write(text)
            except UnicodeEncodeError:
                encoding = sys.stdout.encoding or "ascii"
                sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
            sys.stdout.flush()


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        streams.silence("stdout")
        raise OutputProblem(f"Standard output can't be written: {error.strerror or error}.") from error
