"""The compose stack's files say what they promise, and the pages about settings are current."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualtrack.models.catalog import PROVIDERS
from dualtrack.settings import Settings

ROOT = Path(__file__).parents[2]
OURS = ("router", "planner", "executor", "scheduler", "migrate", "cli")
GRANTED = {"clone", "mount", "pivot_root", "sethostname", "umount2", "unshare"}
FORBIDDEN = {
    *("add_key", "bpf", "chroot", "clone3", "finit_module", "fsopen", "init_module", "io_uring_setup", "kexec_load", "keyctl", "mknod"),
    *("move_mount", "open_by_handle_at", "perf_event_open", "process_vm_readv", "ptrace", "reboot", "request_key", "setns", "swapon"),
    *("syslog", "userfaultfd"),
}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def example() -> dict[str, str]:
    """Variables of .env.example, those in comments too, with the text above each."""
    found: dict[str, str] = {}
    said = ""
    for line in (ROOT / ".env.example").read_text(encoding="utf-8").splitlines():
        variable = re.match(r"^(?:# )?([A-Z][A-Z0-9_]*)=", line)
        if variable:
            found.setdefault(variable[1], said)
        elif line.startswith("# "):
            said = line
    return found


def test_every_variable_of_the_stack_is_explained(example: dict[str, str]) -> None:
    texts = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("docker-compose.yml", "docker-compose.test.yml"))
    used = set(re.findall(r"\$\{([A-Z][A-Z0-9_]*)", texts))
    assert used
    assert used <= set(example)
    keys = {provider.key_env for provider in PROVIDERS}
    assert keys <= set(example)
    others = {name for name in set(example) - used - keys if not name.startswith("DUALTRACK_MODELS__")}
    assert others == {"VLLM_KEY"}  # of an example
    assert all(example.values())


def test_shown_defaults_are_the_real_ones() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    for name, shown in re.findall(r"^# ([A-Z][A-Z0-9_]*)=(.+)$", (ROOT / ".env.example").read_text(encoding="utf-8"), re.MULTILINE):
        if not name.startswith("DUALTRACK_MODELS__"):
            defaults = set(re.findall(rf"\$\{{{name}:-((?:[^${{}}]|\$\{{[^}}]*\}})*)\}}", text))
            assert {re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", default) for default in defaults} == {shown}, name


def test_models_in_the_example_are_valid_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = re.findall(r"^# (DUALTRACK_MODELS__\w+)=(.+)$", (ROOT / ".env.example").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(lines) == 3
    for name, value in lines:
        monkeypatch.setenv(name, value)
        assert Settings().models


def test_only_who_signs_gets_the_keys_of_secrets_and_a_new_file_has_one(
    compose: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holders = {name for name, service in compose["services"].items() if "DUALTRACK_WEBHOOKS__SECRET_KEYS" in service.get("environment", {})}
    assert holders == {"router", "scheduler", "cli"}
    made = tmp_path / ".env"
    subprocess.run([ROOT / "scripts" / "make-env", made], check=True, capture_output=True, timeout=60)
    (line,) = [line for line in made.read_text(encoding="utf-8").splitlines() if line.startswith("WEBHOOK_SECRET_KEYS=")]
    monkeypatch.setenv("DUALTRACK_WEBHOOKS__SECRET_KEYS", line.partition("=")[2])
    assert Settings().webhooks.sealer.seals


def test_the_example_configuration_file_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "infra" / "docker" / "dualtrack.yaml").read_text(encoding="utf-8")
    shown = "\n".join(line[2:] for line in text.splitlines() if line.startswith("# ") and re.match(r"# ( *[\w-]+:)", line))
    for number, content in enumerate((text, shown)):
        path = tmp_path / f"{number}.yaml"
        path.write_text(content)
        monkeypatch.setenv("DUALTRACK_CONFIG", str(path))
        settings = Settings()
    assert settings.models.tracks == {"fast": ["small"], "deep": ["large", "small"]}


@pytest.mark.parametrize("name", OURS)
def test_our_services_are_confined(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    assert service["user"] == "10001:10001"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "no-new-privileges:true" in service["security_opt"]


def test_every_service_has_limits_a_health_check_and_a_restart_policy(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        limits = service["deploy"]["resources"]["limits"]
        assert limits["memory"], name
        assert limits["pids"], name
        if name in {"migrate", "cli"}:  # they end by themselves
            assert service["restart"] == "no"
        else:
            assert service["healthcheck"]["test"], name
            assert service["restart"] == "unless-stopped", name
            assert service["stop_grace_period"], name


def test_only_the_executor_is_granted_more_and_it_gets_no_model_variables(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        granted = [option for option in service["security_opt"] if option != "no-new-privileges:true"]
        assert bool(granted) == (name == "executor"), name
        assert ("env_file" in service) == (name in {"router", "planner"}), name
        assert not service.get("privileged"), name
    assert compose["services"]["executor"]["networks"] == ["data"]
    assert compose["networks"]["data"] == {"internal": True}


def test_every_service_of_ours_reads_the_file_of_settings(compose: dict[str, Any]) -> None:
    for name in OURS:
        service = compose["services"][name]
        (config,) = service["configs"]
        assert service["environment"]["DUALTRACK_CONFIG"] == config["target"], name


def test_the_executors_image_can_have_its_extra() -> None:
    extras = tomllib.loads((ROOT / "services" / "executor" / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert set(extras) == {"kubernetes"}
    assert "${EXECUTOR_EXTRA:+--extra ${EXECUTOR_EXTRA}}" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_no_secret_has_a_default(compose: dict[str, Any]) -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{(\w*PASSWORD\w*)(:[-?])", text)) == {
        ("POSTGRES_PASSWORD", ":?"),
        ("RABBITMQ_PASSWORD", ":?"),
        ("MINIO_PASSWORD", ":?"),
    }
    assert not re.search(r"^\s*(ARG|ENV).*(KEY|PASSWORD|TOKEN|SECRET)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)


def test_seccomp_profile_grants_what_bubblewrap_needs_and_nothing_of_the_forbidden() -> None:
    profile = json.loads((ROOT / "infra" / "docker" / "executor-seccomp.json").read_text(encoding="utf-8"))
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = [rule for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW"]
    granted = [rule for rule in allowed if rule["comment"].startswith("Granted for bubblewrap")]
    assert {name for rule in granted for name in rule["names"]} == GRANTED
    ordinary = {name for rule in allowed if rule not in granted for name in rule["names"]}
    assert not ordinary & (GRANTED | FORBIDDEN)
    (unshare,) = (rule for rule in granted if "unshare" in rule["names"])
    assert unshare["args"] == [{"index": 0, "value": 0x10000000, "op": "SCMP_CMP_EQ"}]


def test_make_env_writes_new_passwords_once(tmp_path: Path) -> None:
    path = tmp_path / "env"
    made = subprocess.run([ROOT / "scripts" / "make-env", path], capture_output=True, text=True, check=True, timeout=30)
    text = path.read_text(encoding="utf-8")
    passwords = re.findall(r"^\w+_PASSWORD=([0-9a-f]{48})$", text, re.MULTILINE)
    assert len(set(passwords)) == 3
    assert path.stat().st_mode & 0o777 == 0o600
    assert not any(password in made.stdout + made.stderr for password in passwords)
    subprocess.run([ROOT / "scripts" / "make-env", path], capture_output=True, check=True, timeout=30)
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("script", ["lifecycle_doc.py", "settings_doc.py"])
def test_generated_pages_are_current(script: str) -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / script, "--check"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_every_setting_is_explained() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    rows = [row for row in page.splitlines() if row.startswith("| `")]
    assert len(rows) > 80
    assert [row for row in rows if row.endswith("|  |")] == []
