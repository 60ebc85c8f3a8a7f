"""Where the platform is and which key opens it: options, then the environment, then a credentials file."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cli.outcome import UsageProblem

DEFAULT_BASE_URL: Final = "http://127.0.0.1:8080"
BASE_URL_VARIABLE: Final = "DUALTRACK_BASE_URL"
API_KEY_VARIABLE: Final = "DUALTRACK_API_KEY"
_MAX_FILE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Credentials:
    """Base URL without a trailing slash, and the key, if any was found."""

    base_url: str
    api_key: str | None


@dataclass(frozen=True, slots=True)
class StoredDatabase:
    """The database of the platform that a credentials file is of."""

    url: str
    path: Path


@dataclass(frozen=True, slots=True)
class _Stored:
    credentials: Credentials
    database_url: str | None


def credential_files(environ: Mapping[str, str], cwd: Path) -> tuple[Path, ...]:
    """The files looked at, first match wins: this directory's, then the user's."""
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is no home
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return cwd / ".dualtrack" / "credentials.json", config / "dualtrack" / "credentials.json"


def find(base_url: str | None, api_key: str | None, *, environ: Mapping[str, str], cwd: Path) -> Credentials:
    """The credentials in force. A file's key goes only to the address in the same file.

    Raises:
        UsageProblem: an address that is none, a key that no header can hold, or a credentials file that others can read.
    """
    base_url = base_url or environ.get(BASE_URL_VARIABLE) or None
    api_key = api_key or environ.get(API_KEY_VARIABLE) or None
    if base_url is not None:
        base_url = _address(base_url, "the base URL")
    if base_url is None or api_key is None:
        for _, stored in _matching(base_url, environ, cwd):
            base_url = stored.credentials.base_url
            api_key = api_key or stored.credentials.api_key
            break
    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and " " not in api_key):
        raise UsageProblem("The API key holds characters that no key has: copy it again, without line ends or quotes.")
    return Credentials(base_url or DEFAULT_BASE_URL, api_key)


def find_database(base_url: str | None, *, environ: Mapping[str, str], cwd: Path) -> StoredDatabase | None:
    """The database that the credentials file in force names, if it does (the standalone platform's names its own).

    Raises:
        UsageProblem: an address that is none, or a credentials file that others can read.
    """
    base_url = base_url or environ.get(BASE_URL_VARIABLE) or None
    if base_url is not None:
        base_url = _address(base_url, "the base URL")
    for path, stored in _matching(base_url, environ, cwd):
        return None if stored.database_url is None else StoredDatabase(stored.database_url, path)
    return None


def _matching(base_url: str | None, environ: Mapping[str, str], cwd: Path) -> Iterator[tuple[Path, _Stored]]:
    """The files that are there and, where a base URL was asked for, of that address."""
    for path in credential_files(environ, cwd):
        stored = _read(path)
        if stored is not None and base_url in (None, stored.credentials.base_url):
            yield path, stored


def _address(text: str, what: str) -> str:
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        (parts.hostname or "").encode("idna")  # as the look-up of the name will, with an error that says less
        valid = valid and text.isprintable() and " " not in text
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or parts.username is not None:
        raise UsageProblem(f"{text!r} is no address ({what}): give http://host:port or https://host.")
    # An OpenAI client's base URL ends in /v1; taking it as well saves an error that is hard to see.
    return text.rstrip("/").removesuffix("/v1")


def _read(path: Path) -> _Stored | None:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            raw = file.read(_MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageProblem(f"{path} can't be read: {error.strerror}.") from error
    # A file that came with somebody's archive or checkout is readable by all: never let it say where a key goes.
    if os.name == "posix" and (stat.S_IMODE(status.st_mode) & 0o077 or status.st_uid not in {os.geteuid(), 0}):
        raise UsageProblem(f"{path} must be yours and readable by you alone: check what it holds, then run `chmod 600 {path}`.")
    try:
        document = json.loads(raw[:_MAX_FILE_BYTES])
        base_url, api_key, database_url = document["base_url"], document.get("api_key"), document.get("database_url")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageProblem(f'{path} must be JSON: {{"base_url": "http://…", "api_key": "dt_…"}}.') from error
    if not isinstance(base_url, str) or not isinstance(api_key, str | None) or not isinstance(database_url, str | None):
        raise UsageProblem(f"{path}: base_url, api_key and database_url must be strings.")
    return _Stored(Credentials(_address(base_url, str(path)), api_key or None), database_url or None)
