from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dualtrack.domain.errors import UnknownTool
from dualtrack.domain.job import DEFAULT_AGENT_TOOLS
from dualtrack.domain.tool import CHECK_TOOL, FINISH_TOOL, PLAN_TOOL, Effect, ToolSpec
from dualtrack.tools.registry import Registry

registry = Registry()


def test_the_tools_of_the_product_are_on_offer() -> None:
    assert set(DEFAULT_AGENT_TOOLS) == {
        *(
            "execute_python",
            "shell",
            "read_file",
            "write_file",
            "edit_file",
            "list_files",
            "search_files",
            "read_artifact",
            "save_artifact",
        ),
        *("update_plan", "finish"),
    }
    assert [spec.name for spec in registry.specs(DEFAULT_AGENT_TOOLS)] == list(DEFAULT_AGENT_TOOLS)


@pytest.mark.parametrize("name", DEFAULT_AGENT_TOOLS)
def test_specs_are_short_closed_and_valid(name: str) -> None:
    spec = registry.spec(name)
    Draft202012Validator.check_schema(spec.parameters)
    assert spec.parameters["additionalProperties"] is False
    assert len(json.dumps(spec.parameters)) + len(spec.description) < 620  # every character is in every prompt
    if spec.effect is not Effect.CONTROL:
        assert registry.tool(name).spec is spec


def test_effects() -> None:
    effects = {name: registry.spec(name).effect for name in DEFAULT_AGENT_TOOLS}
    assert {name for name in effects if effects[name] is Effect.WORKSPACE} == {
        "execute_python",
        "shell",
        "write_file",
        "edit_file",
    }
    assert {name for name, effect in effects.items() if effect is Effect.CONTROL} == {PLAN_TOOL, FINISH_TOOL}


def test_unknown_tools_are_refused_with_the_names_there_are() -> None:
    with pytest.raises(UnknownTool, match=r"'teleport'.*execute_python.*finish") as caught:
        registry.specs(["shell", "teleport"], param="agent.tools")
    assert caught.value.param == "agent.tools"
    with pytest.raises(UnknownTool):
        registry.tool(FINISH_TOOL)


def test_check_can_be_executed_but_is_not_on_offer() -> None:
    assert registry.tool(CHECK_TOOL).spec.name == "check"
    with pytest.raises(UnknownTool):
        registry.spec(CHECK_TOOL)


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("execute_python", {}, "'code' is a required property"),
        ("execute_python", {"code": 5}, "code: 5 is not of type 'string'"),
        ("execute_python", {"code": "1", "lang": "py"}, "'lang' was unexpected"),
        ("shell", {"command": "x", "timeout_s": 0}, "timeout_s: 0 is less than or equal to the minimum of 0"),
        ("read_file", {"path": "a", "offset_line": 0}, "offset_line: 0 is less than the minimum of 1"),
        ("update_plan", {"steps": [{"title": "a", "status": "soon"}]}, "steps.0.status: 'soon' is not one of"),
        ("write_file", {"path": "a", "content": "nul \x00"}, "content: must not hold the character NUL"),
        ("shell", {"command": "x", "timeout_s": float("nan")}, "timeout_s: must be a finite number"),
        ("update_plan", {"steps": [{"title": "\ud800", "status": "done"}]}, "steps.0.title: must be valid Unicode"),
    ],
)
def test_wrong_arguments_are_named(tool: str, arguments: dict[str, Any], said: str) -> None:
    wrong = registry.validate(registry.spec(tool), arguments)
    assert wrong is not None
    assert said in wrong


def test_a_long_wrong_value_is_not_quoted_whole() -> None:
    wrong = registry.validate(registry.spec("shell"), {"command": "x" * 100_000})
    assert wrong is not None
    assert "is too long" in wrong
    assert len(wrong) < 300


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("execute_python", {"code": "print(1)", "timeout_s": 2.5}),
        ("list_files", {}),
        ("finish", {"answer": "42", "success": True}),
        ("update_plan", {"steps": [{"title": "Read", "status": "done"}]}),
    ],
)
def test_right_arguments_pass(tool: str, arguments: dict[str, Any]) -> None:
    assert registry.validate(registry.spec(tool), arguments) is None


def test_keys_that_no_database_takes_are_named() -> None:
    spec = ToolSpec("t", "", {"type": "object"}, Effect.PURE)
    assert registry.validate(spec, {"headers": {"a\x00": 1}}) == "a key of headers: must not hold the character NUL"
    assert registry.validate(spec, {"\ud800": 1}) == "a key of the arguments: must be valid Unicode (it holds half of a surrogate pair)"
