"""Commands for the operator: `keys create` and `migrate` work on the database itself, `version` on nothing."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.credentials import StoredDatabase, find_database
from cli.outcome import CliError, Unreachable, UsageProblem
from cli.session import Session, command, working_directory
from cli.session import version as installed_version

if TYPE_CHECKING:
    from dualtrack.db.engine import Database
    from dualtrack.settings import DatabaseSettings

_MAX_NAME: Final = 100


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        no_args_is_help=True, help="API keys (needs the database: DUALTRACK_DATABASE__URL, or the standalone platform's directory)."
    )
    command(group, "create")(create_key)
    app.add_typer(group, name="keys")
    command(app, "migrate")(migrate)
    command(app, "version")(version)


def create_key(
    session: Session,
    name: Annotated[str, typer.Argument(help="What the key is for; shown in lists.")],
    tenant: Annotated[str, typer.Option("--tenant", help="Whose key it is; created if missing.")] = "default",
) -> None:
    """Make an API key and print it: this once, it can't be shown again."""
    for what, text in (("The name", name), ("The tenant", tenant)):
        if not text.strip() or len(text) > _MAX_NAME or not text.isprintable():
            raise UsageProblem(f"{what} must be 1 to {_MAX_NAME} printable characters.")
    with _database(session) as database:
        from dualtrack.db.migrate import require_current
        from dualtrack.db.tenants import create_key as create
        from dualtrack.db.tenants import ensure_tenant

        require_current(database)
        with database.transaction() as tx:
            key = create(tx, ensure_tenant(tx, tenant), name)
    if session.as_json:
        session.out.document({"object": "api_key", "name": name, "tenant": tenant, "key": key})
        return
    session.out.text(key)
    session.out.say("Keep it safe: only its hash is stored, so it can't be shown again.", "dim")


def migrate(session: Session) -> None:
    """Bring the database to this version's schema; safe to run again and from several places at once."""
    with _database(session) as database:
        from alembic.runtime.migration import MigrationContext

        from dualtrack.db.migrate import upgrade

        upgrade(database)
        with database.engine.connect() as connection:
            revision = MigrationContext.configure(connection).get_current_revision()
    if session.as_json:
        session.out.document({"object": "migration", "revision": revision})
    else:
        session.out.text(f"The database is at revision {revision}.")


def version(session: Session) -> None:
    """Print the version of this command."""
    found = installed_version()
    if session.as_json:
        session.out.document({"version": found, "python": platform.python_version()})
    else:
        session.out.text(f"dualtrack {found}")


@contextmanager
def _database(session: Session) -> Iterator[Database]:
    """The database of the settings or else of the credentials file, answering; its errors as this command's."""
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

    from dualtrack.db.engine import Database
    from dualtrack.domain.errors import DatabaseUnavailable, DualtrackError

    settings, stored = _settings(session)
    source = f"database_url in {stored.path}" if stored else "DUALTRACK_DATABASE__URL"
    try:
        database = Database(settings, application="dualtrack-cli")
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise UsageProblem(f"{source} is no address: postgresql+psycopg://user:password@host:port/name.") from error
    try:
        try:
            database.check()
        except DatabaseUnavailable as error:
            if stored is None:
                raise
            raise Unreachable(
                f"The database that {stored.path} names can't be reached: start its platform, or set DUALTRACK_DATABASE__URL."
            ) from error
        yield database
    except DatabaseUnavailable as error:
        raise Unreachable(error.message) from error
    except DualtrackError as error:
        raise CliError(error.message) from error
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise CliError(f"The database refused: {reason}") from error
    finally:
        database.close()


def _settings(session: Session) -> tuple[DatabaseSettings, StoredDatabase | None]:
    """The database's settings, and the credentials file's entry where its address is from there."""
    from pydantic import SecretStr

    from dualtrack.bootstrap import load_settings
    from dualtrack.domain.errors import InvalidRequest

    try:
        settings = load_settings().database
    except InvalidRequest as error:
        raise UsageProblem(f"The settings are wrong. {error.message}") from error
    stored = None
    if "url" not in settings.model_fields_set:  # neither the environment nor a settings file names one
        stored = find_database(session.base_url, environ=session.environ, cwd=working_directory())
    if stored is None:
        return settings, None
    return settings.model_copy(update={"url": SecretStr(stored.url)}), stored
