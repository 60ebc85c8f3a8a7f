"""Limits are the whole family's: what its members use is counted together, and the root's end holds or fails all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed, wait

from sqlalchemy import func, update

from dualtrack.db.engine import Database
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.forking import Changes
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.limits import LARGEST, LimitsChange
from dualtrack.domain.waiting import Hold
from dualtrack.engine import extension, forks
from dualtrack.models.port import DecisionRequest
from dualtrack.testing.families import by_task, delegate, kids, parent_of, ring_until, under_lock

from .conftest import Make, finish, shell


def test_what_is_forked_from_a_child_is_nobodys_child_and_bounded_as_its_family_was(make: Make) -> None:
    stepper = make(by_task({"parent": [delegate("child"), finish()], "child": [shell("echo 1"), finish("alone")]}))
    job = stepper.run(parent_of(stepper, limits={"steps": 7}))
    (child,) = kids(stepper, job)
    assert child.limits.steps == LARGEST["steps"]
    made, _ = forks.fork(stepper.runtime, tenant_id=job.tenant_id, job_id=child.id, step=1, changes=Changes(), known_models=["deep"])
    assert (made.parent_id, made.root_id, made.depth) == (None, None, 0)
    assert made.limits == job.limits
    assert stepper.run(made).answer == "alone"


def test_the_familys_steps_are_counted_together_and_extending_the_root_lets_all_go_on(make: Make) -> None:
    busy = [shell(f"echo {n}") for n in range(4)]
    scripts = {
        "parent": [{"calls": [delegate("left"), delegate("right")]}, finish("end")],
        "left": [*busy, finish()],
        "right": [*busy, finish()],
    }
    stepper = make(by_task(scripts))
    job = parent_of(stepper, limits={"steps": 6})
    stepper.rest()
    family = [stepper.job(job), *kids(stepper, job)]
    assert sum(member.step for member in family) == 6
    assert [member.status for member in family] == [JobStatus.RUNNING, JobStatus.WAITING, JobStatus.WAITING]
    for child in family[1:]:
        assert child.message is not None
        assert f"6 of job {job.id}'s 6 steps are used" in child.message
        assert f"jobs extend {job.id}" in child.message
    under_lock(stepper, job, extension.extend, LimitsChange(steps=50), by="test")
    job = stepper.run(job)
    assert (job.status, job.answer) == (JobStatus.SUCCEEDED, "end")
    assert [kid.step for kid in kids(stepper, job)] == [5, 5]


def test_members_that_decide_side_by_side_do_not_take_the_same_last_step(make: Make) -> None:
    others_done = threading.Event()

    def decide(request: DecisionRequest) -> None:
        if request.task.startswith("kid"):
            assert others_done.wait(20), "more than one of them decides"

    model = by_task({"parent": [{"calls": [delegate("kid")] * 4}, finish()], "kid": [shell("true"), finish()]}, decide)
    stepper = make(model)
    job = parent_of(stepper, limits={"steps": 2})
    stepper.ring()
    stepper.doorbell.rings.clear()
    children = kids(stepper, job)
    with ThreadPoolExecutor(len(children)) as pool:
        futures = [pool.submit(stepper.planner.advance, kid.id) for kid in children]
        for _ in zip(range(len(children) - 1), as_completed(futures), strict=False):
            pass
        others_done.set()
        wait(futures)
        assert [future.exception() for future in futures] == [None] * len(futures)
    assert sum(kid.step for kid in kids(stepper, job)) == 1
    assert {kid.hold for kid in kids(stepper, job)} == {None}  # nothing was used up yet
    stepper.rest()
    assert sum(kid.step for kid in kids(stepper, job)) == 1
    assert [kid.reason for kid in kids(stepper, job)] == ["budget"] * 4
    under_lock(stepper, job, extension.extend, LimitsChange(steps=50), by="test")
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert [kid.step for kid in kids(stepper, job)] == [2] * 4


def test_a_last_step_that_comes_to_nothing_is_there_for_another(make: Make) -> None:
    def decide(request: DecisionRequest) -> None:
        if request.task == "broken":
            stepper.planner.advance(other.id)
            tried.append(stepper.job(other))

    tried: list[Job] = []
    scripts = {
        "parent": [{"calls": [delegate("broken"), delegate("other")]}, finish("end")],
        "broken": [{"error": "refused"}],
        "other": [finish()],
    }
    stepper = make(by_task(scripts, decide))
    job = parent_of(stepper, limits={"steps": 2})
    stepper.ring()
    broken, other = kids(stepper, job)
    stepper.doorbell.rings.clear()
    stepper.planner.advance(broken.id)
    assert [(kid.step, kid.status, kid.hold) for kid in tried] == [(0, JobStatus.RUNNING, None)]
    assert stepper.job(broken).status is JobStatus.FAILED
    stepper.rest()
    assert (stepper.job(other).status, stepper.job(other).step) == (JobStatus.SUCCEEDED, 1)


def test_a_family_whose_root_wants_to_fail_fails(make: Make) -> None:
    scripts = {"parent": [delegate("child"), finish()], "child": [shell(f"echo {n}") for n in range(9)]}
    stepper = make(by_task(scripts))
    job = stepper.run(parent_of(stepper, limits={"steps": 3, "on_limit": "fail"}))
    assert (job.status, job.reason) == (JobStatus.FAILED, "limit_steps")
    (child,) = kids(stepper, job)
    assert (child.status, child.step) == (JobStatus.FAILED, 2)


def test_the_end_of_the_roots_time_holds_the_family(make: Make, database: Database) -> None:
    stepper = make(by_task({"parent": [delegate("child"), finish("end")], "child": [shell("echo 1"), finish()]}))
    job = parent_of(stepper)
    ring_until(stepper, lambda: len(kids(stepper, job)) == 1)
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).where(jobs_table.c.id == job.id).values(deadline_at=func.now()))
    stepper.scheduler.tick()
    stepper.rest()
    (child,) = kids(stepper, job)
    assert (stepper.job(job).reason, child.hold) == ("budget", Hold.PARENT)
    under_lock(stepper, job, extension.extend, LimitsChange(wall_time_s=10_000), by="test")
    assert stepper.run(job).answer == "end"
