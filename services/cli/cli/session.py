"""What every command shares: its options, its output, its connection; and how a function becomes a command."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli import credentials, streams
from cli.local_file import utf8
from cli.outcome import OutputProblem, UsageProblem
from cli.output import Output

if TYPE_CHECKING:
    import httpx

    from cli.client import Client

BaseUrlOption = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        metavar="URL",
        help=f"Address of the platform; else ${credentials.BASE_URL_VARIABLE}, a credentials file, {credentials.DEFAULT_BASE_URL}.",
    ),
]
ApiKeyOption = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        help=f"API key; better in ${credentials.API_KEY_VARIABLE} or a credentials file, since other users may see command lines.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on standard output, and nothing else there.")]
_SHARED: Final = {"base_url": (BaseUrlOption, None), "api_key": (ApiKeyOption, None), "as_json": (JsonOption, False)}


@dataclass(frozen=True)
class Session:
    """The options in force, and what is built from them on first use."""

    base_url: str | None = None
    api_key: str | None = None
    as_json: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    transport: httpx.BaseTransport | None = None
    """Instead of the network; for tests and for programs that embed the platform."""

    @cached_property
    def out(self) -> Output:
        """Where to write."""
        return Output(as_json=self.as_json)

    @cached_property
    def client(self) -> Client:
        """The connection to the platform.

        Raises:
            UsageProblem: no key, or bad settings.
        """
        from cli.client import Client

        found = credentials.find(self.base_url, self.api_key, environ=self.environ, cwd=working_directory())
        if found.api_key is None:
            raise UsageProblem(
                f"No API key for {found.base_url}: set {credentials.API_KEY_VARIABLE}, or pass --api-key, or run this where the platform "
                "was started (it writes .dualtrack/credentials.json). `dualtrack keys create NAME` makes a new one."
            )
        return Client(found, version=version(), transport=self.transport)

    def with_options(self, *, base_url: str | None, api_key: str | None, as_json: bool) -> Session:
        """This session, with what a command's own options add; raises `UsageProblem` for an empty or broken one."""
        _require_text("--base-url", base_url)
        _require_text("--api-key", api_key)
        return replace(self, base_url=base_url or self.base_url, api_key=api_key or self.api_key, as_json=as_json or self.as_json)

    def close(self) -> None:
        """Close the connection, where one was opened."""
        if "client" in self.__dict__:
            self.client.close()


def version() -> str:
    """The installed version of this command."""
    from importlib import metadata

    return metadata.version("dualtrack-cli")


def working_directory() -> Path:
    """The current directory; raises `UsageProblem` where it was removed."""
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageProblem("The current directory is gone: change to another one.") from error


def command(app: typer.Typer, name: str, *, paths: Sequence[str] = ()) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Register a function, which takes a `Session` first and gives an exit status (None: 0), as a command with the shared options.

    What was given for its options must be UTF-8 and not empty; those named in `paths` may hold any file name.
    """

    def register(function: Callable[..., int | None]) -> Callable[..., int | None]:
        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        keyword = inspect.Parameter.KEYWORD_ONLY
        shared = [inspect.Parameter(key, keyword, default=default, annotation=kind) for key, (kind, default) in _SHARED.items()]
        labels = {item.name: _label(item) for item in own}
        context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)

        @functools.wraps(function)
        def run(context: typer.Context, *, base_url: str | None, api_key: str | None, as_json: bool, **options: object) -> None:
            session = context.ensure_object(Session).with_options(base_url=base_url, api_key=api_key, as_json=as_json)
            context.obj = session
            context.find_root().obj = session
            if streams.is_closed("stdout"):
                raise OutputProblem("Standard output is closed, so nothing was done: send it to /dev/null if nobody reads it.")
            try:
                status = function(session, **{key: _as_given(labels[key], value, key in paths) for key, value in options.items()})
            finally:
                session.close()
            raise typer.Exit(int(status or 0))

        run.__signature__ = inspect.Signature([context, *(item.replace(kind=keyword) for item in own), *shared])  # type: ignore[attr-defined]
        run.__annotations__ = {}
        app.command(name)(run)
        return function

    return register


def _label(parameter: inspect.Parameter) -> str:
    """What a person knows a parameter by: `--idempotency-key`, `INSTRUCTIONS`."""
    for item in getattr(parameter.annotation, "__metadata__", ()):
        # Inside `Annotated`, Typer keeps the first name where a default would stand.
        names = (getattr(item, "default", None), *(getattr(item, "param_decls", None) or ()))
        options = [text for text in names if isinstance(text, str) and text.startswith("--")]
        if options:
            return str(options[0])
        if getattr(item, "metavar", None):
            return str(item.metavar)
    return parameter.name.upper()


def _as_given(label: str, value: object, is_path: bool) -> object:
    if isinstance(value, list):
        return [_as_given(label, item, is_path) for item in value]
    return _require_text(label, value, is_path=is_path) if type(value) is str else value


def _require_text(label: str, value: str | None, *, is_path: bool = False) -> str | None:
    if value is None:
        return None
    if not value:
        raise UsageProblem(f"{label} is empty: give a value or leave it out.")
    try:
        return value if is_path else utf8(value)
    except UnicodeError as error:
        raise UsageProblem(f"{label} is no valid UTF-8 text.") from error


def read_stdin(limit: int, what: str) -> str:
    """All of standard input as text.

    Raises:
        UsageProblem: more than `limit` bytes, no UTF-8, or it can't be read.
    """
    try:
        raw = sys.stdin.buffer.read(limit + 1)
    except OSError as error:
        raise UsageProblem(f"Standard input can't be read: {error.strerror or error}.") from error
    if len(raw) > limit:
        raise UsageProblem(f"Standard input is longer than {limit} bytes: put {what} into a file and upload it (--file).")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UsageProblem(f"Standard input is no UTF-8 text; {what} must be.") from error
