"""Every command against a router made of canned answers: what it asks, what it prints where, and its exit status."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from cli.follow import Follower
from cli.main import app
from cli.outcome import Exit
from cli.session import Session
from cli.watch import watch

_JOB: dict[str, Any] = {
    "id": "job_1",
    "object": "job",
    "status": "queued",
    "reason": None,
    "message": None,
    "answer": None,
    "plan": [{"title": "Read", "status": "done"}],
    "step": 0,
    "usage": {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0, "total_tokens": 0, "cost_usd": "0"},
    "instructions": "Summarise",
    "agent": {"name": "default", "model": "deep", "tools": ["finish"]},
    "inputs": [],
    "checks": [],
    "metadata": {"team": "x"},
    "last_seq": 3,
    "created_at": "2026-11-30T08:00:00Z",
}
_REPORT = b"# Report\n\x1b[31mred\n"
_ARTIFACT = {
    "id": "art_1",
    "name": "../report.md",
    "size": len(_REPORT),
    "sha256": hashlib.sha256(_REPORT).hexdigest(),
    "content_type": "text/markdown",
}


def _sse(*events: Any, done: bool = False) -> httpx.Response:
    frames = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + ("data: [DONE]\n\n" if done else "")
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=frames)


def _event(seq: int, kind: str, **data: Any) -> dict[str, Any]:
    return {"seq": seq, "type": kind, "at": f"2026-11-30T08:00:0{seq}Z", "job_id": "job_1", "data": data}


class _Router:
    """Canned answers by method and path; remembers what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[httpx.Request], httpx.Response]] = {}
        self.asked: list[httpx.Request] = []
        self.on("GET /v1/jobs/job_1", _JOB)

    def on(self, what: str, answer: Any, status: int = 200) -> None:
        self.answers[what] = answer if callable(answer) else lambda _: httpx.Response(status, json=answer)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.asked.append(request)
        answer = self.answers.get(f"{request.method} {request.url.path}")
        return answer(request) if answer else httpx.Response(404, json={"error": {"message": "Nothing here.", "code": "not_found"}})

    def body(self, position: int = -1) -> Any:
        return json.loads(self.asked[position].content)


@pytest.fixture
def router() -> _Router:
    return _Router()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(router: _Router, tmp_path: Path) -> Callable[..., Result]:
    environ = {"HOME": str(tmp_path), "DUALTRACK_API_KEY": "dt_key"}

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        session = Session(environ=environ, transport=httpx.MockTransport(router))
        result = CliRunner().invoke(app, list(arguments), input=stdin, obj=session)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


Run = Callable[..., Result]


def test_models(router: _Router, run: Run) -> None:
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


def test_options_reach_the_connection(router: _Router, run: Run) -> None:
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
def test_failures(router: _Router, run: Run, answer: httpx.Response | Exception, status: int, words: str) -> None:
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
def test_wrong_usage(router: _Router, run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout, router.asked) == (Exit.USAGE, "", [])
    assert result.stderr


def test_no_key_says_what_to_do(router: _Router, tmp_path: Path) -> None:
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


def _chunk(content: str | None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]}


def test_chat_streams(router: _Router, run: Run) -> None:
    router.on(
        "POST /v1/chat/completions", lambda _: _sse(_chunk("Hel"), _chunk("lo\x1b[2J"), {"choices": []}, _chunk(None, "stop"), done=True)
    )
    result = run("chat", "Hi", "--system", "Be short", "--model", "qwen")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello\n", "")
    messages = [{"role": "system", "content": "Be short"}, {"role": "user", "content": "Hi"}]
    assert router.body() == {"model": "qwen", "messages": messages, "stream": True}


@pytest.mark.parametrize("arguments", [["chat"], ["chat", "-"]])
def test_chat_reads_standard_input(router: _Router, run: Run, arguments: list[str]) -> None:
    router.on("POST /v1/chat/completions", lambda _: _sse(_chunk("ok", "length"), done=True))
    result = run(*arguments, stdin="from a file\n")
    assert result.stdout == "ok\n"
    assert "output limit" in result.stderr
    assert router.body()["messages"] == [{"role": "user", "content": "from a file\n"}]


