"""Policies: what is denied or allowed without a person, and whose rule comes first."""

from __future__ import annotations

from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.policy import PolicyRule

from .conftest import CountingSandbox, Make, finish, shell


def test_policy_denies_without_asking_and_the_operator_comes_first(make: Make, sandbox: CountingSandbox) -> None:
    operator = (
        PolicyRule.model_validate({"tool": "shell", "arguments": {"command": r"\bcurl\b"}, "action": "deny", "message": "No network."}),
        PolicyRule.model_validate({"tool": "shell", "arguments": {"command": "^echo ok$"}, "action": "allow"}),
    )
    stepper = make([{"calls": [shell("curl x"), shell("echo ok"), shell("ls")]}, finish()], policies=operator)
    profile = [{"tool": "shell", "arguments": {"command": "curl"}, "action": "allow"}, {"risk": "medium", "action": "deny"}]
    job = stepper.run(stepper.submit(agent={"policies": profile}))
    assert job.status is JobStatus.SUCCEEDED
    first, second, third = stepper.steps(job)[0].calls
    assert first.preview.startswith("Denied by policy: No network.")
    assert (first.ok, second.ok, third.ok) == (False, True, False)
    assert len(sandbox.ran) == 1


def test_a_check_that_policy_denies_is_no_success(make: Make, sandbox: CountingSandbox) -> None:
    """It was accepted before the operator's rules changed."""
    stepper = make([finish()] * 5, policies=(PolicyRule.model_validate({"tool": "check", "action": "deny"}),))
    job = stepper.run(stepper.submit(checks=["true"]))
    assert (job.status, job.reason) == (JobStatus.FAILED, "no_progress")
    assert sandbox.ran == []


def test_checks_are_not_asked_for(make: Make) -> None:
    stepper = make([finish()])
    job = stepper.run(stepper.submit(checks=["true"], agent={"policies": [{"action": "ask"}]}))
    assert job.status is JobStatus.SUCCEEDED
