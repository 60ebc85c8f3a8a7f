"""The tables of docs/api.md that tell what a job may be given are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualtrack.domain.errors import UnknownTool
from dualtrack.domain.job import DEFAULT_AGENT_TOOLS, AgentProfile
from dualtrack.domain.limits import LARGEST, JobLimits
from dualtrack.net.addresses import AllowList
from dualtrack.settings import ToolSettings
from dualtrack.tools.factory import open_registry

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def table(head: str) -> list[list[str]]:
    """The cells of the table whose head begins with this column, without their back-ticks."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"\n| {head} |")
    found = []
    for line in rest.splitlines()[2:]:
        if not line.startswith("|"):
            break
        found.append([cell.strip().strip("`") for cell in line[1:-1].split("|")])
    return found


def number(text: str) -> float:
    return float(text.replace(",", "").partition(" ")[0])


def test_the_tools_are_those_of_the_registry() -> None:
    registry = open_registry(ToolSettings(http_hosts=["example.com"]), AllowList.parse([]))
    with pytest.raises(UnknownTool) as refused:
        registry.spec("no such tool")
    rows = table("tool")
    assert {row[0] for row in rows} == set(refused.value.message.rpartition(": ")[2].removesuffix(".").split(", "))
    for name, effect, in_set, _ in rows:
        assert (effect, in_set) == (registry.spec(name).effect.value, "yes" if name in DEFAULT_AGENT_TOOLS else "no"), name


def test_the_fields_of_an_agent_are_those_of_its_profile() -> None:
    assert [row[0] for row in table("field")] == list(AgentProfile.model_fields)


def test_the_limits_of_a_job_have_their_defaults_and_maxima() -> None:
    rows = table("field of `limits`")
    assert [row[0] for row in rows] == list(JobLimits.model_fields)
    for name, default, most, _ in rows:
        given = getattr(JobLimits(), name)
        assert given == (default if isinstance(given, str) else number(default)), name
        assert (number(most) if most else None) == LARGEST.get(name), name
