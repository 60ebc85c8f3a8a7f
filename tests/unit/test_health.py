"""A worker's health file and the command that reads it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dualtrack import health
from dualtrack.domain.errors import BrokerUnavailable
from dualtrack.health import HealthFile, Stuck


def failing() -> None:
    raise BrokerUnavailable("the broker is away")


def passing() -> None:
    return


def test_touched_only_while_all_probes_pass(tmp_path: Path) -> None:
    path = tmp_path / "health"
    probes = {"database": passing, "broker": failing}
    assert not HealthFile(path, probes).look()
    assert not path.exists()
    assert HealthFile(path, probes | {"broker": passing}).look()
    assert path.exists()


def test_a_failure_leaves_the_file_to_age(tmp_path: Path) -> None:
    path = tmp_path / "health"
    down = threading.Event()
    file = HealthFile(path, {"broker": lambda: failing() if down.is_set() else None})
    assert file.look()
    os.utime(path, (1000, 1000))
    down.set()
    assert not file.look()
    assert path.stat().st_mtime == 1000
    down.clear()
    assert file.look()
    assert path.stat().st_mtime > 1000


def test_changes_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=health.__name__)
    down = threading.Event()
    file = HealthFile(tmp_path / "health", {"broker": lambda: failing() if down.is_set() else None})
    down.set()
    file.look()
    down.clear()
    file.look()
    file.look()
    down.set()
    file.look()
    file.look()
    down.clear()
    file.look()
    away = "not healthy: broker: the broker is away"
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [("INFO", away), ("INFO", "healthy"), ("WARNING", away), ("INFO", "healthy")]


def test_an_unexpected_error_of_a_probe_is_a_failure(tmp_path: Path) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    assert not HealthFile(tmp_path / "health", {"broken": broken}).look()


def test_a_file_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    assert not HealthFile(tmp_path / "missing" / "health", {}).look()


def test_the_thread_touches_and_the_end_removes(tmp_path: Path) -> None:
    path = tmp_path / "health"
    path.write_text("left by a killed process")
    looked = threading.Event()
    seen: list[bool] = []

    def probe() -> None:
        if not looked.is_set():
            seen.append(path.exists())
            looked.set()

    with HealthFile(path, {"probe": probe}):
        assert looked.wait(60)
    assert seen == [False]
    assert not path.exists()


def test_without_a_path_the_probes_run_and_nothing_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    looked = threading.Event()
    with HealthFile(None, {"probe": looked.set}):
        assert looked.wait(60)
    assert list(tmp_path.iterdir()) == []


def test_file_problem(tmp_path: Path) -> None:
    path = tmp_path / "health"
    assert "No such file" in (health.file_problem(path, 30, 1000) or "")
    path.touch()
    os.utime(path, (1000, 1000))
    assert health.file_problem(path, 30, 1030) is None
    assert "31 s ago" in (health.file_problem(path, 30, 1031) or "")


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "health"
    monkeypatch.setenv(health.FILE_VARIABLE, str(path))
    assert health.main(["check"]) == 1
    assert str(path) in capsys.readouterr().out
    path.touch()
    assert health.main(["check"]) == 0
    os.utime(path, (1000, 1000))
    assert health.main(["check", "--file", str(path), "--max-age", "5"]) == 1
    monkeypatch.delenv(health.FILE_VARIABLE)
    with pytest.raises(SystemExit) as stopped:
        health.main(["check"])
    assert stopped.value.code == 2


def test_command_for_an_address_nobody_listens_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main(["url", "no-address"]) == 1
    assert "no-address" in capsys.readouterr().out


def test_the_command_imports_no_library() -> None:
    code = "import sys, dualtrack.health; print([name for name in ('pydantic', 'celery', 'kombu', 'sqlalchemy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_stuck_process_is_told_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    signals: list[tuple[int, int]] = []
    told = threading.Event()

    def kill(pid: int, number: int) -> None:
        signals.append((pid, number))
        told.set()

    def stuck() -> None:
        raise Stuck("takes nothing")

    monkeypatch.setattr(health, "END_AFTER_S", 0.0)
    monkeypatch.setattr(health, "_SOON_S", 0.01)
    monkeypatch.setattr(os, "kill", kill)
    with HealthFile(tmp_path / "health", {"broker": stuck}) as file:
        assert told.wait(60)
    assert signals == [(os.getpid(), signal.SIGTERM)]
    assert file.gave_up
    assert "broker: takes nothing" in caplog.text


def test_an_outage_is_no_reason_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = threading.Semaphore(0)

    def away() -> None:
        looks.release()
        failing()

    monkeypatch.setattr(health, "END_AFTER_S", 0.0)
    monkeypatch.setattr(health, "_SOON_S", 0.0)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("told to end"))
    with HealthFile(tmp_path / "health", {"broker": away}) as file:
        for _ in range(3):
            assert looks.acquire(timeout=60)
    assert not file.gave_up