def test_chat_as_json_is_one_document(router: _Router, run: Run) -> None:
    router.on("POST /v1/chat/completions", {"id": "chatcmpl_1", "choices": []})
    assert json.loads(run("chat", "Hi", "--json").stdout)["id"] == "chatcmpl_1"
    assert "stream" not in router.body()


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([_chunk("half")], "stream_cut"),
        ([_chunk("half"), {"error": {"message": "gone", "code": "model_unavailable"}}], "model_unavailable"),
    ],
)
def test_a_chat_that_breaks_off_is_an_error(router: _Router, run: Run, events: list[Any], code: str) -> None:
    router.on("POST /v1/chat/completions", lambda _: _sse(*events))
    result = run("chat", "Hi")
    assert (result.exit_code, result.stdout) == (Exit.API_ERROR, "half\n")
    assert code in result.stderr


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_talk_remembers_and_survives_an_error(router: _Router, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cli import chat

    answers: Iterator[httpx.Response] = iter(
        [
            _sse(_chunk("one"), done=True),
            httpx.Response(503, json={"error": {"message": "busy", "code": "model_unavailable"}}),
            _sse(_chunk("two"), done=True),
            _sse(_chunk("three"), done=True),
        ]
    )
    router.on("POST /v1/chat/completions", lambda _: next(answers))
    lines = iter(["a", "", "b", "c", "/clear", "d"])

    def typed(_: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr("sys.stdin", _Terminal())
    monkeypatch.setattr("cli.output.Output.to_terminal", True)
    session = Session(environ={"HOME": str(tmp_path), "DUALTRACK_API_KEY": "k"}, transport=httpx.MockTransport(router))
    chat.chat(session, None, model="fast", system="S")
    said = [[message["content"] for message in router.body(n)["messages"]] for n in range(4)]
    assert said == [["S", "a"], ["S", "a", "one", "b"], ["S", "a", "one", "c"], ["S", "d"]]


def test_submit_sends_everything(router: _Router, run: Run, tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("id\n")
    (tmp_path / "a:b.txt").write_text("x")
    (tmp_path / "job.yaml").write_text(
        "instructions: Old\nchecks: ['true']\nlimits: {steps: 5, tokens: 100}\nmetadata: {team: x}\nagent: {name: writer}\n"
    )
    router.on("POST /v1/files", lambda request: httpx.Response(201, json={"id": "file_a" if b"a:b.txt" in request.content else "file_o"}))
    router.on("POST /v1/jobs", _JOB, 201)
    options = (
        "--check|test -s r.md|--model|deep2|--tool|shell|--max-steps|9|--max-cost|0.50|--max-wall-time|60|--metadata|k=v=w|--priority|3"
    )
    result = run(
        "jobs",
        "submit",
        "New",
        "--spec",
        "job.yaml",
        "--file",
        "orders.csv:data/o.csv",
        "-f",
        "a:b.txt",
        "--idempotency-key",
        "once",
        *options.split("|"),
    )
    assert (result.exit_code, result.stdout) == (0, "job_1\n")
    assert router.body() == {
        "instructions": "New",
        "checks": ["true", "test -s r.md"],
        "limits": {"steps": 9, "tokens": 100, "cost_usd": "0.50", "wall_time_s": 60},
        "metadata": {"team": "x", "k": "v=w"},
        "agent": {"name": "writer", "model": "deep2", "tools": ["shell"]},
        "priority": 3,
        "inputs": [{"file_id": "file_o", "path": "data/o.csv"}, {"file_id": "file_a"}],
    }
    assert router.asked[-1].headers["idempotency-key"] == "once"


def test_submit_from_standard_input_under_a_key_of_its_own(router: _Router, run: Run) -> None:
    router.on("POST /v1/jobs", _JOB, 201)
    assert json.loads(run("jobs", "submit", "--json", stdin="Do it").stdout)["id"] == "job_1"
    run("jobs", "submit", "-", stdin="Do it")
    assert router.body() == {"instructions": "Do it"}
    keys = [request.headers["idempotency-key"] for request in router.asked]
    assert len(set(keys)) == 2


def test_a_job_that_waits_for_its_children_shows_them_and_what_the_family_used(router: _Router, run: Run) -> None:
    children = [
        {"id": "job_2", "call_id": "call_2", "status": "waiting", "reason": "budget", "message": "Extend job_1."},
        {"id": "job_3", "call_id": "call_3", "status": "running", "reason": None, "message": None},
    ]
    usage = {"input_tokens": 12_000, "output_tokens": 34, "cached_tokens": 5, "total_tokens": 12_034, "cost_usd": "0.5"}
    family = {"jobs": 3, "live": 2, "waiting": 1, "step": 9, "usage": usage, "complete": True}
    job = {**_JOB, "status": "running", "waiting_for": {"reason": "children", "children": children}, "family": family}
    router.on("GET /v1/jobs/job_1", job)
    shown = run("jobs", "show", "job_1").stdout
    assert "status        running (waits for 2 children)\n" in shown
    assert "waits for     child job_2, waiting (budget): Extend job_1.\n              child job_3, running\n" in shown
    assert "family        3 below it, 2 live, 1 waiting for somebody\n" in shown
    assert "all together: 9 steps, 12,000 in (5 from cache), 34 out, $0.5\n" in shown
    router.on("GET /v1/jobs", {"object": "list", "data": [job], "has_more": False})
    assert "running (waits for 2 children)" in run("jobs", "list").stdout
    router.on("GET /v1/jobs/job_1", {**job, "family": {**family, "complete": False}})
    assert "at least 3 below it" in run("jobs", "show", "job_1").stdout


def test_outputs_are_sent_and_shown(router: _Router, run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("instructions: Write\noutputs: [a.md]\n")
    router.on("POST /v1/jobs", _JOB, 201)
    assert run("jobs", "submit", "--spec", "job.yaml", "--output", "out/report.md", "--output", "b.md").exit_code == 0
    assert router.body()["outputs"] == ["a.md", "out/report.md", "b.md"]
    router.on("GET /v1/jobs/job_1", {**_JOB, "outputs": ["out/report.md", "b.md"]})
    assert "outputs       out/report.md\n              b.md\n" in run("jobs", "show", "job_1").stdout


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["a", "a"], "share the workspace path 'a'"),
        (["a", "b:./a"], "share the workspace path 'a'"),
        (["a:/workspace/x", "b:x"], "share the workspace path 'x'"),
        (["a", "b:a/b"], "one inside the other"),
        (["a:in/b/c", "b:in/b"], "one inside the other"),
        (["a:data.csv"], "share the workspace path 'data.csv'"),
    ],
)
def test_files_in_each_others_way_are_refused_before_the_upload(
    router: _Router, run: Run, tmp_path: Path, files: list[str], words: str
) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").write_text("x")
    (tmp_path / "job.json").write_text(json.dumps({"inputs": [{"file_id": "file_1", "path": "data.csv"}, {"file_id": "file_2"}]}))
    options = [option for item in files for option in ("--file", item)]
    result = run("jobs", "submit", "x", "--spec", "job.json", *options)
    assert (result.exit_code, router.asked) == (Exit.USAGE, [])
    assert words in result.stderr


def test_files_with_like_names_are_not_in_each_others_way(router: _Router, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    router.on("POST /v1/files", {"id": "file_1"}, 201)
    router.on("POST /v1/jobs", _JOB, 201)
    assert run("jobs", "submit", "x", "--file", "a:d/a", "--file", "a:d/a.txt", "--file", "a:da").exit_code == 0


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
def test_what_is_no_file_is_called_what_it_is(router: _Router, run: Run, tmp_path: Path, command: list[str], path: str, words: str) -> None:
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


@pytest.mark.parametrize("key", ["é", "", "a\nb", "k" * 256])
def test_an_idempotency_key_that_the_api_takes_not(router: _Router, run: Run, tmp_path: Path, key: str) -> None:
    (tmp_path / "a").write_text("x")
    result = run("jobs", "submit", "x", "--file", "a", "--idempotency-key", key)
    assert (result.exit_code, router.asked) == (Exit.USAGE, [])
    assert "--idempotency-key" in result.stderr
    assert len(result.stderr.splitlines()) == 1


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
def test_what_is_no_utf8_is_named(router: _Router, run: Run, tmp_path: Path, arguments: list[str], name: str) -> None:
    (tmp_path / "a").write_text("x")
    result = run(*arguments)
    assert (result.exit_code, result.stdout, router.asked) == (Exit.USAGE, "", [])
    assert result.stderr.startswith(f"Error: {name}")
    assert "UTF-8" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_file_whose_name_is_no_utf8(router: _Router, run: Run, tmp_path: Path) -> None:
    name = os.fsdecode(b"a\xff.csv")
    (tmp_path / name).write_text("x")
    for arguments in (["files", "upload", name], ["jobs", "submit", "x", "--file", name]):
        result = run(*arguments)
        assert (result.exit_code, router.asked) == (Exit.USAGE, [])
        assert "no valid UTF-8" in result.stderr
        assert len(result.stderr.splitlines()) == 1
    router.on("POST /v1/files", {"id": "file_1"}, 201)
    router.on("POST /v1/jobs", _JOB, 201)
    assert run("jobs", "submit", "x", "--file", f"{name}:in/a.csv").exit_code == 0
    assert b'filename="a.csv"' in router.asked[0].content
    assert router.body()["inputs"] == [{"file_id": "file_1", "path": "in/a.csv"}]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"checks": [""]}, "checks.0: must not be empty"),
        ({"agent": {"tools": []}}, "agent.tools: must not be empty"),
        ({"outputs": "a"}, "outputs: must be a list"),
        ({"outputs": ["."]}, "must name a file"),
        ({"limits": {"steps": 0}, "priority": 10}, "limits.steps: must be at least 1; priority: must be at most 9."),
        ({"limits": {"steps": "many"}}, "limits.steps: must be a whole number"),
        ({"limits": {"cost_usd": "much"}}, "limits.cost_usd: must be a number"),
        ({"limits": {"cost_usd": "nan"}}, "limits.cost_usd: must be a finite number"),
        ({"limits": []}, "limits: must be a mapping"),
        ({"metadata": {"a": 1}}, "metadata.a: must be text"),
        ({"metadata": {"": "x"}}, "metadata: a key must not be empty"),
        ({"metadata": {"a": "x" * 600}}, "metadata.a: may have at most 512 characters"),
        ({"agent": {"tools": ["two words"]}, "priority": -1}, "starting with a letter or digit; priority: must be at least 0."),
        ({"agent": {"model": "two words"}}, "agent.model: must be a name"),
        ({"instruction": "x"}, "instruction: there is no such field"),
        ({"inputs": [{}]}, "inputs.0.file_id: is missing"),
        ({"instructions": "\ud800"}, "instructions: must be valid UTF-8 text"),
        ({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, "(and 2 more)."),
    ],
)
def test_a_refused_specification_is_told_in_plain_words(
    router: _Router, run: Run, tmp_path: Path, spec: dict[str, Any], words: str
) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"instructions": "x", **spec}))
    result = run("jobs", "submit", "--spec", "job.json")
    assert (result.exit_code, router.asked) == (Exit.USAGE, [])
    assert words in result.stderr
    assert not any(word in result.stderr for word in ("Value error", "Input should", "tuple", "validation", "dictionary", "[key]"))


