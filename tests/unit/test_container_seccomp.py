"""The containers' system call filter denies what bubblewrap's does, whatever form it has."""

from __future__ import annotations

import errno
import json
import platform
import stat
from pathlib import Path
from typing import Any

import pytest

from dualtrack.sandbox import container_seccomp, seccomp

ROOT = Path(__file__).parents[2]
ALLOW = "SCMP_ACT_ALLOW"


@pytest.fixture
def profile() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(container_seccomp.docker_profile())
    return document


def rules(profile: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [rule for rule in profile["syscalls"] if name in rule["names"]]


def test_nothing_that_bubblewraps_filter_denies_is_allowed(profile: dict[str, Any]) -> None:
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert profile["defaultErrnoRet"] == errno.EPERM
    assert not [name for name in seccomp._DENIED if rules(profile, name)]
    for name in ("clone3", "openat2", "fchmodat2"):
        assert [(rule["action"], rule["errnoRet"]) for rule in rules(profile, name)] == [("SCMP_ACT_ERRNO", errno.ENOSYS)]


def test_what_is_allowed_in_part_has_conditions_everywhere(profile: dict[str, Any]) -> None:
    for name in ("chmod", "fchmod", "fchmodat", "creat", "open", "openat", "clone", "socket"):
        assert rules(profile, name)
        assert all(rule["args"] for rule in rules(profile, name))
    masks = {rule["args"][0]["value"] for name in ("chmod", "fchmod", "fchmodat", "creat") for rule in rules(profile, name)}
    assert masks == {stat.S_ISUID | stat.S_ISGID}
    assert rules(profile, "clone")[0]["args"][0] == {
        "index": 0,
        "value": sum(seccomp._CLONE_NEW_FLAGS),
        "valueTwo": 0,
        "op": "SCMP_CMP_MASKED_EQ",
    }
    assert {rule["args"][0]["valueTwo"] for rule in rules(profile, "socket")} == seccomp._FAMILIES


def test_ordinary_programs_get_what_the_executors_own_filter_lets_through(profile: dict[str, Any]) -> None:
    executor = json.loads((ROOT / "infra" / "docker" / "executor-seccomp.json").read_text(encoding="utf-8"))
    missing = [name for name in executor["syscalls"][0]["names"] if not rules(profile, name)]
    assert missing == []


def test_gvisors_form_has_no_errno_of_its_own(profile: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    container_seccomp.gvisor_profile.cache_clear()
    found = container_seccomp.gvisor_profile()
    assert found is not None
    assert found["architectures"] == ["SCMP_ARCH_X86_64"]
    assert not any("errnoRet" in rule for rule in found["syscalls"])
    assert {rule["action"] for rule in found["syscalls"] if "clone3" in rule["names"]} == {"SCMP_ACT_TRACE"}
    kill = [rule["args"][0] for rule in rules(found, "kill")]
    tried = [0, 1, 2, 3, 65535, 1 << 31, (1 << 32) - 1, (1 << 32) + 1]
    allowed = [number for number in tried if any(number & condition["value"] == condition["valueTwo"] for condition in kill)]
    assert allowed == [0, 2, 3, 65535, 1 << 31, (1 << 32) - 1]  # everybody but the first process, whatever the upper half says
    monkeypatch.setattr(platform, "machine", lambda: "s390x")
    container_seccomp.gvisor_profile.cache_clear()
    assert container_seccomp.gvisor_profile() is None
    container_seccomp.gvisor_profile.cache_clear()
