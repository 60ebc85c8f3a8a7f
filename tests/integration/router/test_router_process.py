"""The router as a process: it says where it serves, and a SIGTERM ends it in good order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dualtrack.db.engine import Database

MODELS = {"one": {"litellm_model": "openai/x", "api_base": "http://127.0.0.1:1/v1"}}


@pytest.fixture
def environment(router_database: Database, tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "DUALTRACK_DATABASE__URL": router_database.engine.url.render_as_string(hide_password=False),
        "DUALTRACK_OBJECTS__DRIVER": "folder",
        "DUALTRACK_OBJECTS__PATH": str(tmp_path / "objects"),
        "DUALTRACK_MODELS__MODELS": json.dumps(MODELS),
        "DUALTRACK_MODELS__TRACKS": json.dumps({"fast": ["one"], "deep": ["one"]}),
        "DUALTRACK_ROUTER__PORT": "0",
    }


@pytest.fixture
def process(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-m", "router.main"], env=environment, stderr=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def test_it_serves_and_ends_on_sigterm(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    url = next(line["message"] for line in map(json.loads, process.stderr) if line["message"].startswith("serving on ")).split()[-1]
    assert httpx.get(url + "/healthz", timeout=60).json() == {"status": "ok"}
    checks = httpx.get(url + "/readyz", timeout=60).json()["checks"]
    assert {name: checks[name]["ok"] for name in ("database", "objects", "models_configured")} == dict.fromkeys(
        ("database", "objects", "models_configured"), True
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0


def test_wrong_settings_are_named(environment: dict[str, str]) -> None:
    environment["DUALTRACK_ROUTER__PORT"] = "many"
    done = subprocess.run([sys.executable, "-m", "router.main"], env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 2
    assert "DUALTRACK_ROUTER__PORT" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_named(environment: dict[str, str], process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    url = next(line["message"] for line in map(json.loads, process.stderr) if line["message"].startswith("serving on ")).split()[-1]
    environment["DUALTRACK_ROUTER__PORT"] = url.rpartition(":")[2]
    done = subprocess.run([sys.executable, "-m", "router.main"], env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 1
    assert "can't listen" in done.stderr
    assert "Traceback" not in done.stderr
