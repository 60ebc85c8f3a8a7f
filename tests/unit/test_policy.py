"""Policies, their expressions, and what an approval is bound to."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dualtrack.bootstrap import load_settings
from dualtrack.domain.approval import Approval, arguments_sha256
from dualtrack.domain.errors import InvalidRequest
from dualtrack.domain.pattern import found
from dualtrack.domain.policy import Action, PolicyRule, judge
from dualtrack.domain.tool import Effect, Risk, ToolSpec
from dualtrack.domain.waiting import ApprovalKind, ApprovalStatus
from dualtrack.tools.registry import Registry

SHELL = Registry().spec("shell")
READ = Registry().spec("read_file")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def rules(*given_rules: dict[str, Any]) -> list[PolicyRule]:
    return [PolicyRule.model_validate(rule) for rule in given_rules]


def says(policy: list[PolicyRule], command: str = "ls", spec: ToolSpec = SHELL, **arguments: Any) -> Action:
    return judge(policy, spec, {"command": command} | arguments).action


def test_the_first_rule_that_fits_decides_and_none_allows() -> None:
    policy = rules(
        {"tool": "shell", "arguments": {"command": "^ls$"}, "action": "allow"},
        {"tool": "sh*", "action": "ask"},
        {"action": "deny"},
    )
    assert (says(policy, "ls"), says(policy, "ls; rm x"), says(policy, "ls\n")) == (Action.ALLOW, Action.ASK, Action.ASK)
    assert says(policy, spec=READ) is Action.DENY
    assert says([]) is Action.ALLOW


def test_risk_is_a_threshold_and_follows_the_effect() -> None:
    effects = {effect: ToolSpec("t", "", {}, effect).risk for effect in Effect}
    assert effects == {Effect.PURE: Risk.LOW, Effect.WORKSPACE: Risk.MEDIUM, Effect.EXTERNAL: Risk.HIGH, Effect.CONTROL: Risk.LOW}
    assert ToolSpec("t", "", {}, Effect.PURE, Risk.HIGH).risk is Risk.HIGH
    policy = rules({"risk": "medium", "action": "deny"})
    assert [says(policy, spec=ToolSpec("t", "", {}, effect)) for effect in (Effect.PURE, Effect.WORKSPACE, Effect.EXTERNAL)] == [
        Action.ALLOW,
        Action.DENY,
        Action.DENY,
    ]


def test_fields_are_found_inside_objects_and_looked_at_as_json() -> None:
    fits = {"tool": "shell", "action": "deny"}
    inside: dict[str, Any] = {"headers": {"Host": "evil.example"}, "n": 5, "list": ["a", "b"]}
    for path, pattern, expected in (
        ("headers.Host", "evil", Action.DENY),
        ("headers", '"Host": "evil', Action.DENY),
        ("headers.Accept", ".*", Action.ALLOW),
        ("command.x", ".*", Action.ALLOW),
        ("n", "^5$", Action.DENY),
        ("list", '"b"', Action.DENY),
        ("missing", "", Action.ALLOW),
    ):
        if pattern:
            assert says(rules(fits | {"arguments": {path: pattern}}), **inside) is expected, path
    both = rules(fits | {"arguments": {"n": "5", "command": "^rm"}})
    assert (says(both, "rm", n=5), says(both, "ls", n=5)) == (Action.DENY, Action.ALLOW)


def test_what_only_changes_the_job_is_not_asked_for_but_may_be_denied() -> None:
    question = Registry().spec("ask_human")
    assert says(rules({"action": "ask"}), spec=question) is Action.ALLOW
    assert says(rules({"action": "deny"}), spec=question) is Action.DENY


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "ask", "arguments": {"a": "("}},
        {"action": "ask", "arguments": {"a": r"(x)\1"}},
        {"action": "ask", "arguments": {"a": "(?=x)"}},
        {"action": "ask", "arguments": {"a": "(x{0,90}){0,90}"}},
        {"action": "ask", "arguments": {"a": "x" * 501}},
        {"action": "ask", "arguments": {"a": ""}},
        {"action": "ask", "arguments": {"a.": "x"}},
        {"action": "ask", "arguments": {f"a{n}": "x" for n in range(9)}},
        {"action": "ask", "tool": "a b"},
        {"action": "ask", "tool": "*" * 200},
        {"action": "ask", "expires_s": 31 * 24 * 3600},
        {"action": "ask", "message": "x" * 501},
        {"tool": "x"},
    ],
)
def test_rules_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PolicyRule.model_validate(wrong)


@pytest.mark.parametrize("pattern", ["(x+x+)+y", "(a|aa)+$", "(.*)*=b", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_no_text_makes_an_expression_slow(pattern: str) -> None:
    """Each of them takes an engine that backtracks longer than the universe has existed."""
    started = time.process_time()
    assert not found(pattern, "x" * 262_144 if "x" in pattern else "a" * 262_144 + "!")
    assert time.process_time() - started < 10


def test_globs_are_no_way_to_be_slow() -> None:
    started = time.process_time()
    says(rules({"tool": "*a" * 60, "action": "deny"}), spec=ToolSpec("a" * 127 + "b", "", {}, Effect.PURE))
    assert time.process_time() - started < 5


@given(st.text(max_size=200))
def test_any_text_may_be_a_pattern_or_is_refused(text: str) -> None:
    try:
        rule = PolicyRule.model_validate({"action": "deny", "arguments": {"command": text}})
    except ValidationError:
        return
    assert says([rule], text) in {Action.ALLOW, Action.DENY}


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_the_hash_is_of_the_value_not_of_how_it_is_written(arguments: dict[str, Any]) -> None:
    turned = dict(reversed(arguments.items()))
    assert arguments_sha256(turned) == arguments_sha256(arguments)
    assert arguments_sha256(arguments | {"one more": 1}) != arguments_sha256(arguments) or "one more" in arguments


def test_the_hash_is_what_the_docs_say() -> None:
    said = '{"command":"echo ü","timeout_s":100}'
    for written in ({"timeout_s": 1e2, "command": "echo ü"}, {"command": "echo ü", "timeout_s": 100}):
        assert arguments_sha256(written) == hashlib.sha256(said.encode()).hexdigest()
    assert arguments_sha256({"a": True}) != arguments_sha256({"a": 1})
    assert arguments_sha256({"a": "1"}) != arguments_sha256({"a": 1})


def test_an_approval_permits_its_own_arguments_only() -> None:
    asked, edited = {"command": "a"}, {"command": "b"}
    now = datetime.now(UTC)

    def approval(**more: Any) -> Approval:
        values: dict[str, Any] = {
            **dict.fromkeys(("id", "tenant_id", "job_id", "call_id", "message"), "x"),
            "kind": ApprovalKind.CALL,
            "tool": "shell",
            "arguments": asked,
            "arguments_sha256": arguments_sha256(asked),
            "status": ApprovalStatus.APPROVED,
            "created_at": now,
            "expires_at": now,
            "lapsed": True,
        }
        return Approval(**values | more)

    assert approval().permits("shell", asked)
    assert not approval().permits("shell", edited)
    assert not approval().permits("execute_python", asked)
    changed = approval(edited_arguments=edited, edited_sha256=arguments_sha256(edited))
    assert (changed.permits("shell", edited), changed.permits("shell", asked)) == (True, False)
    for status in set(ApprovalStatus) - {ApprovalStatus.APPROVED}:
        assert not approval(status=status).permits("shell", asked)
    assert not approval(kind=ApprovalKind.QUESTION).permits("shell", asked)


def test_the_operators_rules_are_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("DUALTRACK_POLICIES__RULES", '[{"tool": "shell", "arguments": {"command": "git +push"}, "action": "ask"}]')
    (rule,) = load_settings().policies.rules
    assert (rule.tool, rule.action, rule.arguments) == ("shell", Action.ASK, {"command": "git +push"})
    monkeypatch.setenv("DUALTRACK_POLICIES__RULES", '[{"action": "ask", "arguments": {"command": "("}}]')
    with pytest.raises(InvalidRequest, match="DUALTRACK_POLICIES__RULES__0__ARGUMENTS"):
        load_settings()
    monkeypatch.delenv("DUALTRACK_POLICIES__RULES")
    file = tmp_path / "dualtrack.yaml"
    file.write_text("policies:\n  rules:\n    - {risk: high, action: ask, expires_s: 60}\n")
    monkeypatch.setenv("DUALTRACK_CONFIG", str(file))
    assert load_settings().policies.rules[0].risk is Risk.HIGH
