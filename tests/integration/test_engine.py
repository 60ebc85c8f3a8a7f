"""The deep track over a real PostgreSQL and the real sandbox, ring by ring, with a scripted model."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import func, select, text, update

from dualtrack.db import migrate, steps
from dualtrack.db.engine import Database
from dualtrack.db.tables import calls as calls_table
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.errors import BrokerUnavailable, Conflict, IdempotencyMismatch, SandboxFailed, UnknownModel
from dualtrack.domain.events import END_EVENTS, EventType
from dualtrack.domain.job import Job, JobSpec
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.tool import ProposedCall
from dualtrack.domain.usage import Usage
from dualtrack.engine import ending, intake, observations
from dualtrack.models.port import Decision, DecisionRequest, ModelGateway
from dualtrack.objects.workdirs import Workdirs
from dualtrack.sandbox.factory import open_sandbox
from dualtrack.sandbox.port import Command, Outcome, Sandbox
from dualtrack.settings import DatabaseSettings, SandboxSettings
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper

Make = Callable[..., Stepper]


class CountingSandbox:
    """The real sandbox, which remembers what it ran and can be told to fail."""

    name = "counting"

    def __init__(self, inner: Sandbox) -> None:
        self.inner = inner
        self.ran: list[Command] = []
        self.failures = 0
        self.before: Callable[[], None] | None = None

    def check(self) -> None:
        self.inner.check()

    def run(self, command: Command, workspace: Path, limits: Any, cancel: threading.Event) -> Outcome:
        self.ran.append(command)
        if self.before is not None:
            self.before()
        if self.failures:
            self.failures -= 1
            raise SandboxFailed("the test says so")
        return self.inner.run(command, workspace, limits, cancel)


@pytest.fixture(scope="session")
def template_database(postgres: Any) -> str:
    url: str = postgres.create_database()
    database = Database(DatabaseSettings(url=SecretStr(url)))
    migrate.upgrade(database)
    database.close()
    return url


@pytest.fixture
def database(postgres: Any, template_database: str) -> Iterator[Database]:
    url = postgres.create_database(template=template_database)
    opened = Database(DatabaseSettings(url=SecretStr(url)))
    yield opened
    opened.close()
    postgres.drop_database(url)


@pytest.fixture
def sandbox() -> CountingSandbox:
    return CountingSandbox(open_sandbox(SandboxSettings(), PlatformLimits().sandbox))


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory that the sandbox's unprivileged user can reach (pytest's `tmp_path` is closed to others)."""
    with tempfile.TemporaryDirectory(prefix="dualtrack-test-", dir="/var/tmp") as directory:
        Path(directory).chmod(0o711)
        yield Path(directory) / "workspaces"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def make(database: Database, store: MemoryStore, sandbox: CountingSandbox, scratch: Path) -> Iterator[Make]:
    stack = []

    def build(gateway: ModelGateway | list[dict[str, Any]], **limits: Any) -> Stepper:
        model = ScriptedModel(gateway) if isinstance(gateway, list) else gateway
        workdirs = Workdirs(SandboxSettings(workspaces=scratch))
        workdirs.__enter__()
        stepper = Stepper(database, store, model, sandbox, workdirs, PlatformLimits(heartbeat_s=0.1, **limits))
        present = stepper.present()
        present.__enter__()
        stack.append((workdirs, present))
        return stepper

    yield build
    for workdirs, present in stack:
        present.__exit__(None, None, None)
        workdirs.__exit__(None, None, None)


def python(code: str) -> dict[str, Any]:
    return {"tool": "execute_python", "arguments": {"code": code}, "thought": "compute"}


def shell(command: str) -> dict[str, Any]:
    return {"tool": "shell", "arguments": {"command": command}}


def finish(answer: str = "done", **more: Any) -> dict[str, Any]:
    return {"tool": "finish", "arguments": {"answer": answer, **more}}


def types(stepper: Stepper, job: Job) -> list[str]:
    found = stepper.events(job)
    assert [event.seq for event in found] == list(range(1, len(found) + 1))
    assert sum(event.type in END_EVENTS for event in found) <= 1
    return [event.type.value for event in found]


