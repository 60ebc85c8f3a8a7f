"""Where the address and the key come from, and where the key never goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.credentials import Credentials, StoredDatabase, find, find_database
from cli.outcome import UsageProblem


def _store(path: Path, content: object, mode: int = 0o600) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.chmod(mode)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


def test_nothing_known(tmp_path: Path, environ: dict[str, str]) -> None:
    assert find(None, None, environ=environ, cwd=tmp_path) == Credentials("http://127.0.0.1:8080", None)


def test_options_win_over_environment_over_files(tmp_path: Path, environ: dict[str, str]) -> None:
    _store(tmp_path / "home/.config/dualtrack/credentials.json", {"base_url": "http://home:1", "api_key": "dt_home"})
    assert find(None, None, environ=environ, cwd=tmp_path) == Credentials("http://home:1", "dt_home")
    _store(tmp_path / ".dualtrack/credentials.json", {"base_url": "http://here:1/", "api_key": "dt_here"})
    assert find(None, None, environ=environ, cwd=tmp_path) == Credentials("http://here:1", "dt_here")
    environ |= {"DUALTRACK_BASE_URL": "http://env:1/v1", "DUALTRACK_API_KEY": "dt_env"}
    assert find(None, None, environ=environ, cwd=tmp_path) == Credentials("http://env:1", "dt_env")
    assert find("http://option:1", "dt_option", environ=environ, cwd=tmp_path) == Credentials("http://option:1", "dt_option")


def test_a_files_key_goes_only_to_its_own_address(tmp_path: Path, environ: dict[str, str]) -> None:
    _store(tmp_path / ".dualtrack/credentials.json", {"base_url": "http://here:1", "api_key": "dt_here"})
    assert find("http://evil:1", None, environ=environ, cwd=tmp_path) == Credentials("http://evil:1", None)
    assert find("http://here:1/", None, environ=environ, cwd=tmp_path).api_key == "dt_here"


def test_the_file_that_names_the_address_is_found(tmp_path: Path, environ: dict[str, str]) -> None:
    _store(tmp_path / ".dualtrack/credentials.json", {"base_url": "http://here:1", "api_key": "dt_here"})
    _store(tmp_path / "home/.config/dualtrack/credentials.json", {"base_url": "http://home:1", "api_key": "dt_home"})
    assert find("http://home:1", None, environ=environ, cwd=tmp_path).api_key == "dt_home"


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, environ: dict[str, str], mode: int) -> None:
    _store(tmp_path / ".dualtrack/credentials.json", {"base_url": "http://here:1", "api_key": "dt_here"}, mode)
    with pytest.raises(UsageProblem, match="chmod 600"):
        find(None, None, environ=environ, cwd=tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"base_url": 3}',
        '{"base_url": "ftp://x", "api_key": "k"}',
        '{"base_url": "http://x", "api_key": 1}',
        '{"base_url": "http://x", "database_url": 1}',
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, environ: dict[str, str], content: str) -> None:
    _store(tmp_path / ".dualtrack/credentials.json", content)
    with pytest.raises(UsageProblem, match=r"credentials\.json"):
        find(None, None, environ=environ, cwd=tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "x",
        "ftp://x",
        "http://",
        "http://x:port",
        "http://u:p@x",
        "http://x?a=b",
        "http://[x",
        "http://x:99999",
        "http://a b",
        "http://...",
        "http://x/\udcff",
    ],
)
def test_no_address(tmp_path: Path, environ: dict[str, str], url: str) -> None:
    with pytest.raises(UsageProblem, match="no address"):
        find(url, "k", environ=environ, cwd=tmp_path)


@pytest.mark.parametrize("key", ["a b", "a\n", "clé"])
def test_a_key_that_no_header_holds(tmp_path: Path, environ: dict[str, str], key: str) -> None:
    with pytest.raises(UsageProblem, match="API key"):
        find(None, key, environ=environ, cwd=tmp_path)


def test_the_database_of_the_file_in_force(tmp_path: Path, environ: dict[str, str]) -> None:
    assert find_database(None, environ=environ, cwd=tmp_path) is None
    path = tmp_path / ".dualtrack/credentials.json"
    _store(path, {"base_url": "http://here:1", "api_key": "dt_here"})
    assert find_database(None, environ=environ, cwd=tmp_path) is None
    _store(path, {"base_url": "http://here:1", "api_key": "dt_here", "database_url": "postgresql+psycopg:///x"})
    assert find(None, None, environ=environ, cwd=tmp_path) == Credentials("http://here:1", "dt_here")
    assert find_database(None, environ=environ, cwd=tmp_path) == StoredDatabase("postgresql+psycopg:///x", path)
    assert find_database("http://here:1/v1", environ=environ, cwd=tmp_path) is not None


def test_a_files_database_belongs_to_its_own_address(tmp_path: Path, environ: dict[str, str]) -> None:
    _store(tmp_path / ".dualtrack/credentials.json", {"base_url": "http://here:1", "database_url": "postgresql+psycopg:///x"})
    assert find_database("http://other:1", environ=environ, cwd=tmp_path) is None
    assert find_database(None, environ=environ | {"DUALTRACK_BASE_URL": "http://other:1"}, cwd=tmp_path) is None


def test_a_files_database_is_not_taken_from_a_file_that_others_can_read(tmp_path: Path, environ: dict[str, str]) -> None:
    _store(tmp_path / ".dualtrack/credentials.json", {"base_url": "http://here:1", "database_url": "postgresql+psycopg:///x"}, 0o644)
    with pytest.raises(UsageProblem, match="chmod 600"):
        find_database(None, environ=environ, cwd=tmp_path)
