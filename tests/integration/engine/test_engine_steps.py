"""Planning, running, checking, finishing: what a job does while nothing goes wrong, and what the model is shown."""

from __future__ import annotations

from decimal import Decimal

import pytest

from dualtrack.db import steps
from dualtrack.db.idempotency import RequestKey
from dualtrack.domain.errors import IdempotencyMismatch
from dualtrack.domain.events import EventType
from dualtrack.domain.job import JobSpec
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.engine import intake, observations
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.scripted_model import ScriptedModel

from .conftest import CountingSandbox, Make, finish, python, shell, types


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


def test_what_a_workspace_does_not_keep_is_told(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([shell("touch \"$(printf 'a\\377b')\"; echo made"), shell("ls"), finish()])
    job = stepper.submit()
    for _ in range(3):
        stepper.ring()
    sandbox.claimed[0].close()
    job = stepper.run(job)
    first, second, _ = stepper.steps(job)
    assert "made" in first.calls[0].preview
    assert "not saved with the workspace: " in first.calls[0].preview
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


def test_long_observations_are_cut_in_context_and_read_on_in_full(make: Make) -> None:
    stepper = make([shell("seq 1 5000"), finish()], observation_chars=1000)
    job = stepper.run(stepper.submit())
    call = stepper.steps(job)[0].calls[0]
    assert len(call.preview) < 1200
    assert f"read_artifact call_id={call.id}" in call.preview
    assert call.observation_key is not None
    whole = observations.read(stepper.runtime, job.id, call.id)
    assert whole.split()[:5000] == [str(n) for n in range(1, 5001)]


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
    key = RequestKey.of(stepper.tenant_id, "k", "one")
    first, new = intake.submit(stepper.runtime, tenant_id=stepper.tenant_id, spec=spec, once=key)
    again, repeated = intake.submit(stepper.runtime, tenant_id=stepper.tenant_id, spec=spec, once=key)
    assert (new, repeated, first.id) == (True, False, again.id)
    with pytest.raises(IdempotencyMismatch):
        intake.submit(stepper.runtime, tenant_id=stepper.tenant_id, spec=spec, once=RequestKey.of(stepper.tenant_id, "k", "other"))


def test_costs_add_up_exactly(make: Make) -> None:
    stepper = make([shell("true"), finish()])
    job = stepper.run(stepper.submit())
    assert job.usage.cost_usd == Decimal(0)
    ended = stepper.events(job)[-1].data["usage"]
    assert ended["total_tokens"] == job.usage.total_tokens
