"""The demo's own check: it must find every wrong figure, or the demo proves nothing."""

from __future__ import annotations

import importlib.util
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_report", EXAMPLES / "check_report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(figures: dict[str, Decimal]) -> str:
    return "# Report\n\n" + "\n".join(f"- {name}: {value:,.2f}" for name, value in figures.items())


def test_a_right_report_passes_in_several_forms(check: ModuleType) -> None:
    figures = check.figures(EXAMPLES / "orders.csv")
    assert len(figures) == 11
    assert check.problems(report(figures), figures) == []
    headed = "\n".join(f"## {name}\n{value}" for name, value in figures.items())
    assert check.problems(headed, figures) == []


def test_every_single_wrong_missing_or_misplaced_figure_is_named(check: ModuleType) -> None:
    figures = check.figures(EXAMPLES / "orders.csv")
    for name in figures:
        off = figures | {name: figures[name] + Decimal("0.01")}
        assert [name.lower() in line.lower() for line in check.problems(report(off), figures)] == [True]
        without = {other: value for other, value in figures.items() if other != name}
        assert [name.lower() in line.lower() for line in check.problems(report(without), figures)] == [True]
    swapped = figures | {"North": figures["South"], "South": figures["North"]}
    assert len(check.problems(report(swapped), figures)) == 2


def test_a_second_wrong_figure_for_a_name_is_no_excuse(check: ModuleType) -> None:
    figures = check.figures(EXAMPLES / "orders.csv")
    assert check.problems(report(figures) + "\n## Best product\n- Desk lamp, 232681.24", figures) != []
    assert check.problems("", figures) != []
