"""`dualtrack schedules` and `dualtrack webhooks` against the real router."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from cli.outcome import Exit
from cli.session import Session

from .conftest import Api

Run = Callable[..., Result]
URL = "https://hooks.example.com/in"


@pytest.fixture
def run(api: Api, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": str(tmp_path), "DUALTRACK_API_KEY": key, "DUALTRACK_BASE_URL": api.url}

    def invoke(*arguments: str, status: int = Exit.OK) -> Result:
        result = CliRunner().invoke(app, list(arguments), obj=Session(environ=environ))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == status, result.output
        return result

    return invoke


def fields(result: Result) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in result.stdout.splitlines())


def test_webhooks(run: Run, client: httpx.Client) -> None:
    made = fields(run("webhooks", "add", URL, "--event", "job.cancelled", "--description", "ours"))
    webhook = made["id"]
    assert made["secret"].startswith("whsec_")
    assert run("webhooks", "list").stdout.splitlines()[1].split("\t") == [webhook, "enabled", "job.cancelled", URL]
    assert made["secret"] not in run("webhooks", "show", webhook).stdout
    assert fields(run("webhooks", "change", webhook, "--url", URL + "2"))["url"] == URL + "2"
    assert "why    " in run("webhooks", "disable", webhook).stdout
    assert fields(run("webhooks", "enable", webhook))["state"] == "enabled"
    rotated = run("webhooks", "rotate", webhook)
    assert rotated.stdout.startswith("whsec_")
    assert "signs too until" in rotated.stderr
    job_id = client.post("/v1/jobs", json={"instructions": "x", "webhook": {"url": URL}}).json()["id"]
    client.post(f"/v1/jobs/{job_id}/cancel")
    row = run("webhooks", "deliveries", webhook).stdout.splitlines()[1].split("\t")
    assert row[1:] == ["job.cancelled", job_id, "pending", "0", ""]
    assert run("webhooks", "redeliver", webhook, row[0]).stdout == "pending\n"
    assert run("webhooks", "deliveries", webhook, "--status", "delivered").stdout.count("\n") == 1
    assert len(json.loads(run("webhooks", "list", "--job", job_id, "--json").stdout)["data"]) == 1
    run("webhooks", "remove", webhook)
    run("webhooks", "show", webhook, status=Exit.API_ERROR)
    run("webhooks", "change", webhook, status=Exit.USAGE)
    assert "not on the public internet" in run("webhooks", "add", "http://10.0.0.1/", status=Exit.API_ERROR).stderr


def test_schedules(run: Run, client: httpx.Client, tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("instructions: Write the report.\noutputs: [report.md]\n")
    made = run("schedules", "add", "0 9 * * MON", "--spec", str(spec), "--timezone", "Europe/Berlin", "--overlap", "queue")
    schedule = made.stdout.strip()
    assert "due next: 20" in made.stderr
    shown = json.loads(run("schedules", "show", schedule, "--json").stdout)
    assert (shown["cron"], shown["timezone"], shown["overlap"], shown["job"]["outputs"]) == (
        "0 9 * * MON",
        "Europe/Berlin",
        "queue",
        ["report.md"],
    )
    second = run("schedules", "add", "* * * * *", "Say hello.", "--paused").stdout.strip()
    rows = [line.split("\t") for line in run("schedules", "list").stdout.splitlines()[1:]]
    assert [(row[0], row[4]) for row in rows] == [(second, "Say hello."), (schedule, "Write the report.")]
    assert rows[0][3] == "paused"
    assert "next      20" in run("schedules", "resume", second).stdout
    assert "next      paused" in run("schedules", "pause", second).stdout
    assert "0 0 1 1 *" in run("schedules", "change", second, "--cron", "0 0 1 1 *").stdout
    job_id = run("schedules", "run", second).stdout.strip()
    assert client.get(f"/v1/jobs/{job_id}").json()["instructions"] == "Say hello."
    assert run("schedules", "runs", second).stdout.splitlines()[1].split("\t")[1:] == ["started", job_id, "", ""]
    run("schedules", "remove", second)
    run("schedules", "show", second, status=Exit.API_ERROR)
    run("schedules", "change", schedule, status=Exit.USAGE)
    run("schedules", "add", "0 9 * * *", status=Exit.USAGE)
    assert "five fields" in run("schedules", "add", "0 9 * *", "x", status=Exit.API_ERROR).stderr
