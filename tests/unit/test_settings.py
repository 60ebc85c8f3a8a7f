"""Settings: wrong ones are refused by name, in one sentence, and never silently ignored."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dualtrack import bootstrap
from dualtrack.domain.errors import InvalidRequest
from dualtrack.domain.templates import STANDARD
from dualtrack.sandbox.template_catalog import definitions
from dualtrack.settings import SandboxSettings, TemplateSettings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("DUALTRACK_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("DUALTRACK_ROUTER_PORT", "9", "did you mean DUALTRACK_ROUTER__PORT?"),
        ("DUALTRACK_LIMTS__STREAMS", "3", "did you mean DUALTRACK_LIMITS__STREAMS?"),
        ("DUALTRACK_FOO", "1", "There is no setting DUALTRACK_FOO"),
        ("DUALTRACK_ROUTER__PROT", "1", "DUALTRACK_ROUTER__PROT"),
        ("DUALTRACK_ROUTER__PORT", "many", "DUALTRACK_ROUTER__PORT"),
        ("DUALTRACK_MODELS__MODELS", "{bad", "JSON"),
        ("DUALTRACK_DATABASE__URL", "foo", "postgresql+psycopg://"),
        ("DUALTRACK_CONFIG", "/nope", "there is no file /nope"),
        ("DUALTRACK_LIMITS__LEASE_S", "1", "twice heartbeat_s"),
        ("DUALTRACK_LIMITS__LEASE_S", "inf", "DUALTRACK_LIMITS__LEASE_S"),
        ("DUALTRACK_TELEMETRY__OTLP_ENDPOINT", "foo", "DUALTRACK_TELEMETRY__OTLP_ENDPOINT"),
        ("DUALTRACK_OBJECTS__DRIVER", "floppy", "DUALTRACK_OBJECTS"),
        ("DUALTRACK_WEBHOOKS__SECRET_KEYS", '["hunter2"]', "DUALTRACK_WEBHOOKS__SECRET_KEYS: Value error, every key must be the base64"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest) as refused:
        bootstrap.load_settings()
    assert says in refused.value.message


@pytest.mark.parametrize("text", ["- a list", "{broken", "just words"])
def test_a_file_that_is_no_yaml_of_settings_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    path = tmp_path / "dualtrack.yaml"
    path.write_text(text)
    monkeypatch.setenv("DUALTRACK_CONFIG", str(path))
    with pytest.raises(InvalidRequest) as refused:
        bootstrap.load_settings()
    assert str(path) in refused.value.message


def test_secrets_do_not_show_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALTRACK_DATABASE__URL", "mysql://user:hunter2@host/x")
    with pytest.raises(InvalidRequest) as refused:
        bootstrap.load_settings()
    assert "hunter2" not in refused.value.message


def test_the_environment_wins_over_the_file_and_the_rest_keeps_its_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "dualtrack.yaml"
    path.write_text("router: {port: 1111, host: 0.0.0.0}\nlimits: {attempts: 7}\n")
    monkeypatch.setenv("DUALTRACK_CONFIG", str(path))
    monkeypatch.setenv("DUALTRACK_ROUTER__PORT", "2222")
    monkeypatch.setenv("DUALTRACK_API_KEY", "the command's, no setting")
    settings = bootstrap.load_settings()
    assert (settings.router.port, settings.router.host, settings.limits.attempts, settings.limits.lease_s) == (2222, "0.0.0.0", 7, 15.0)


def test_every_part_of_an_s3_store_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALTRACK_OBJECTS__DRIVER", "s3")
    monkeypatch.setenv("DUALTRACK_OBJECTS__BUCKET", "mine")
    assert bootstrap.load_settings().objects.model_dump()["bucket"] == "mine"


def test_templates_are_known_by_name_once_one_is_the_operators_own() -> None:
    assert SandboxSettings().known_templates is None
    own = SandboxSettings(templates={"reports": TemplateSettings(), "shell": TemplateSettings()})
    assert own.known_templates == frozenset(definitions(own.templates)) == {"default", "shell", "python-data", "reports"}
    assert frozenset(definitions({})) == STANDARD
