"""`dualtrack approvals` against canned answers, and what a follower says while a job waits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from cli.outcome import Exit
from cli.progress import JobProgress
from cli.session import Session

_ID = "appr_1"
_APPROVAL: dict[str, Any] = {
    "id": _ID,
    "kind": "call",
    "status": "pending",
    "job_id": "job_1",
    "call_id": "call_1",
    "tool": "shell",
    "arguments": {"command": "rm -rf build"},
    "arguments_sha256": "ab" * 32,
    "message": "Removes files.",
    "created_at": "2026-11-30T08:00:00Z",
    "expires_at": "2026-12-01T08:00:00Z",
    "decided_at": None,
    "decided_by": None,
    "note": None,
    "edited_arguments": None,
    "edited_sha256": None,
    "outcome": None,
}
Run = Callable[..., Result]


class _Router:
    def __init__(self) -> None:
        self.asked: list[httpx.Request] = []
        self.answer = _APPROVAL

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if request.url.path == "/v1/approvals":
            return httpx.Response(200, json={"object": "list", "data": [self.answer], "has_more": False, "next_cursor": None})
        if request.url.path.startswith(f"/v1/approvals/{_ID}"):
            return httpx.Response(200, json=self.answer)
        return httpx.Response(409, json={"error": {"message": "Too late, it is decided: denied.", "code": "approval_decided"}})

    @property
    def last(self) -> tuple[str, str, Any]:
        request = self.asked[-1]
        return request.method, request.url.path, json.loads(request.content) if request.content else None


@pytest.fixture
def router() -> _Router:
    return _Router()


@pytest.fixture
def run(router: _Router, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        session = Session(environ={"HOME": str(tmp_path), "DUALTRACK_API_KEY": "dt_key"}, transport=httpx.MockTransport(router))
        return CliRunner().invoke(app, ["approvals", *arguments], input=stdin, obj=session)

    return invoke


def test_list_shows_what_waits(router: _Router, run: Run) -> None:
    result = run("list")
    assert "appr_1\tcall\tpending\t2026-12-01 08:00:00Z\tjob_1\tshell rm -rf build" in result.stdout
    assert router.asked[-1].url.params.get_list("status") == ["pending"]
    run("list", "--any", "--job", "job_1")
    assert router.asked[-1].url.params.get_list("status") == []
    assert router.asked[-1].url.params["job_id"] == "job_1"
    assert json.loads(run("list", "--json").stdout)["data"] == [_APPROVAL]


def test_show_tells_all_and_steers_no_terminal(router: _Router, run: Run) -> None:
    router.answer = _APPROVAL | {"arguments": {"command": "ls\x1b[2J\nrm"}, "decided_by": {"id": "key_1", "name": "ops"}}
    shown = run("show", _ID).stdout
    assert "Removes files." in shown
    assert "ops" in shown
    assert "\x1b" not in shown
    assert "ab" * 32 in shown


def test_approve_sends_what_was_given(router: _Router, run: Run) -> None:
    router.answer = _APPROVAL | {"status": "approved"}
    result = run("approve", _ID)
    assert (result.stdout, router.last) == ("approved: shell rm -rf build\n", ("POST", f"/v1/approvals/{_ID}/approve", {}))
    run("approve", _ID, "--sha256", "ab" * 32, "--note", "ok", "--arguments", '{"command": "ls"}')
    assert router.last[2] == {"arguments_sha256": "ab" * 32, "note": "ok", "arguments": {"command": "ls"}}
    run("approve", _ID, "--arguments", "-", stdin='{"command": "pwd"}\n')
    assert router.last[2] == {"arguments": {"command": "pwd"}}


@pytest.mark.parametrize("arguments", ["{", "7", "[" * 100_000])
def test_arguments_that_are_none_are_refused_here(router: _Router, run: Run, arguments: str) -> None:
    result = run("approve", _ID, "--arguments", arguments)
    assert result.exit_code == Exit.USAGE
    assert "--arguments" in result.stderr
    assert router.asked == []


def test_the_other_decisions(router: _Router, run: Run) -> None:
    run("deny", _ID, "not today")
    assert router.last == ("POST", f"/v1/approvals/{_ID}/deny", {"reason": "not today"})
    run("answer", _ID, "-", stdin="the red one\n")
    assert router.last == ("POST", f"/v1/approvals/{_ID}/answer", {"text": "the red one"})
    run("resolve", _ID, "happened", "--observation", "receipt 7")
    assert router.last == ("POST", f"/v1/approvals/{_ID}/resolve", {"outcome": "happened", "observation": "receipt 7"})
    assert run("resolve", _ID, "perhaps").exit_code == Exit.USAGE


def test_a_conflict_is_told(run: Run) -> None:
    result = run("approve", "appr_2")
    assert result.exit_code == Exit.API_ERROR
    assert "Too late" in result.stderr


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (
            {"kind": "call", "tool": "shell", "arguments": {"command": "rm -rf build"}, "message": "Removes files"},
            "needs approval (Removes files): shell rm -rf build · dualtrack approvals show|approve|deny appr_1",
        ),
        ({"kind": "question", "message": "Which colour?"}, "asks: Which colour? · dualtrack approvals answer appr_1 TEXT"),
        (
            {"kind": "unknown", "tool": "pay", "arguments": {}},
            "pay: may have happened or not · dualtrack approvals resolve appr_1 OUTCOME",
        ),
    ],
)
def test_a_follower_says_what_to_type(data: dict[str, Any], line: str) -> None:
    event = {"seq": 1, "type": "approval.requested", "at": "2026-11-30T08:00:00Z", "data": data | {"approval_id": _ID}}
    assert JobProgress().feed(event) == [f"[    0:00] {line}"]
