"""The worked example that small models follow must itself be right: valid actions of the real tools, code that runs and computes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema

from dualtrack.domain.job import DEFAULT_AGENT_TOOLS
from dualtrack.models.actions import request_body
from dualtrack.models.port import DecisionRequest
from dualtrack.models.prompts import AGENT_SYSTEM_PROMPT, JSON_EXAMPLE, JSON_EXAMPLE_TOOLS
from dualtrack.tools.registry import Registry

LIBRARY = """\
loan_id,branch,genre,date,days,rate
L1,Hill,Travel,2024-01-03,12,0.50
L2,Harbour,Art,2024-01-09,40,0.10
L3,Hill,Art,2024-02-01,31,1.00
"""


def example_actions() -> list[dict[str, Any]]:
    return [json.loads(line) for line in JSON_EXAMPLE.splitlines() if line.startswith("{")]


def request(tools: tuple[str, ...]) -> DecisionRequest:
    return DecisionRequest("deep", AGENT_SYSTEM_PROMPT, "Do it.", Registry().specs(tools), [])


def test_the_example_holds_valid_actions_of_the_real_tools() -> None:
    schema = request_body(request(DEFAULT_AGENT_TOOLS), "json")["response_format"]["json_schema"]["schema"]
    actions = example_actions()
    assert {action["tool"] for action in actions} == JSON_EXAMPLE_TOOLS
    for action in actions:
        jsonschema.validate(action, schema)


def test_the_example_program_computes_what_it_says(tmp_path: Path) -> None:
    (code,) = [action["arguments"]["code"] for action in example_actions() if action["tool"] == "execute_python"]
    (tmp_path / "library.csv").write_text(LIBRARY)
    printed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60).stdout
    assert printed.strip() == (tmp_path / "loans.md").read_text().strip()
    found = [line.removeprefix("- ") for line in printed.splitlines() if line.startswith("- ")]
    assert found == [
        "41.00",
        "2",
        "Harbour, 4.00, 4.00",
        "Hill, 37.00, 18.50",
        "2024-01, 10.00",
        "2024-02, 31.00",
        "L2, 40.00",
        "Art, 35.00",
    ]


def test_the_example_is_shown_only_to_agents_with_its_tools() -> None:
    def system(tools: tuple[str, ...]) -> str:
        text = request_body(request(tools), "json")["messages"][0]["content"]
        assert isinstance(text, str)
        return text

    assert JSON_EXAMPLE in system(DEFAULT_AGENT_TOOLS)
    assert JSON_EXAMPLE not in system(("shell", "finish"))