@pytest.mark.parametrize(
    "text", ["metadata: {day: 2026-11-30}", "limits: {cost_usd: .nan}", "instructions: !!binary aGk=", "checks: &a [*a]"]
)
def test_yaml_that_is_no_json_is_refused(router: _Router, run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    result = run("jobs", "submit", "x", "--spec", "job.yaml")
    assert (result.exit_code, router.asked) == (Exit.USAGE, [])
    assert "JSON has no word for" in result.stderr


def test_a_path_outside_the_workspace_is_refused_before_the_upload(router: _Router, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    result = run("jobs", "submit", "x", "--file", "a:../../etc/passwd")
    assert (result.exit_code, router.asked) == (Exit.USAGE, [])
    assert "leaves the workspace" in result.stderr


@pytest.mark.parametrize(
    ("kind", "data", "status"),
    [
        ("job.succeeded", {"answer": "42"}, Exit.OK),
        ("job.failed", {"reason": "limit_steps", "message": "Stopped after 5 steps."}, Exit.JOB_FAILED),
        ("job.cancelled", {}, Exit.CANCELLED),
        ("job.expired", {}, Exit.EXPIRED),
    ],
)
def test_the_exit_status_tells_how_a_job_ended(router: _Router, run: Run, kind: str, data: dict[str, Any], status: int) -> None:
    router.on("GET /v1/jobs/job_1/events", lambda _: _sse(_event(1, "job.started"), _event(2, kind, **data)))
    router.on("GET /v1/jobs/job_1/artifacts", {"data": [_ARTIFACT], "has_more": False})
    result = run("jobs", "watch", "job_1")
    assert result.exit_code == status
    assert result.stdout == (f"{data['answer']}\n" if "answer" in data else "")
    lines = result.stderr.splitlines()
    assert lines[0] == "[    0:01] started"
    assert kind.removeprefix("job.") in lines[1]
    assert "dualtrack artifacts get art_1" in lines[-1]


def test_at_a_terminal_the_last_line_moves(router: _Router, tmp_path: Path) -> None:
    call = {"id": "c", "tool": "shell", "arguments": {"command": "ls"}}
    plan = [{"title": "Look", "status": "in_progress"}]
    events = [
        _event(1, "step.decided", step=1, thought="Look", calls=[call], usage={"input_tokens": 7, "output_tokens": 1, "cost_usd": "0.02"}),
        _event(2, "plan.updated", step=1, plan=plan),
        _event(3, "call.started", call_id="c", step=1, tool="shell"),
        _event(4, "call.finished", call_id="c", step=1, tool="shell", ok=True, observation="\x1b]0;evil\x07a.txt"),
        _event(5, "job.cancelled"),
    ]
    router.on("GET /v1/jobs/job_1/events", lambda _: _sse(*events))
    session = Session(environ={"HOME": str(tmp_path), "DUALTRACK_API_KEY": "k"}, transport=httpx.MockTransport(router))
    screen = io.StringIO()
    session.out.__dict__["errors"] = Console(file=screen, force_terminal=True, width=100, highlight=False, markup=False, soft_wrap=True)
    assert watch(session, "job_1") == Exit.CANCELLED
    shown = screen.getvalue()
    assert "step 1  shell ls  8 tokens, $0.02" in shown
    assert "           [>] Look" in shown
    assert "           a.txt" in shown
    assert "\x1b]" not in shown


def test_watching_as_json_gives_the_events_only(router: _Router, run: Run) -> None:
    events = [_event(2, "job.started"), _event(3, "job.failed", reason="no_progress")]
    router.on("GET /v1/jobs/job_1/events", lambda _: _sse(*events))
    result = run("jobs", "watch", "job_1", "--after", "1", "--json")
    assert [json.loads(line) for line in result.stdout.splitlines()] == events
    assert (result.exit_code, result.stderr) == (Exit.JOB_FAILED, "")
    assert router.asked[-1].url.params["after"] == "1"


def test_submit_and_watch_as_json(router: _Router, run: Run) -> None:
    router.on("POST /v1/jobs", _JOB, 201)
    router.on("GET /v1/jobs/job_1/events", lambda _: _sse(_event(1, "job.succeeded", answer="x")))
    result = run("jobs", "submit", "Do", "--watch", "--json")
    assert [json.loads(line).get("object", "event") for line in result.stdout.splitlines()] == ["job", "event"]
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_job_that_had_ended_before(router: _Router, run: Run) -> None:
    router.on("GET /v1/jobs/job_1", {**_JOB, "status": "expired"})
    router.on("GET /v1/jobs/job_1/events", lambda _: _sse())
    assert run("jobs", "watch", "job_1", "--after", "3").exit_code == Exit.EXPIRED


def test_interrupted_says_that_the_job_goes_on(router: _Router, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Follower):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            for event in super().__iter__():
                yield event
                raise KeyboardInterrupt

    monkeypatch.setattr("cli.watch.Follower", Interrupted)
    router.on("GET /v1/jobs/job_1/events", lambda _: _sse(_event(1, "job.started"), _event(2, "job.succeeded")))
    result = run("jobs", "watch", "job_1")
    assert result.exit_code == Exit.INTERRUPTED
    assert "the job goes on" in result.stderr
    assert "dualtrack jobs watch job_1 --after 1\n" in result.stderr
    assert "dualtrack jobs cancel job_1\n" in result.stderr


def test_interrupted_elsewhere(router: _Router, run: Run) -> None:
    def interrupt(_: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    router.on("GET /v1/models", interrupt)
    assert run("models").exit_code == Exit.INTERRUPTED


def test_list(router: _Router, run: Run) -> None:
    router.on("GET /v1/jobs", {"data": [{**_JOB, "status": "failed", "reason": "limit_steps"}], "has_more": True, "next_cursor": "job_1"})
    result = run("jobs", "list", "--status", "failed", "--status", "expired", "--limit", "1")
    assert result.stdout.splitlines()[1] == "job_1\tfailed (limit_steps)\t0\t2026-11-30 08:00:00Z\tSummarise"
    assert "more" in result.stderr
    assert router.asked[0].url.params.get_list("status") == ["failed", "expired"]


def test_show(router: _Router, run: Run) -> None:
    router.on("GET /v1/jobs/job_1", {**_JOB, "status": "succeeded", "answer": "Line\n\x1b]0;x\x07end"})
    result = run("jobs", "show", "job_1")
    assert result.exit_code == 0
    assert "plan          [x] Read\n" in result.stdout
    assert "answer        Line\n              end\n" in result.stdout
    assert json.loads(run("jobs", "show", "job_1", "--json").stdout)["answer"].startswith("Line\n\x1b")


def test_an_id_cannot_change_the_path(router: _Router, run: Run) -> None:
    run("jobs", "show", "../models?x=1")
    assert router.asked[0].url.raw_path == b"/v1/jobs/..%2Fmodels%3Fx%3D1"


def test_cancel(router: _Router, run: Run) -> None:
    router.on("POST /v1/jobs/job_1/cancel", {**_JOB, "status": "running"}, 202)
    result = run("jobs", "cancel", "job_1")
    assert (result.exit_code, result.stdout) == (0, "running\n")
    assert "stops as soon as" in result.stderr


def test_steps_and_a_whole_observation(router: _Router, run: Run) -> None:
    call = {
        "id": "call_1",
        "tool": "shell",
        "arguments": {"command": "ls"},
        "status": "succeeded",
        "observation": "a\nb",
        "truncated": True,
        "started_at": "2026-11-30T08:00:00Z",
        "finished_at": "2026-11-30T08:00:02Z",
    }
    step = {"number": 1, "thought": "Look", "reflection": "", "note": "", "model": "qwen", "calls": [call]}
    router.on("GET /v1/jobs/job_1/steps", {"data": [step], "has_more": False, "next_cursor": None})
    assert run("jobs", "steps", "job_1").stdout.splitlines() == [
        "step 1  qwen",
        "  thought: Look",
        "  succeeded shell ls in 2.0 s  call_1",
        "      a",
        "      b",
        "      (shortened; all of it: dualtrack jobs observation job_1 call_1)",
    ]
    router.on("GET /v1/jobs/job_1/calls/call_1/observation", lambda _: httpx.Response(200, text="a\nb\nc"))
    assert run("jobs", "observation", "job_1", "call_1").stdout == "a\nb\nc\n"
    assert json.loads(run("jobs", "observation", "job_1", "call_1", "--json").stdout)["text"] == "a\nb\nc"


def test_artifacts(router: _Router, run: Run, tmp_path: Path) -> None:
    router.on("GET /v1/jobs/job_1/artifacts", {"data": [_ARTIFACT], "has_more": False})
    router.on("GET /v1/artifacts/art_1", _ARTIFACT)
    router.on("GET /v1/artifacts/art_1/content", lambda _: httpx.Response(200, content=_REPORT))
    assert run("artifacts", "list", "job_1").stdout.splitlines()[1] == "art_1\t../report.md\t18 B\ttext/markdown"
    assert run("artifacts", "get", "art_1").stdout == "report.md\n"
    assert (tmp_path / "report.md").read_bytes() == _REPORT
    (tmp_path / "report.md").write_text("mine")
    assert run("artifacts", "get", "art_1").exit_code == Exit.USAGE
    assert (tmp_path / "report.md").read_text() == "mine"
    found = json.loads(run("artifacts", "get", "art_1", "--force", "--json").stdout)
    assert (found["path"], found["bytes"]) == ("report.md", len(_REPORT))
    (tmp_path / "sub").mkdir()
    assert run("artifacts", "get", "art_1", "-o", "sub").stdout == "sub/report.md\n"
    assert run("artifacts", "get", "art_1", "-o", "other.md").exit_code == 0
    assert (tmp_path / "other.md").read_bytes() == _REPORT
    for place in ("-", "/dev/stdout", "/dev/fd/1"):
        assert run("artifacts", "get", "art_1", "-o", place).stdout_bytes == _REPORT
        assert run("artifacts", "get", "art_1", "-o", place, "--json").exit_code == Exit.USAGE
    (tmp_path / "link").symlink_to("other.md")
    (tmp_path / "other.md").write_text("old")
    assert run("artifacts", "get", "art_1", "-o", "link", "--force").exit_code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "other.md").read_bytes() == _REPORT
    assert run("artifacts", "get", "art_1", "-o", "/dev/null").stdout == "/dev/null\n"
    full = run("artifacts", "get", "art_1", "-o", "/dev/full", "--force")
    assert (full.exit_code, full.stdout) == (Exit.OUTPUT, "")
    assert "No space left" in full.stderr


def test_the_exit_status_tells_of_the_job_even_if_its_artifacts_cannot_be_listed(router: _Router, run: Run) -> None:
    router.on("GET /v1/jobs/job_1/events", lambda _: _sse(_event(1, "job.succeeded", answer="x")))
    result = run("jobs", "watch", "job_1")
    assert (result.exit_code, result.stdout) == (0, "x\n")
    assert "dualtrack artifacts list job_1" in result.stderr


def test_a_damaged_download_is_refused(router: _Router, run: Run, tmp_path: Path) -> None:
    router.on("GET /v1/artifacts/art_1", _ARTIFACT)
    router.on("GET /v1/artifacts/art_1/content", lambda _: httpx.Response(200, content=b"other"))
    assert run("artifacts", "get", "art_1").exit_code == Exit.API_ERROR
    assert list(tmp_path.iterdir()) == []


def test_files(router: _Router, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    router.on("POST /v1/files", {"id": "file_1"}, 201)
    router.on("GET /v1/files", {"data": [{"id": "file_1", "filename": "a.csv", "bytes": 1}], "has_more": False})
    assert run("files", "upload", "a.csv").stdout == "file_1\n"
    assert run("files", "list").stdout == "ID\tNAME\tSIZE\nfile_1\ta.csv\t1 B\n"
    assert run("files", "upload", "missing").exit_code == Exit.USAGE


def test_extending_a_job_says_what_is_still_short(run: Run, router: _Router) -> None:
    router.on("POST /v1/jobs/job_1/extend", {**_JOB, "status": "waiting", "reason": "budget", "message": "5 of the job's 5 steps are used"})
    result = run("jobs", "extend", "job_1", "--max-steps", "9", "--max-cost", "1.5")
    assert (result.exit_code, result.stdout.strip()) == (0, "waiting (budget)")
    assert "5 of the job's 5 steps" in result.stderr
    assert router.body() == {"limits": {"steps": 9, "cost_usd": "1.5"}}
    assert run("jobs", "extend", "job_1").exit_code == Exit.USAGE


def test_pause_and_resume(run: Run, router: _Router) -> None:
    router.on("POST /v1/jobs/job_1/pause", {**_JOB, "status": "running", "hold": "paused"}, status=202)
    later = run("jobs", "pause", "job_1")
    assert (later.exit_code, later.stdout) == (0, "running\n")
    assert "as soon as what runs is finished" in later.stderr
    router.on("POST /v1/jobs/job_1/pause", {**_JOB, "status": "waiting", "reason": "paused"})
    assert (run("jobs", "pause", "job_1").stdout, run("jobs", "pause", "job_1").stderr) == ("waiting (paused)\n", "")
    router.on("POST /v1/jobs/job_1/resume", _JOB)
    assert run("jobs", "resume", "job_1").stdout == "queued\n"
    assert json.loads(run("jobs", "resume", "job_1", "--json").stdout)["status"] == "queued"


def test_a_message(run: Run, router: _Router) -> None:
    router.on("POST /v1/jobs/job_1/messages", {"number": 3}, status=201)
    assert "message 3" in run("jobs", "message", "job_1", "Leave out 2024.").stderr
    assert router.body() == {"content": "Leave out 2024."}
    assert router.asked[-1].headers["idempotency-key"].startswith("cli-")
    run("jobs", "message", "job_1", "-", stdin="from\nstdin")
    assert router.body() == {"content": "from\nstdin"}
    assert run("jobs", "message", "job_1", "-", stdin=" ").exit_code == Exit.USAGE


def test_fork_and_retry(run: Run, router: _Router) -> None:
    made = {**_JOB, "id": "job_2", "forked_from": "job_1", "forked_step": 4}
    router.on("POST /v1/jobs/job_1/fork", made, status=201)
    router.on("POST /v1/jobs/job_1/retry", made, status=201)
    options = ("-m", "differently", "--model", "fast", "--max-steps", "9", "--check", "true", "--metadata", "a=b", "--idempotency-key", "k")
    forked = run("jobs", "fork", "job_1", "4", *options)
    assert (forked.exit_code, forked.stdout) == (0, "job_2\n")
    assert "from step 4" in forked.stderr
    changes = {"message": "differently", "agent": {"model": "fast"}, "limits": {"steps": 9}, "checks": ["true"], "metadata": {"a": "b"}}
    assert router.body() == {"step": 4} | changes
    assert router.asked[-1].headers["idempotency-key"] == "k"
    assert run("jobs", "retry", "job_1").stdout == "job_2\n"
    assert router.body() == {}
    router.on("GET /v1/jobs/job_2", {**made, "status": "succeeded"})
    router.on("GET /v1/jobs/job_2/events", lambda _: _sse(_event(1, "job.queued"), _event(2, "job.succeeded", answer="yes")))
    router.on("GET /v1/jobs/job_2/artifacts", {"data": [], "has_more": False})
    watched = run("jobs", "retry", "job_1", *options[:8], "--watch")
    assert (watched.exit_code, watched.stdout) == (0, "yes\n")
    assert "from step 4 of job_1" in watched.stderr
    assert run("jobs", "fork", "job_1", "-1").exit_code == Exit.USAGE
