"""`dualtrack files` and `dualtrack artifacts`: what goes up, what comes down, and where it may be written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx
import pytest

from cli.outcome import Exit

from .conftest import ARTIFACT, JOB, REPORT, Router, Run


@pytest.mark.parametrize("command", [["jobs", "submit", "x", "--file"], ["files", "upload"]])
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("missing", "there is no such file"),
        ("folder", "it is a directory"),
        ("pipe", "it is a pipe (FIFO)"),
        ("/dev/zero", "it is a character device"),
        ("n" * 300, "File name too long"),
        ("loop", "can't be read"),
    ],
)
def test_what_is_no_file_is_called_what_it_is(router: Router, run: Run, tmp_path: Path, command: list[str], path: str, words: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    result = run(*command, path)
    assert (result.exit_code, router.asked) == (Exit.USAGE, [])
    assert words in result.stderr
    if "jobs" in command and path != "missing":
        with_workspace = run(*command, f"{path}:in.txt")
        assert (with_workspace.exit_code, router.asked) == (Exit.USAGE, [])
        assert words in with_workspace.stderr


def test_a_file_whose_name_is_no_utf8(router: Router, run: Run, tmp_path: Path) -> None:
    name = os.fsdecode(b"a\xff.csv")
    (tmp_path / name).write_text("x")
    for arguments in (["files", "upload", name], ["jobs", "submit", "x", "--file", name]):
        result = run(*arguments)
        assert (result.exit_code, router.asked) == (Exit.USAGE, [])
        assert "no valid UTF-8" in result.stderr
        assert len(result.stderr.splitlines()) == 1
    router.on("POST /v1/files", {"id": "file_1"}, 201)
    router.on("POST /v1/jobs", JOB, 201)
    assert run("jobs", "submit", "x", "--file", f"{name}:in/a.csv").exit_code == 0
    assert b'filename="a.csv"' in router.asked[0].content
    assert router.body()["inputs"] == [{"file_id": "file_1", "path": "in/a.csv"}]


def test_artifacts(router: Router, run: Run, tmp_path: Path) -> None:
    router.on("GET /v1/jobs/job_1/artifacts", {"data": [ARTIFACT], "has_more": False})
    router.on("GET /v1/artifacts/art_1", ARTIFACT)
    router.on("GET /v1/artifacts/art_1/content", lambda _: httpx.Response(200, content=REPORT))
    assert run("artifacts", "list", "job_1").stdout.splitlines()[1] == "art_1\t../report.md\t18 B\ttext/markdown"
    assert run("artifacts", "get", "art_1").stdout == "report.md\n"
    assert (tmp_path / "report.md").read_bytes() == REPORT
    (tmp_path / "report.md").write_text("mine")
    assert run("artifacts", "get", "art_1").exit_code == Exit.USAGE
    assert (tmp_path / "report.md").read_text() == "mine"
    found = json.loads(run("artifacts", "get", "art_1", "--force", "--json").stdout)
    assert (found["path"], found["bytes"]) == ("report.md", len(REPORT))
    (tmp_path / "sub").mkdir()
    assert run("artifacts", "get", "art_1", "-o", "sub").stdout == "sub/report.md\n"
    assert run("artifacts", "get", "art_1", "-o", "other.md").exit_code == 0
    assert (tmp_path / "other.md").read_bytes() == REPORT
    for place in ("-", "/dev/stdout", "/dev/fd/1"):
        assert run("artifacts", "get", "art_1", "-o", place).stdout_bytes == REPORT
        assert run("artifacts", "get", "art_1", "-o", place, "--json").exit_code == Exit.USAGE
    (tmp_path / "link").symlink_to("other.md")
    (tmp_path / "other.md").write_text("old")
    assert run("artifacts", "get", "art_1", "-o", "link", "--force").exit_code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "other.md").read_bytes() == REPORT
    assert run("artifacts", "get", "art_1", "-o", "/dev/null").stdout == "/dev/null\n"
    full = run("artifacts", "get", "art_1", "-o", "/dev/full", "--force")
    assert (full.exit_code, full.stdout) == (Exit.OUTPUT, "")
    assert "No space left" in full.stderr


def test_a_damaged_download_is_refused(router: Router, run: Run, tmp_path: Path) -> None:
    router.on("GET /v1/artifacts/art_1", ARTIFACT)
    router.on("GET /v1/artifacts/art_1/content", lambda _: httpx.Response(200, content=b"other"))
    assert run("artifacts", "get", "art_1").exit_code == Exit.API_ERROR
    assert list(tmp_path.iterdir()) == []


def test_files(router: Router, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    router.on("POST /v1/files", {"id": "file_1"}, 201)
    router.on("GET /v1/files", {"data": [{"id": "file_1", "filename": "a.csv", "bytes": 1}], "has_more": False})
    assert run("files", "upload", "a.csv").stdout == "file_1\n"
    assert run("files", "list").stdout == "ID\tNAME\tSIZE\nfile_1\ta.csv\t1 B\n"
    assert run("files", "upload", "missing").exit_code == Exit.USAGE
