"""What is seen of sandboxes from outside: spans, metrics, the doctor."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dualtrack.domain.errors import InfrastructureError
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.factory import open_sandboxes
from dualtrack.sandbox.sessions import PythonCell, SessionRequest
from dualtrack.settings import SandboxSettings, TelemetrySettings
from dualtrack.telemetry.exposition import exposed
from dualtrack.telemetry.sandboxes import METRICS
from dualtrack.testing.servers.process import free_ports

LIMITS = SandboxLimits()


def test_claims_runs_and_ends_are_spans_and_metrics(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    (port,) = free_ports(1)
    labels = {"rung": "bubblewrap"}
    ended = METRICS.registry.get_sample_value("dualtrack_sandbox_ends_total", labels | {"reason": "done"}) or 0
    with (
        exposed(TelemetrySettings(metrics_port=port), METRICS.registry),
        open_sandboxes(SandboxSettings(workspaces=folder / "workspaces", pool_max=0), LIMITS) as sandboxes,
        contextlib.closing(sandboxes.pool.claim(SessionRequest(LIMITS))) as session,
    ):
        session.python(PythonCell("import sys; sys.exit(3)"), LIMITS, threading.Event())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            shown = answer.read().decode()
    assert 'dualtrack_sandbox_live{rung="bubblewrap"} 1.0' in shown
    assert 'dualtrack_sandbox_limit{rung="bubblewrap"} 64.0' in shown
    assert 'dualtrack_sandbox_rung_works{rung="bubblewrap"} 1.0' in shown
    assert 'dualtrack_sandbox_claims_total{rung="bubblewrap",start="cold",template="default"}' in shown
    assert METRICS.registry.get_sample_value("dualtrack_sandbox_ends_total", labels | {"reason": "done"}) == ended + 1
    assert METRICS.registry.get_sample_value("dualtrack_sandbox_live", labels) == 0
    spans = {span.name: dict(span.attributes or {}) for span in exporter.get_finished_spans()}
    claim, run, destroy = spans["sandbox.claim"], spans["sandbox.run"], spans["sandbox.destroy"]
    assert claim["dualtrack.sandbox.start"] == "cold"
    assert claim["dualtrack.sandbox.rung"] == run["dualtrack.sandbox.rung"] == "bubblewrap"
    assert claim["dualtrack.sandbox.session"] == run["dualtrack.sandbox.session"] == destroy["dualtrack.sandbox.session"]
    assert (run["dualtrack.sandbox.kind"], run["dualtrack.sandbox.ended"], run["dualtrack.sandbox.exit_code"]) == ("python", "exited", 3)
    assert destroy["dualtrack.sandbox.end_reason"] == "done"


def test_a_taken_port_is_named() -> None:
    (port,) = free_ports(1)
    settings = TelemetrySettings(metrics_port=port)
    with (
        exposed(settings, METRICS.registry),
        pytest.raises(InfrastructureError, match=f"port {port} .*METRICS_PORT"),
        exposed(settings, METRICS.registry),
    ):
        pass
    with exposed(TelemetrySettings(), METRICS.registry):
        pass


def doctor(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "dualtrack"), "sandbox", "doctor", *options]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "DUALTRACK_SANDBOX__WORKSPACES": str(folder / "workspaces"), **environment}
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder, timeout=240, check=False)


def test_the_doctor_tells_of_every_rung_and_which_is_configured(folder: Path) -> None:
    done = doctor(folder, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["configured"], report["ok"]) == ("bubblewrap", True)
    rungs = {rung["rung"]: rung for rung in report["rungs"]}
    assert list(rungs) == ["landlock", "bubblewrap", "docker", "gvisor", "kubernetes"]
    assert rungs["bubblewrap"]["works"]
    assert "user" in rungs["bubblewrap"]["found"]
    assert all(rung["works"] or rung["problem"] for rung in rungs.values())
    assert {"name": "default", "built": True, "problem": None} in report["templates"]


def test_the_doctor_tells_of_templates_that_do_not_work(folder: Path) -> None:
    done = doctor(folder, DUALTRACK_SANDBOX__TEMPLATES=json.dumps({"mine": {"preload": ["nonesuch"]}}))
    assert done.returncode == 1, done.stderr
    assert "Configured: bubblewrap, which works here" in done.stdout
    lines = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("  template ")}
    assert set(lines) == {"default", "shell", "python-data", "mine"}
    assert lines["default"].endswith(" works")
    assert lines["python-data"].endswith(" not built")
    assert "module nonesuch can't be imported: ModuleNotFoundError" in lines["mine"]


def test_the_doctor_fails_where_the_configured_rung_does_not_work(folder: Path) -> None:
    done = doctor(folder, DUALTRACK_SANDBOX__DRIVER="kubernetes")
    assert done.returncode == 1
    assert "Configured: kubernetes, which does NOT work here" in done.stdout
    assert "bubblewrap  works" in done.stdout