def test_a_job_plans_runs_and_finishes(make: Make, store: MemoryStore) -> None:
    stepper = make(
        [
            {"tool": "update_plan", "arguments": {"steps": [{"title": "write it", "status": "in_progress"}]}},
            python("open('out.txt','w').write(str(17*23)); print(17*23)"),
            {"tool": "save_artifact", "arguments": {"path": "out.txt", "description": "the product"}},
            finish("391"),
        ]
    )
    job = stepper.run(stepper.submit("multiply"))
    assert (job.status, job.answer, job.reason, job.step) == (JobStatus.SUCCEEDED, "391", None, 4)
    assert job.plan == ({"title": "write it", "status": "in_progress"},)
    assert types(stepper, job) == [
        "job.queued", "job.started", "step.decided", "plan.updated", "call.finished", "step.decided", "call.started", "call.finished",
        "step.decided", "call.started", "call.finished", "artifact.saved", "step.decided", "call.finished", "job.succeeded",
    ]  # fmt: skip
    history = stepper.steps(job)
    assert history[1].calls[0].preview.strip() == "391"
    assert job.usage.total_tokens == sum(step.usage.total_tokens for step in history) > 0
    with stepper.runtime.database.transaction() as tx:
        (artifact,) = steps.artifact_page(tx, job.id, limit=10)
    assert (artifact.name, artifact.size, artifact.description, artifact.content_type) == ("out.txt", 3, "the product", "text/plain")
    assert store.get(artifact.blob_key) == b"391"


def test_input_files_are_there_and_the_model_is_told(make: Make) -> None:
    model = ScriptedModel([shell("cat data/in.csv"), finish()])
    stepper = make(model)
    from dualtrack.objects.blobs import BlobStore

    blob = BlobStore(stepper.runtime.store, stepper.tenant_id).put(b"a,b\n1,2\n")
    from dualtrack.db import files

    with stepper.runtime.database.transaction() as tx:
        files.add(
            tx, file_id="file_1", tenant_id=stepper.tenant_id, filename="in.csv", size=blob.size, sha256=blob.sha256, blob_key=blob.key,
            content_type="text/csv",
        )  # fmt: skip
    job = stepper.run(stepper.submit(inputs=[{"file_id": "file_1", "path": "data/in.csv"}]))
    assert job.status is JobStatus.SUCCEEDED
    assert stepper.steps(job)[0].calls[0].preview.strip() == "a,b\n1,2"
    assert "data/in.csv" in model.requests[0].task


def test_pure_calls_of_one_decision_are_rung_together_and_joined_once(make: Make) -> None:
    reads = [{"tool": "list_files", "arguments": {}} for _ in range(3)]
    stepper = make([{"calls": [*reads, shell("touch a"), *reads[:1]], "thought": "all at once"}, finish()])
    job = stepper.submit()
    stepper.ring()
    assert [task for task, _ in stepper.doorbell.rings] == ["execute"] * 3
    for _ in range(3):
        stepper.ring()
    assert [task for task, _ in stepper.doorbell.rings] == ["execute"]  # the shell call, alone
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert "a" in stepper.steps(job)[0].calls[4].preview


