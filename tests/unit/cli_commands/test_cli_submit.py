"""`dualtrack jobs submit`: what is sent, and what is refused before anything is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.outcome import Exit

from .conftest import JOB, Router, Run


def test_submit_sends_everything(router: Router, run: Run, tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("id\n")
    (tmp_path / "a:b.txt").write_text("x")
    (tmp_path / "job.yaml").write_text(
        "instructions: Old\nchecks: ['true']\nlimits: {steps: 5, tokens: 100}\nmetadata: {team: x}\nagent: {name: writer}\n"
    )
    router.on("POST /v1/files", lambda request: httpx.Response(201, json={"id": "file_a" if b"a:b.txt" in request.content else "file_o"}))
    router.on("POST /v1/jobs", JOB, 201)
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


def test_submit_from_standard_input_under_a_key_of_its_own(router: Router, run: Run) -> None:
    router.on("POST /v1/jobs", JOB, 201)
    assert json.loads(run("jobs", "submit", "--json", stdin="Do it").stdout)["id"] == "job_1"
    run("jobs", "submit", "-", stdin="Do it")
    assert router.body() == {"instructions": "Do it"}
    keys = [request.headers["idempotency-key"] for request in router.asked]
    assert len(set(keys)) == 2


def test_outputs_are_sent_and_shown(router: Router, run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("instructions: Write\noutputs: [a.md]\n")
    router.on("POST /v1/jobs", JOB, 201)
    assert run("jobs", "submit", "--spec", "job.yaml", "--output", "out/report.md", "--output", "b.md").exit_code == 0
    assert router.body()["outputs"] == ["a.md", "out/report.md", "b.md"]
    router.on("GET /v1/jobs/job_1", {**JOB, "outputs": ["out/report.md", "b.md"]})
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
    router: Router, run: Run, tmp_path: Path, files: list[str], words: str
) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").write_text("x")
    (tmp_path / "job.json").write_text(json.dumps({"inputs": [{"file_id": "file_1", "path": "data.csv"}, {"file_id": "file_2"}]}))
    options = [option for item in files for option in ("--file", item)]
    result = run("jobs", "submit", "x", "--spec", "job.json", *options)
    assert (result.exit_code, router.asked) == (Exit.USAGE, [])
    assert words in result.stderr


def test_files_with_like_names_are_not_in_each_others_way(router: Router, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    router.on("POST /v1/files", {"id": "file_1"}, 201)
    router.on("POST /v1/jobs", JOB, 201)
    assert run("jobs", "submit", "x", "--file", "a:d/a", "--file", "a:d/a.txt", "--file", "a:da").exit_code == 0


@pytest.mark.parametrize("key", ["é", "", "a\nb", "k" * 256])
def test_an_idempotency_key_that_the_api_takes_not(router: Router, run: Run, tmp_path: Path, key: str) -> None:
    (tmp_path / "a").write_text("x")
    result = run("jobs", "submit", "x", "--file", "a", "--idempotency-key", key)
    assert (result.exit_code, router.asked) == (Exit.USAGE, [])
    assert "--idempotency-key" in result.stderr
    assert len(result.stderr.splitlines()) == 1


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
        ({"limits": {"cost_usd": "nan"}}, "limits.cost_usd: must be a number, or one in plain digits"),
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
def test_a_refused_specification_is_told_in_plain_words(router: Router, run: Run, tmp_path: Path, spec: dict[str, Any], words: str) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"instructions": "x", **spec}))
    result = run("jobs", "submit", "--spec", "job.json")
    assert (result.exit_code, router.asked) == (Exit.USAGE, [])
    assert words in result.stderr
    assert not any(word in result.stderr for word in ("Value error", "Input should", "tuple", "validation", "dictionary", "[key]"))


@pytest.mark.parametrize(
    "text", ["metadata: {day: 2026-11-30}", "limits: {cost_usd: .nan}", "instructions: !!binary aGk=", "checks: &a [*a]"]
)
def test_yaml_that_is_no_json_is_refused(router: Router, run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    result = run("jobs", "submit", "x", "--spec", "job.yaml")
    assert (result.exit_code, router.asked) == (Exit.USAGE, [])
    assert "JSON has no word for" in result.stderr


def test_a_path_outside_the_workspace_is_refused_before_the_upload(router: Router, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    result = run("jobs", "submit", "x", "--file", "a:../../etc/passwd")
    assert (result.exit_code, router.asked) == (Exit.USAGE, [])
    assert "leaves the workspace" in result.stderr
