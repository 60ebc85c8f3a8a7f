"""Fault points: nothing happens unless the environment says so, and what was said happens at that passage and no other."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualtrack import faults
from dualtrack.domain.errors import InvalidRequest
from dualtrack.faults import Action, Fault, FaultFile, Rule, parse

_PUBLISHING = (Action.LOSE, Action.TWICE)


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faults.arm({})


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """The file that arms this process."""
    path = tmp_path / "rules"
    faults.arm({faults.VARIABLE: str(path)})
    return path


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Signals this process would have got."""
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number) if pid == os.getpid() else None)
    return sent


def fired(path: Path) -> list[dict[str, object]]:
    lines = path.with_name(path.name + faults.FIRED).read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_nothing_is_armed_by_itself(signals: list[int]) -> None:
    for fault in Fault:
        faults.point(fault)
    assert signals == []
    assert faults.copies(Fault.PUBLISH) == 1


def test_the_passage_that_was_asked_for_and_no_other(rules: Path, signals: list[int]) -> None:
    rules.write_text("planner.claimed,kill,skip=2\n")
    passed = []
    for n in range(5):
        faults.point(Fault.PLANNER_CLAIMED, f"job_{n}")
        faults.point(Fault.PLANNER_RECORD, f"job_{n}")
        passed.append(len(signals))
    assert passed == [0, 0, 1, 1, 1]
    assert signals == [signal.SIGKILL]
    assert [(entry["fault"], entry["subject"]) for entry in fired(rules)] == [("planner.claimed", "job_2")]


def test_a_changed_file_counts_anew_and_a_missing_one_disarms(rules: Path, signals: list[int]) -> None:
    faults.point(Fault.EXECUTOR_RECORD)
    rules.write_text("executor.record,stop")
    faults.point(Fault.EXECUTOR_RECORD)
    faults.point(Fault.EXECUTOR_RECORD)
    assert signals == [signal.SIGSTOP]
    other = rules.with_name("other")
    other.write_text("executor.record,stop\n")
    other.replace(rules)
    faults.point(Fault.EXECUTOR_RECORD)
    assert signals == [signal.SIGSTOP] * 2
    rules.unlink()
    faults.point(Fault.EXECUTOR_RECORD)
    assert len(signals) == 2


@pytest.mark.parametrize(("action", "copies"), [("lose", 0), ("twice", 2)])
def test_rings_are_lost_and_doubled(rules: Path, action: str, copies: int) -> None:
    rules.write_text(f"broker.publish,{action},skip=1\n")
    assert [faults.copies(Fault.PUBLISH, f"call_{n}") for n in range(4)] == [1, copies, copies, copies]
    assert [entry["subject"] for entry in fired(rules)] == ["call_1", "call_2", "call_3"]


@given(
    st.builds(
        Rule,
        st.sampled_from([fault for fault in Fault if fault is not Fault.PUBLISH]),
        st.sampled_from([action for action in Action if action not in {*_PUBLISHING, Action.SLEEP}]),
        st.integers(0, 1000),
        st.integers(1, 1000),
    )
    | st.builds(Rule, st.just(Fault.PUBLISH), st.sampled_from(_PUBLISHING), st.integers(0, 9), st.none() | st.integers(1, 9))
    | st.builds(Rule, st.sampled_from(Fault), st.just(Action.SLEEP), st.integers(0, 9), st.integers(1, 9), st.integers(1, 100).map(float))
)
def test_a_rule_reads_as_it_is_written(rule: Rule) -> None:
    assert parse(str(rule)) == rule


@pytest.mark.parametrize(
    "line",
    [
        "",
        "planner.claimed",
        "planner.lunch,kill",
        "planner.claimed,explode",
        "planner.claimed,kill,skip",
        "planner.claimed,kill,skip=-1",
        "planner.claimed,kill,times=0",
        "planner.claimed,kill,lines=2",
        "planner.claimed,lose",
        "planner.claimed,sleep",
        "planner.claimed,kill,seconds=3",
    ],
)
def test_what_is_no_rule_is_refused_by_name(tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidRequest, match="DUALTRACK_FAULTS"):
        parse(line)
    if line:
        path = tmp_path / "rules"
        path.write_text(line)
        with pytest.raises(InvalidRequest):
            FaultFile(path).take(Fault.COMMIT, "")


def test_every_point_is_passed_somewhere_and_none_twice_by_name() -> None:
    """A point that no product code names proves nothing."""
    root = Path(faults.__file__).parent
    code = "".join(path.read_text() for path in root.rglob("*.py") if path.name != "faults.py" and "testing" not in path.parts)
    assert [fault.name for fault in Fault if f"Fault.{fault.name}" not in code] == []
