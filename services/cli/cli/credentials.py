"""Where the platform is and which key opens it: options, then the environment, then a credentials file."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
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
        for path in credential_files(environ, cwd):
            stored = _read(path)
            if stored is None or (base_url is not None and stored.base_url != base_url):
                continue
            base_url = stored.base_url
            api_key = api_key or stored.api_key
            break
    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and " " not in api_key):
        raise UsageProblem("The API key holds characters that no key has: copy it again, without line ends or quotes.")
    return Credentials(base_url or DEFAULT_BASE_URL, api_key)


def _address(text: str, what: str) -> str:
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or parts.username is not None:
        raise UsageProblem(f"{text!r} is no address ({what}): give http://host:port or https://host.")
    # An OpenAI client's base URL ends in /v1; taking it as well saves an error that is hard to see.
    return text.rstrip("/").removesuffix("/v1")


def _read(path: Path) -> Credentials | None:
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
        base_url, api_key = document["base_url"], document.get("api_key")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageProblem(f'{path} must be JSON: {{"base_url": "http://…", "api_key": "dt_…"}}.') from error
    if not isinstance(base_url, str) or not isinstance(api_key, str | None):
        raise UsageProblem(f"{path}: base_url and api_key must be strings.")
    return Credentials(_address(base_url, str(path)), api_key or None)