def test_every_message_twice_does_nothing_twice(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([python("open('n','a').write('x')"), python("print(open('n').read())"), finish()])
    job = stepper.submit()
    for _ in range(40):
        if not stepper.doorbell.rings:
            break
        stepper.doorbell.rings.append(stepper.doorbell.rings[0])
        stepper.ring()
    assert stepper.job(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 2
    assert stepper.steps(job)[1].calls[0].preview.strip() == "x"
    assert types(stepper, job).count("call.finished") == 3


def test_every_message_lost_once_is_rung_again(make: Make) -> None:
    stepper = make([python("print(1)"), finish()])
    job = stepper.submit()
    for _ in range(20):
        if stepper.job(job).finished_at is not None:
            break
        stepper.doorbell.rings.clear()  # lost
        stepper.time_passes()
        assert stepper.scheduler.tick() == 1
        stepper.ring()
    assert stepper.job(job).status is JobStatus.SUCCEEDED


def test_a_broken_broker_stops_nothing_for_good(make: Make) -> None:
    stepper = make([python("print(1)"), finish()])
    stepper.doorbell.broken = True
    job = stepper.submit()
    assert not stepper.doorbell.rings
    stepper.time_passes()
    with pytest.raises(BrokerUnavailable):
        stepper.scheduler.tick()
    stepper.doorbell.broken = False
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_planner_that_was_overtaken_writes_nothing(make: Make) -> None:
    """The first attempt is frozen inside the model call; a second one decides; then the first wakes up."""
    taken_over = False

    def freeze(_: object) -> None:
        nonlocal taken_over
        if not taken_over:
            taken_over = True
            stepper.leases_run_out()
            stepper.planner.advance(job.id)

    model = ScriptedModel([python("print(1)"), finish()], on_decide=freeze)
    stepper = make(model)
    job = stepper.submit()
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert [step.number for step in stepper.steps(job)] == [1, 2]
    assert types(stepper, job).count("step.decided") == 2


def test_an_executor_that_was_overtaken_writes_nothing(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([python("open('n','a').write('x'); print(open('n').read())"), finish()])
    job = stepper.submit()

    def freeze() -> None:
        sandbox.before = None
        stepper.leases_run_out()
        with stepper.runtime.database.transaction() as tx:
            call_id = tx.connection.execute(select(calls_table.c.id)).scalar_one()
            tx.connection.execute(
                update(calls_table).values(attempt=calls_table.c.attempt + 1, owner=None, lease_until=None, status="pending")
            )
        late.append(call_id)

    late: list[str] = []
    sandbox.before = freeze
    stepper.ring()
    stepper.ring()
    assert stepper.steps(job)[0].calls[0].status is CallStatus.PENDING  # the overtaken attempt's result was dropped
    stepper.doorbell.rings.append(("execute", late[0]))
    job = stepper.run(job)
    assert job.status is JobStatus.SUCCEEDED
    assert stepper.steps(job)[0].calls[0].preview.strip() == "x"  # run again from the snapshot before it, not on top of the first try
    assert types(stepper, job).count("call.finished") == 2


def test_a_failing_sandbox_is_retried_and_never_shown_to_the_model(make: Make, sandbox: CountingSandbox) -> None:
    model = ScriptedModel([shell("echo fine"), finish()])
    stepper = make(model)
    sandbox.failures = 2
    job = stepper.run(stepper.submit())
    assert job.status is JobStatus.SUCCEEDED
    assert types(stepper, job).count("call.retrying") == 2
    assert "the test says so" not in str(model.requests)


def test_a_sandbox_that_never_works_ends_the_job_with_its_reason(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([shell("true")], attempts=3)
    sandbox.failures = 100
    job = stepper.run(stepper.submit())
    assert (job.status, job.reason) == (JobStatus.FAILED, "sandbox_failed")
    assert len(sandbox.ran) == 3
    assert stepper.steps(job)[0].calls[0].status is CallStatus.CANCELLED


def test_storage_that_is_away_is_retried(make: Make, store: MemoryStore, sandbox: CountingSandbox) -> None:
    stepper = make([shell("touch a"), finish()])
    job = stepper.submit()
    stepper.ring()
    store.unavailable = True
    stepper.ring()
    assert "call.retrying" in types(stepper, job)
    store.unavailable = False
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_passing_model_failure_is_retried_and_a_lasting_one_ends_the_job(make: Make) -> None:
    stepper = make([{"error": "rate_limited", "times": 2, **finish()}])
    job = stepper.run(stepper.submit())
    assert job.status is JobStatus.SUCCEEDED
    assert types(stepper, job).count("step.retrying") == 2

    stepper = make([{"error": "refused"}])
    job = stepper.run(stepper.submit("refused"))
    assert (job.status, job.reason) == (JobStatus.FAILED, "model_request_refused")


def test_an_outage_of_the_provider_is_waited_out_until_the_job_s_time_is_over(make: Make, database: Database) -> None:
    stepper = make([{"error": "server_error", "times": 30, **finish("back")}])
    job = stepper.run(stepper.submit())
    assert (job.status, job.answer) == (JobStatus.SUCCEEDED, "back")
    assert types(stepper, job).count("step.retrying") == 30

    stepper = make([{"error": "server_error"}])
    job = stepper.submit("never back")
    for _ in range(20):
        stepper.ring()
        stepper.time_passes()
        stepper.scheduler.tick()
    assert stepper.job(job).status is JobStatus.RUNNING
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).where(jobs_table.c.id == job.id).values(deadline_at=func.now()))
    assert stepper.run(job).reason == "limit_wall_time"


def test_a_failed_call_is_an_observation_and_asks_for_a_reflection(make: Make) -> None:
    model = ScriptedModel([python("1/0"), python("print('better')"), finish()])
    stepper = make(model)
    job = stepper.run(stepper.submit())
    assert job.status is JobStatus.SUCCEEDED
    assert [request.reflect for request in model.requests] == [False, True, False]
    history = stepper.steps(job)
    assert "ZeroDivisionError" in history[0].calls[0].preview
    assert history[1].reflection


def test_checks_must_pass_before_success(make: Make) -> None:
    model = ScriptedModel([finish("too early"), shell("echo hi > report.md"), finish("now")])
    stepper = make(model)
    job = stepper.run(stepper.submit(checks=["test -s report.md", "true"]))
    assert (job.status, job.answer) == (JobStatus.SUCCEEDED, "now")
    finished = [event.data for event in stepper.events(job) if event.type is EventType.CHECKS_FINISHED]
    assert [(data["passed"], data["failed"]) for data in finished] == [(False, ["test -s report.md"]), (True, [])]
    assert "test -s report.md" in model.requests[1].steps[0].note
    assert model.requests[1].reflect


def test_outputs_must_exist_and_are_saved_as_artifacts(make: Make, store: MemoryStore) -> None:
    model = ScriptedModel([finish("too early"), shell("mkdir out; echo hi > out/report.md; echo 1 > n.txt"), finish("now")])
    stepper = make(model)
    job = stepper.run(stepper.submit(outputs=["out/report.md", "/workspace/n.txt"], checks=["test -d out"]))
    assert (job.status, job.answer) == (JobStatus.SUCCEEDED, "now")
    finished = [event.data for event in stepper.events(job) if event.type is EventType.CHECKS_FINISHED]
    assert [data["failed"] for data in finished] == [["test -d out", "out/report.md", "n.txt"], []]
    assert "out/report.md" in model.requests[0].task
    assert "out/report.md: failed" in model.requests[1].steps[0].note
    with stepper.runtime.database.transaction() as tx:
        saved = {artifact.name: store.get(artifact.blob_key) for artifact in steps.artifact_page(tx, job.id, limit=10)}
    assert saved == {"report.md": b"hi\n", "n.txt": b"1\n"}


def test_giving_up_is_a_failure_with_the_agents_answer(make: Make) -> None:
    stepper = make([finish("there is no such file", success=False)])
    job = stepper.run(stepper.submit(checks=["true"]))
    assert (job.status, job.reason, job.answer) == (JobStatus.FAILED, "agent_gave_up", "there is no such file")


def test_the_same_failing_call_again_and_again_is_stopped(make: Make) -> None:
    stepper = make([shell("false")] * 10)
    job = stepper.run(stepper.submit())
    assert (job.status, job.reason, job.step) == (JobStatus.FAILED, "no_progress", 3)
    assert job.message is not None
    assert job.message.startswith("shell failed the same way 3 times in a row")

    stepper = make([finish()] * 10)
    job = stepper.run(stepper.submit("checked", checks=["echo no luck; false"]))
    assert job.message is not None
    assert "'echo no luck; false' failed" in job.message
    assert "no luck" in job.message


def test_what_a_workspace_does_not_keep_is_told(make: Make) -> None:
    stepper = make([shell("touch \"$(printf 'a\\377b')\"; echo made"), shell("ls"), finish()])
    job = stepper.run(stepper.submit())
    first, second, _ = stepper.steps(job)
    assert "made" in first.calls[0].preview
    assert "not kept for later calls: " in first.calls[0].preview
    assert "(no output)" in second.calls[0].preview


def test_answers_that_are_no_action_are_told_and_then_end_the_job(make: Make) -> None:
    model = ScriptedModel([{"text": "hm"}, {"text": "hm"}, finish("ok")])
    stepper = make(model)
    assert stepper.run(stepper.submit()).status is JobStatus.SUCCEEDED
    assert model.requests[1].steps[0].note
    stepper = make([{"text": "\x00nonsense"}] * 10)
    job = stepper.run(stepper.submit("again"))
    assert (job.status, job.reason) == (JobStatus.FAILED, "malformed_actions")
    assert job.usage.total_tokens > 0


@pytest.mark.parametrize(
    ("limits", "reason", "status"),
    [
        ({"steps": 2}, "limit_steps", JobStatus.FAILED),
        ({"tokens": 150}, "limit_tokens", JobStatus.FAILED),
    ],
)
def test_limits_end_a_job_with_their_name(make: Make, limits: dict[str, Any], reason: str, status: JobStatus) -> None:
    stepper = make([{**shell(f"echo {n}"), "input_tokens": 100, "output_tokens": 1} for n in range(20)])
    job = stepper.run(stepper.submit(limits=limits))
    assert (job.status, job.reason) == (status, reason)


def test_a_job_past_its_wall_time_expires_in_the_queue_and_at_work(make: Make, database: Database, sandbox: CountingSandbox) -> None:
    def late() -> None:
        with database.transaction() as tx:
            tx.connection.execute(update(jobs_table).values(deadline_at=func.now()))
        stepper.scheduler.tick()

    stepper = make([shell("sleep 60"), finish()])
    waiting = stepper.submit()
    late()
    assert (stepper.job(waiting).status, stepper.job(waiting).reason) == (JobStatus.EXPIRED, "limit_wall_time")
    stepper.doorbell.rings.clear()
    working = stepper.submit("another")
    stepper.ring()
    sandbox.before = late
    stepper.ring()  # the running command is ended by the next heartbeat
    assert stepper.job(working).status is JobStatus.EXPIRED


def cancel(stepper: Stepper, job: Job) -> bool:
    with stepper.runtime.database.transaction() as tx:
        from dualtrack.db import jobs

        return ending.request_stop(tx, jobs.get(tx, job.id, lock=True), JobStatus.CANCELLED, by="test")


def test_cancel_in_the_queue_ends_at_once_and_again_is_no_error(make: Make) -> None:
    stepper = make([finish()])
    job = stepper.submit()
    assert cancel(stepper, job)
    assert stepper.job(job).status is JobStatus.CANCELLED
    assert not cancel(stepper, job)
    while stepper.ring():
        pass
    assert types(stepper, job) == ["job.queued", "job.stopping", "job.cancelled"]


def test_cancel_ends_a_running_command_and_the_calls_behind_it(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([{"calls": [shell("sleep 60"), shell("touch never")]}])
    job = stepper.submit()
    stepper.ring()

    def stop() -> None:
        cancel(stepper, job)

    sandbox.before = stop
    stepper.ring()
    job = stepper.job(job)
    assert job.status is JobStatus.CANCELLED
    assert [call.status for call in stepper.steps(job)[0].calls] == [CallStatus.CANCELLED] * 2
    assert len(sandbox.ran) == 1


def test_cancel_during_a_decision_ends_the_job_at_once_and_drops_the_decision(make: Make) -> None:
    seen: list[JobStatus] = []

    def stop(_: object) -> None:
        cancel(stepper, job)
        seen.append(stepper.job(job).status)

    stepper = make(ScriptedModel([shell("touch never")], on_decide=stop))
    job = stepper.submit()
    stepper.ring()
    assert seen == [JobStatus.CANCELLED]
    assert stepper.job(job).step == 0
    assert not stepper.doorbell.rings
    assert types(stepper, job)[-1] == "job.cancelled"


def test_rings_during_a_pause_do_not_use_up_the_attempts(make: Make, store: MemoryStore) -> None:
    stepper = make([{"error": "rate_limited", "times": 2, **shell("touch a")}, finish()])
    job = stepper.submit()
    for _ in range(6):
        stepper.doorbell.rings.append(("plan", job.id))
    while stepper.ring():
        pass
    assert types(stepper, job).count("step.retrying") == 1
    stepper.time_passes()
    stepper.scheduler.tick()
    stepper.ring()
    stepper.time_passes()
    stepper.scheduler.tick()
    store.unavailable = True
    stepper.ring()
    assert len(stepper.doorbell.rings) == 1
    stepper.doorbell.rings.extend([stepper.doorbell.rings[0]] * 6)
    while stepper.ring():
        pass
    assert types(stepper, job).count("call.retrying") == 1
    store.unavailable = False
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_job_that_a_newer_release_wrote_more_into_is_still_done(make: Make, database: Database) -> None:
    stepper = make([finish()])
    job = stepper.submit()
    with database.transaction() as tx:
        more = text("""spec || '{"new_field": 1}' || jsonb_build_object('limits', spec->'limits' || '{"newer": 2}')""")
        tx.connection.execute(update(jobs_table).values(spec=more))
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_one_bad_job_keeps_no_other_waiting_and_ends(make: Make, database: Database) -> None:
    stepper = make([finish()])
    bad, late, good = stepper.submit("bad"), stepper.submit("late"), stepper.submit("good")
    stepper.doorbell.rings.clear()
    with database.transaction() as tx:
        for job, more in ((bad, {}), (late, {"deadline_at": func.now()})):
            tx.connection.execute(update(jobs_table).where(jobs_table.c.id == job.id).values(spec={}, **more))
    stepper.time_passes()
    stepper.scheduler.tick()
    while stepper.ring():
        pass
    assert stepper.job(good).status is JobStatus.SUCCEEDED
    with database.transaction() as tx:
        found = tx.connection.execute(select(jobs_table.c.status, jobs_table.c.reason).where(jobs_table.c.id.in_([bad.id, late.id]))).all()
    assert set(found) == {("failed", "record_unreadable")}
    assert len(found) == 2
    assert types(stepper, bad)[-1] == "job.failed"


def test_a_locked_row_keeps_no_other_waiting(make: Make, database: Database) -> None:
    stepper = make([finish()])
    locked, good = stepper.submit("locked"), stepper.submit("good")
    stepper.doorbell.rings.clear()
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).where(jobs_table.c.id == locked.id).values(deadline_at=func.now()))
    stepper.time_passes()
    with database.transaction() as holder:
        from dualtrack.db import jobs

        jobs.get(holder, locked.id, lock=True)
        stepper.scheduler.tick()
        assert ("plan", good.id) in stepper.doorbell.rings
    stepper.scheduler.tick()
    assert stepper.job(locked).status is JobStatus.EXPIRED


def test_waiting_jobs_are_not_rung_into_a_queue_that_is_long_already(make: Make) -> None:
    stepper = make([finish()])
    for n in range(30):
        stepper.submit(str(n))
    for _ in range(40):
        stepper.time_passes()
        stepper.scheduler.tick()
    assert len(stepper.doorbell.rings) < 2 * 500


class OneAnswer(ScriptedModel):
    """Always decides the same calls, or raises."""

    def __init__(self, answer: Exception | tuple[ProposedCall, ...]) -> None:
        super().__init__()
        self.answer = answer

    def decide(self, request: DecisionRequest) -> Decision:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return Decision("", "", self.answer, "raw", Usage(100, 10), 0.0)


@pytest.mark.parametrize(
    ("answer", "reason", "asked"),
    [
        (UnknownModel("gone from the configuration"), "model_not_found", 1),
        (ValueError("a bug"), "internal_fault", 5),
        (RecursionError("deep"), "internal_fault", 5),
    ],
)
def test_a_failure_that_nobody_expected_is_written_down_and_ends_the_job(make: Make, answer: Exception, reason: str, asked: int) -> None:
    model = OneAnswer(answer)
    stepper = make(model)
    job = stepper.run(stepper.submit())
    assert (job.status, job.reason, len(model.requests)) == (JobStatus.FAILED, reason, asked)
    assert types(stepper, job).count("step.retrying") == asked - 1


def test_a_decision_that_can_not_be_written_is_paid_for_all_the_same(make: Make) -> None:
    stepper = make(OneAnswer((ProposedCall("shell", {"command": "true", "timeout_s": float("nan")}),)))
    job = stepper.run(stepper.submit(limits={"tokens": 150}))
    assert job.status is JobStatus.FAILED
    assert job.usage.total_tokens >= 110


def test_checks_are_judged_once_although_the_context_was_compacted_in_between(make: Make) -> None:
    script = [shell(f"echo {n}") for n in range(4)] + [
        finish("early"),
        {"error": "context_too_long", "times": 1, **shell("touch r")},
        finish("now"),
    ]
    stepper = make(script)
    job = stepper.run(stepper.submit(checks=["test -f r"]))
    assert job.status is JobStatus.SUCCEEDED
    found = types(stepper, job)
    assert (found.count("checks.started"), found.count("checks.finished"), found.count("context.compacted")) == (2, 2, 1)


def test_an_ended_job_can_not_be_cancelled(make: Make) -> None:
    stepper = make([finish()])
    job = stepper.run(stepper.submit())
    with pytest.raises(Conflict):
        cancel(stepper, job)


def test_a_cancelled_job_whose_worker_died_is_ended_by_the_scheduler(make: Make, database: Database) -> None:
    stepper = make([shell("true")])
    job = stepper.submit()
    stepper.ring()
    dead = 1 << 60
    with database.transaction() as tx:
        tx.connection.execute(
            update(calls_table).values(status="running", owner=stepper.presence.key, lease_until=func.now() + text("interval '1 hour'"))
        )
    cancel(stepper, job)
    assert stepper.job(job).status is JobStatus.RUNNING  # somebody living works on it
    with database.transaction() as tx:
        tx.connection.execute(update(calls_table).values(owner=dead))
    stepper.scheduler.tick()
    assert stepper.job(job).status is JobStatus.CANCELLED


def test_long_observations_are_cut_in_context_and_read_on_in_full(make: Make) -> None:
    stepper = make([shell("seq 1 5000"), finish()], observation_chars=1000)
    job = stepper.run(stepper.submit())
    call = stepper.steps(job)[0].calls[0]
    assert len(call.preview) < 1200
    assert f"read_artifact call_id={call.id}" in call.preview
    assert call.observation_key is not None
    whole = observations.read(stepper.runtime, job.id, call.id)
    assert whole.split()[:5000] == [str(n) for n in range(1, 5001)]


def test_a_context_that_is_too_long_is_compacted_once_then_ends_the_job(make: Make) -> None:
    script = [shell(f"seq 1 {300 + n}") for n in range(6)] + [{"error": "context_too_long", "times": 1, **finish("fits now")}]
    model = ScriptedModel(script)
    stepper = make(model)
    job = stepper.run(stepper.submit())
    assert job.status is JobStatus.SUCCEEDED
    assert "context.compacted" in types(stepper, job)
    last = model.requests[-1].steps
    assert [len(past.calls[0].observation) < 400 for past in last] == [True, True, True, False, False, False]

    stepper = make([{"error": "context_too_long"}])
    job = stepper.run(stepper.submit("another"))
    assert (job.status, job.reason) == (JobStatus.FAILED, "context_length_exceeded")


def test_binary_output_is_kept_readable(make: Make) -> None:
    stepper = make([shell("printf '\\000\\377ok'"), finish()])
    job = stepper.run(stepper.submit())
    assert job.status is JobStatus.SUCCEEDED
    assert "ok" in stepper.steps(job)[0].calls[0].preview


def test_a_workspace_grown_too_large_is_undone_and_told(make: Make) -> None:
    stepper = make([shell("head -c 3000000 /dev/zero > big"), shell("ls"), finish()], workspace_bytes=1_000_000)
    job = stepper.run(stepper.submit())
    first, second, _ = stepper.steps(job)
    assert first.calls[0].ok is False
    assert "undone" in first.calls[0].preview
    assert "big" not in second.calls[0].preview


def test_an_artifact_that_is_not_there_is_an_observation(make: Make) -> None:
    stepper = make([{"tool": "save_artifact", "arguments": {"path": "nothing.md"}}, finish()])
    job = stepper.run(stepper.submit())
    assert job.status is JobStatus.SUCCEEDED
    assert stepper.steps(job)[0].calls[0].ok is False


def test_an_idempotency_key_gives_the_same_job(make: Make) -> None:
    stepper = make([finish()])
    spec = JobSpec(instructions="once")
    first, new = intake.submit(stepper.runtime, tenant_id=stepper.tenant_id, spec=spec, idempotency_key="k")
    again, repeated = intake.submit(stepper.runtime, tenant_id=stepper.tenant_id, spec=spec, idempotency_key="k")
    assert (new, repeated, first.id) == (True, False, again.id)
    with pytest.raises(IdempotencyMismatch):
        intake.submit(stepper.runtime, tenant_id=stepper.tenant_id, spec=JobSpec(instructions="other"), idempotency_key="k")


def test_costs_add_up_exactly(make: Make) -> None:
    stepper = make([shell("true"), finish()])
    job = stepper.run(stepper.submit())
    assert job.usage.cost_usd == Decimal(0)
    ended = stepper.events(job)[-1].data["usage"]
    assert ended["total_tokens"] == job.usage.total_tokens
