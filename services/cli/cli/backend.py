"""What commands for the operator reach without the API: the database, the object store and the broker of the settings.

Without settings of its own, the database is that of the standalone platform whose credentials file is found, and the objects lie beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cli.credentials import StoredDatabase, find_database
from cli.outcome import CliError, Unreachable, UsageProblem
from cli.session import Session, working_directory

if TYPE_CHECKING:
    from dualtrack.db.engine import Database
    from dualtrack.objects.port import ObjectStore
    from dualtrack.settings import BrokerSettings, Settings


@contextmanager
def database(session: Session) -> Iterator[Database]:
    """The database of the settings or else of the credentials file, answering; its errors as this command's."""
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    from dualtrack.db.engine import Database
    from dualtrack.domain.errors import DatabaseUnavailable

    settings, stored = _settings(session)
    source = f"database_url in {stored.path}" if stored else "DUALTRACK_DATABASE__URL"
    try:
        found = Database(settings.database, application="dualtrack-cli")
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise UsageProblem(f"{source} is no address: postgresql+psycopg://user:password@host:port/name.") from error
    try:
        with failures():
            try:
                found.check()
            except DatabaseUnavailable as error:
                if stored is None:
                    raise
                raise Unreachable(
                    f"The database that {stored.path} names can't be reached: start its platform, or set DUALTRACK_DATABASE__URL."
                ) from error
            yield found
    finally:
        found.close()


def objects(session: Session) -> ObjectStore:
    """The object store of the settings, or else of the platform whose database `database` gives; nothing is asked of it yet."""
    from dualtrack.objects.factory import open_store

    return open_store(_settings(session)[0].objects)


def broker(session: Session) -> BrokerSettings:
    """The broker's settings."""
    return _settings(session)[0].broker


def settings(session: Session) -> Settings:
    """The settings of this machine."""
    return _settings(session)[0]


@contextmanager
def failures() -> Iterator[None]:
    """The platform's own errors as this command's: what can't be reached is told apart from what went wrong."""
    from sqlalchemy.exc import SQLAlchemyError

    from dualtrack.domain.errors import BrokerUnavailable, DatabaseUnavailable, DualtrackError, StorageUnavailable

    try:
        yield
    except (DatabaseUnavailable, StorageUnavailable, BrokerUnavailable) as error:
        raise Unreachable(error.message) from error
    except DualtrackError as error:
        raise CliError(error.message) from error
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise CliError(f"The database refused: {reason}") from error


def _settings(session: Session) -> tuple[Settings, StoredDatabase | None]:
    """The settings, and the credentials file's entry where the database's address is from there."""
    from pydantic import SecretStr

    from dualtrack.bootstrap import load_settings
    from dualtrack.domain.errors import InvalidRequest
    from dualtrack.settings import FolderSettings

    try:
        settings = load_settings()
    except InvalidRequest as error:
        raise UsageProblem(f"The settings are wrong. {error.message}") from error
    stored = None
    if "url" not in settings.database.model_fields_set:  # neither the environment nor a settings file names one
        stored = find_database(session.base_url, environ=session.environ, cwd=working_directory())
    if stored is None:
        return settings, None
    changes: dict[str, object] = {"database": settings.database.model_copy(update={"url": SecretStr(stored.url)})}
    if isinstance(settings.objects, FolderSettings) and "path" not in settings.objects.model_fields_set:
        changes["objects"] = FolderSettings(path=stored.path.parent / "objects")
    return settings.model_copy(update=changes), stored
