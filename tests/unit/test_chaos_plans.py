"""Plans of jobs and faults: a seed gives the same ones again, and they hold what they should."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualtrack.domain.tool import DELEGATE_TOOL
from dualtrack.faults import Action, Fault, Rule, parse
from dualtrack.testing.chaos.jobs import EXTERNAL_TOOL, instructions, plan_jobs
from dualtrack.testing.chaos.matrix import matrix
from dualtrack.testing.chaos.rig import NAMES
from dualtrack.testing.chaos.strikes import Kind, plan_strikes
from dualtrack.testing.model_script import Script, script_in

SEEDS = st.integers(0, 2**32)


@given(SEEDS)
def test_a_seed_gives_the_same_jobs_and_faults_again(seed: int) -> None:
    assert plan_strikes(seed, 20) == plan_strikes(seed, 20)
    assert plan_strikes(seed, 20)[:5] == plan_strikes(seed, 5)
    assert plan_jobs(seed, 3, (8, 20), witness_url="http://w") == plan_jobs(seed, 3, (8, 20), witness_url="http://w")


def test_another_seed_gives_others() -> None:
    assert plan_strikes(1, 20) != plan_strikes(2, 20)
    assert plan_jobs(1, 3, (8, 20), witness_url="w") != plan_jobs(2, 3, (8, 20), witness_url="w")


@given(SEEDS, st.integers(4, 20))
def test_a_job_has_its_steps_and_leaves_what_its_script_says(seed: int, steps: int) -> None:
    (job,) = plan_jobs(seed, 1, (steps, steps), witness_url="http://w")
    assert job.steps == steps
    Script.model_validate(list(job.script))
    commands = [step["arguments"].get("command", "") for step in job.script if step.get("tool") == "shell"]
    assert [command.split()[1] for command in commands if command.startswith("echo")] == list(job.lines)
    urls = [step["arguments"]["url"] for step in job.script if step.get("tool") == EXTERNAL_TOOL]
    assert urls == [f"http://w/effects/{name}" for name in job.effects]
    assert len(set(job.effects)) == len(job.effects) > 0
    assert commands[-1] == "cat log"


@given(SEEDS, st.integers(4, 20))
def test_some_jobs_delegate_to_a_child_that_leaves_what_its_script_says(seed: int, steps: int) -> None:
    jobs = plan_jobs(seed, 6, (steps, steps), witness_url="http://w")
    parents = [job for job in jobs if job.child is not None]
    assert len(parents) == 2
    for job in parents:
        (delegated,) = [step["arguments"] for step in job.script if step.get("tool") == DELEGATE_TOOL]
        child = job.child
        assert child is not None
        assert script_in([delegated["instructions"]]) == Script.model_validate(list(child.script))
        assert script_in([instructions(job.script)]) == Script.model_validate(list(job.script))  # though there is a script in it
        assert job.steps == steps + 1 + len(child.script)
        commands = [step["arguments"]["command"] for step in (*job.script, *child.script) if step.get("tool") == "shell"]
        assert {line for command in commands for line in command.split()[1:2] if command.startswith("echo")} == set(job.lines)
        assert delegated["outputs"] == [commands[-2].split()[-1]]  # what the child writes is shown by the parent's last command
        assert set(child.lines) < set(job.lines)
        assert not set(child.effects) & set(job.effects)


@given(SEEDS)
def test_faults_strike_what_there_is(seed: int) -> None:
    for strike in plan_strikes(seed, 50):
        assert strike.pause_s > 0
        assert strike.seconds > 0
        if strike.kind in {Kind.KILL, Kind.POINT, Kind.FREEZE, Kind.CLOCK}:
            assert strike.target in NAMES
        if strike.kind is Kind.POINT:
            assert strike.fault is not None
            assert parse(str(Rule(strike.fault, Action.KILL, skip=strike.skip))).fault is strike.fault


def test_every_kind_of_fault_comes_up() -> None:
    assert {strike.kind for strike in plan_strikes(0, 400)} == set(Kind)


def test_rows_have_names_of_their_own_and_the_short_matrix_is_part_of_the_long_one() -> None:
    rows = matrix()
    assert len({row.name for row in rows}) == len({row.what for row in rows}) == len(rows)
    assert 10 <= sum(row.short for row in rows) < len(rows)


def test_every_point_is_in_the_matrix() -> None:
    named = {word for row in matrix() for word in row.what.split()}
    assert [fault for fault in Fault if fault not in named] == []
