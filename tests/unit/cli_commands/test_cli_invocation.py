"""How a command is called: the connection, failures and their exit status, and what is wrong usage whatever the command."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.outcome import Exit
from cli.session import Session

from .conftest import Router, Run


def test_models(router: Router, run: Run) -> None:
    router.on(
        "GET /v1/models",
        {
            "object": "list",
            "data": [{"id": "fast", "track": True, "targets": ["qwen"]}, {"id": "qwen", "track": False, "targets": ["qwen"]}],
        },
    )
    result = run("models")
    assert (result.exit_code, result.stdout) == (0, "MODEL\tKIND\tSTANDS FOR\nfast\ttrack\tqwen\nqwen\tmodel\tqwen\n")
    assert router.asked[0].headers["authorization"] == "Bearer dt_key"
    assert json.loads(run("models", "--json").stdout)["data"][0]["id"] == "fast"
    assert json.loads(run("--json", "models").stdout)["data"][0]["id"] == "fast"


def test_options_reach_the_connection(router: Router, run: Run) -> None:
    router.on("GET /v1/models", {"data": []})
    run("--base-url", "http://one:1", "models", "--api-key", "dt_other")
    assert (router.asked[0].url.host, router.asked[0].headers["authorization"]) == ("one", "Bearer dt_other")
    run("--base-url", "http://one:1", "models", "--base-url", "http://two:2/v1")
    assert router.asked[1].url == "http://two:2/v1/models"


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (
            httpx.Response(401, json={"error": {"message": "Unknown key.", "code": "invalid_api_key"}}),
            Exit.API_ERROR,
            "Unknown key. (invalid_api_key)",
        ),
        (
            httpx.Response(503, json={"error": {"message": "It is down.", "code": "database_unavailable"}}, headers={"retry-after": "12"}),
            Exit.TRY_LATER,
            "It is down. (database_unavailable, try again in 12 s)",
        ),
        (httpx.Response(429, json={"error": {"message": "Used up.", "code": "budget_exceeded"}}), 75, "Used up. (budget_exceeded)"),
        (httpx.Response(504, text="<h1>Gateway Timeout</h1>", headers={"retry-after": "soon"}), 75, "HTTP 504"),
        (httpx.ConnectError("refused"), Exit.UNREACHABLE, "Can't reach http://127.0.0.1:8080"),
        (httpx.ReadTimeout("slow"), Exit.UNREACHABLE, "did not answer in time"),
    ],
)
def test_failures(router: Router, run: Run, answer: httpx.Response | Exception, status: int, words: str) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    router.on("GET /v1/models", fail)
    result = run("models")
    assert (result.exit_code, result.stdout) == (status, "")
    assert words in result.stderr


def test_failures_as_json(run: Run) -> None:
    result = run("jobs", "show", "job_9", "--json")
    assert (result.exit_code, result.stdout) == (Exit.API_ERROR, "")
    assert json.loads(result.stderr)["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["jobs", "list", "--limit", "0"],
        ["jobs", "list", "--status", "done"],
        ["jobs", "submit", "x", "--file", "missing.csv"],
        ["jobs", "submit", "x", "--metadata", "no-sign"],
        ["jobs", "submit", "x", "--max-cost", "much"],
        ["jobs", "submit", "x", "--tool", "bad tool"],
        ["jobs", "submit", " "],
        ["jobs", "submit", "x", "--spec", "missing.yaml"],
        ["chat", " "],
        ["models", "--base-url", "nowhere"],
        ["artifacts", "get", "art_1", "-o", "-", "--json"],
        ["keys", "create", ""],
        ["jobs", "show", ""],
        ["models", "--api-key", ""],
        ["--base-url", "", "models"],
        ["jobs", "submit", "x", "--model", ""],
        ["jobs", "submit", "x", "--output", "../x"],
        ["files", "upload", "."],
    ],
)
def test_wrong_usage(router: Router, run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout, router.asked) == (Exit.USAGE, "", [])
    assert result.stderr


def test_no_key_says_what_to_do(router: Router, tmp_path: Path) -> None:
    session = Session(environ={"HOME": str(tmp_path)}, transport=httpx.MockTransport(router))
    result = CliRunner().invoke(app, ["models"], obj=session)
    assert result.exit_code == Exit.USAGE
    assert "DUALTRACK_API_KEY" in result.stderr
    assert router.asked == []


def test_help_and_version_name_the_exit_statuses(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "130 interrupted" in " ".join(result.stdout.split())
    assert run("version").stdout.startswith("dualtrack 0.")
    assert set(json.loads(run("version", "--json").stdout)) == {"version", "python"}


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["chat", "a\udcffb"], "MESSAGE"),
        (["chat", "a", "--system", "\udcff"], "--system"),
        (["jobs", "show", "\udcff"], "ID"),
        (["jobs", "submit", "\udcff"], "INSTRUCTIONS"),
        (["jobs", "submit", "x", "--check", "ok", "--check", "\udcff"], "--check"),
        (["jobs", "submit", "x", "--file", "a:\udcff"], "--file"),
        (["keys", "create", "\udcff"], "NAME"),
        (["models", "--base-url", "http://127.0.0.1:1/\udcff"], "--base-url"),
        (["--api-key", "\udcff", "models"], "--api-key"),
    ],
)
def test_what_is_no_utf8_is_named(router: Router, run: Run, tmp_path: Path, arguments: list[str], name: str) -> None:
    (tmp_path / "a").write_text("x")
    result = run(*arguments)
    assert (result.exit_code, result.stdout, router.asked) == (Exit.USAGE, "", [])
    assert result.stderr.startswith(f"Error: {name}")
    assert "UTF-8" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_interrupted_elsewhere(router: Router, run: Run) -> None:
    def interrupt(_: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    router.on("GET /v1/models", interrupt)
    assert run("models").exit_code == Exit.INTERRUPTED


def test_an_id_cannot_change_the_path(router: Router, run: Run) -> None:
    run("jobs", "show", "../models?x=1")
    assert router.asked[0].url.raw_path == b"/v1/jobs/..%2Fmodels%3Fx%3D1"
