"""The entry point `dualtrack`: the tree of commands, and the one place where failures become exit statuses."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from cli import admin, approvals, artifacts, chat, dead_letters, doctor, files, jobs, models, sandbox, schedules, streams, webhooks
from cli.outcome import HELP, CliError, Exit, OutputProblem
from cli.output import Output
from cli.session import ApiKeyOption, BaseUrlOption, JsonOption, Session


class Root(TyperGroup):
    """The root group: translates what a command raised."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - as in the base class, whose context type is private
        """Run the command; raises `typer.Exit` with its status."""
        try:
            return super().invoke(ctx)
        except CliError as error:
            session = ctx.obj if isinstance(ctx.obj, Session) else Session()
            session.out.error(error)
            raise typer.Exit(error.exit_status) from error
        except KeyboardInterrupt as error:
            sys.stderr.write("\nInterrupted.\n")
            raise typer.Exit(Exit.INTERRUPTED) from error
        except BrokenPipeError as error:
            streams.silence("stdout")
            raise typer.Exit(Exit.BROKEN_PIPE) from error


app = typer.Typer(
    name="dualtrack",
    cls=Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Talk to a Dualtrack platform: chat on the fast track, long-horizon jobs on the deep track.",
    epilog=HELP,
)


@app.callback()
def root(
    context: typer.Context,
    base_url: BaseUrlOption = None,
    api_key: ApiKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Options that hold for every command; each command takes them as well."""
    context.obj = context.ensure_object(Session).with_options(base_url=base_url, api_key=api_key, as_json=as_json)


chat.register(app)
jobs.register(app)
approvals.register(app)
artifacts.register(app)
files.register(app)
schedules.register(app)
webhooks.register(app)
models.register(app)
admin.register(app)
doctor.register(app)
sandbox.register(app)
dead_letters.register(app)


def main() -> None:
    """Run `dualtrack` with the process's arguments; exits with a status of `cli.outcome.Exit`."""
    streams.prepare()
    try:
        app(prog_name="dualtrack")
    except OSError as error:
        # Typer writes help and completion itself; an error without a file's name can only be of that writing.
        if error.filename is not None:
            raise
        streams.silence("stdout")
        Output().error(OutputProblem(f"Standard output can't be written: {error.strerror or error}."))
        sys.exit(Exit.OUTPUT)
