"""The workspace that a fork or a retry begins with: as it was after that step, whatever became of the calls since the last change."""

from __future__ import annotations

import pytest
from sqlalchemy import func, text, update

from dualtrack.db import approvals
from dualtrack.db.engine import Database
from dualtrack.db.tables import approvals as approvals_table
from dualtrack.db.tables import calls as calls_table
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.policy import PolicyRule
from dualtrack.engine.approvals import Decisions
from dualtrack.testing.families import by_task, calls_of, delegate, in_workspace, kids, parent_of
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.stepper import Stepper

from .conftest import Make, finish, fork, retry, shell

pytestmark = pytest.mark.usefixtures("healthy")

ASKED = {"tool": "shell", "arguments": {"command": "danger"}, "action": "ask"}
GIVE_UP = finish("no", success=False)


def asking(make: Make) -> tuple[Stepper, Job]:
    """A job whose second step waits for a person, after a first one that made a file."""
    stepper = make([shell("echo 1 > a"), shell("danger"), GIVE_UP])
    job = stepper.submit(agent={"policies": [ASKED]})
    while stepper.job(job).status is not JobStatus.WAITING:
        assert stepper.ring()
    return stepper, job


def test_after_a_call_that_a_person_denied(make: Make, store: MemoryStore) -> None:
    stepper, job = asking(make)
    with stepper.runtime.database.transaction() as tx:
        (asked,) = approvals.pending(tx, job.id)
    Decisions(stepper.runtime, tenant_id=job.tenant_id, by="key").deny(asked.id, reason="no")
    job = stepper.run(job)
    files = in_workspace(stepper, store, job)
    assert list(files) == ["a"]
    assert in_workspace(stepper, store, fork(stepper, job, 2)) == files
    again = retry(stepper, job)
    assert (again.step, in_workspace(stepper, store, again)) == (2, files)


def test_after_a_call_that_nobody_decided_on_in_time(make: Make, store: MemoryStore, database: Database) -> None:
    stepper, job = asking(make)
    with database.transaction() as tx:
        tx.connection.execute(update(approvals_table).values(expires_at=func.now()))
    stepper.scheduler.tick()
    job = stepper.run(job)
    assert list(in_workspace(stepper, store, fork(stepper, job, 2))) == ["a"]


def test_after_checks_that_a_policy_denied(make: Make, store: MemoryStore) -> None:
    policies = (PolicyRule.model_validate({"tool": "check", "action": "deny"}),)
    stepper = make([shell("echo 1 > a"), finish(), GIVE_UP], policies=policies)
    job = stepper.run(stepper.submit(checks=["true"]))
    assert [call.ok for call in calls_of(stepper, job, 1)] == [True, False]
    assert list(in_workspace(stepper, store, fork(stepper, job, 2, checks=[]))) == ["a"]


def test_after_a_child_that_was_refused(make: Make, store: MemoryStore) -> None:
    scripts = {"parent": [shell("echo 1 > a"), {"calls": [delegate("kid"), delegate("kid")]}, finish()], "kid": [finish()]}
    stepper = make(by_task(scripts), children=1)
    job = stepper.run(parent_of(stepper))
    assert [call.ok for call in calls_of(stepper, job, 1)] == [True, False]
    assert list(in_workspace(stepper, store, fork(stepper, job, 2))) == ["a"]


def test_of_a_child_that_changed_nothing_yet(make: Make, store: MemoryStore) -> None:
    scripts = {"parent": [shell("echo 1 > a"), delegate("kid"), finish()], "kid": [GIVE_UP, shell("cat a"), finish()]}
    stepper = make(by_task(scripts))
    (kid,) = kids(stepper, stepper.run(parent_of(stepper)))
    again = retry(stepper, kid)
    assert (again.step, again.first_workspace) == (0, kid.first_workspace)
    assert list(in_workspace(stepper, store, again)) == ["a"]
    once_more = fork(stepper, again, 0)
    assert (once_more.first_workspace, once_more.workspace) == (kid.first_workspace, kid.first_workspace)


def test_a_fork_of_a_fork_from_before_it_and_after_it(make: Make, store: MemoryStore) -> None:
    stepper = make([shell(f"touch {name}") for name in "abcd"] + [finish()])
    first = stepper.run(stepper.submit())
    second = stepper.run(fork(stepper, first, 2))
    for step, names in enumerate(["", "a", "ab", "abc", "abcd"]):
        found = fork(stepper, second, step)
        assert list(in_workspace(stepper, store, found)) == list(names)
        assert found.first_workspace == first.first_workspace


def test_calls_of_the_first_release_tell_it_by_their_events(make: Make, store: MemoryStore, database: Database) -> None:
    stepper = make([shell("touch a"), shell("touch b"), {"tool": "shell", "arguments": {}}, finish()])
    source = stepper.run(stepper.submit())
    with database.transaction() as tx:
        tx.connection.execute(text("ALTER TABLE calls DISABLE TRIGGER USER"))  # outcomes are written once
        tx.connection.execute(update(calls_table).values(workspace=None))
    middle = fork(stepper, source, 3)
    for step, names in enumerate(["", "a", "ab", "ab"]):
        assert list(in_workspace(stepper, store, fork(stepper, source, step))) == list(names)
        assert list(in_workspace(stepper, store, fork(stepper, middle, step))) == list(names)
