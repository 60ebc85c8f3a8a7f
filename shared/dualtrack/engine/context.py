"""The model's context of a job, built from what is recorded; append-only from step to step, between one compaction and the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from dualtrack.domain.job import Job
from dualtrack.domain.network import EgressPolicy
from dualtrack.domain.policies import needs_reflection
from dualtrack.domain.step import Call, Step
from dualtrack.engine.observations import shortened
from dualtrack.models.port import DecisionRequest, PastCall, PastStep
from dualtrack.models.prompts import AGENT_SYSTEM_PROMPT, NETWORK_NOTE, PLACEHOLDER_NOTE, TOOLS_GONE_NOTE
from dualtrack.tools.registry import Registry

_NOTE_CHARS: Final = 1000
"""Of what the platform told the model after a step, where observations are shortened."""


def verified(call: Call) -> str:
    """What a verification looked at: the check's command or the output's path."""
    return str(call.arguments.get("command") or call.arguments.get("path"))


def task_text(job: Job) -> str:
    """What stays the same for the whole job: instructions, files, outputs, checks."""
    parts = [job.spec.instructions.strip()]
    if job.spec.inputs:
        parts.append("Files in the workspace: " + ", ".join(str(item.path) for item in job.spec.inputs))
    if job.spec.outputs:
        parts.append("Files that must exist when you finish: " + ", ".join(job.spec.outputs))
    if job.spec.checks:
        parts.append("Before the job may finish, these commands must exit 0 in the workspace:\n" + "\n".join(job.spec.checks))
    return "\n\n".join(parts)


def shown(job: Job, history: Sequence[Step]) -> list[Step]:
    """The steps of the history that no summary stands for."""
    return [step for step in history if step.number > job.summarised_through]


def system_prompt(job: Job, egress: EgressPolicy | None, gone: Sequence[str] = ()) -> str:
    """The agent's standing orders, which of its tools are `gone`, and what its sandboxes reach."""
    parts = [job.spec.agent.system_prompt or AGENT_SYSTEM_PROMPT]
    if gone:
        parts.append(TOOLS_GONE_NOTE.format(tools=", ".join(gone)))
    if egress is not None:
        parts.append(NETWORK_NOTE.format(hosts=", ".join(map(str, egress.asked))))
        parts += [
            PLACEHOLDER_NOTE.format(
                variable=grant.variable,
                name=grant.name,
                headers=" or ".join(sorted(grant.headers)),
                hosts=", ".join(map(str, grant.bound[-1])),
            )
            for grant in egress.secrets
        ]
    return "\n".join(parts)


def decision_request(
    job: Job,
    history: Sequence[Step],
    registry: Registry,
    messages: Mapping[int, Sequence[str]] | None = None,
    egress: EgressPolicy | None = None,
    past: Callable[[Step], PastStep] | None = None,
) -> DecisionRequest:
    """The request for the next decision. Tools that the operator has taken away since are left out, and the model is told so.

    `messages`: what the job's user wrote to it, oldest first, by the number of the step that each followed; 0: before the first.
    `egress`: what its sandboxes may reach; None: nothing.
    `past`: `past_step`, or what has its results already.
    """
    said = messages or {}
    view = past or past_step
    tools = registry.on_offer(job.spec.agent.tools)
    offered = {spec.name for spec in tools}
    return DecisionRequest(
        model=job.spec.agent.model,
        system=system_prompt(job, egress, [name for name in job.spec.agent.tools if name not in offered]),
        task=task_text(job),
        tools=tools,
        steps=[_answered(view(step), said.get(step.number)) for step in shown(job, history)],
        messages=tuple(text for number in sorted(said) if number <= job.summarised_through for text in said[number]),
        summary=job.summary,
        summarised=job.summarised_through,
        reflect=needs_reflection(history),
    )


def summary_context(request: DecisionRequest, history: Sequence[Step], through: int, *, short: bool) -> DecisionRequest:
    """The part of a decision's request up to step `through`, which a summary is to replace; `short`: with observations shortened."""
    steps = request.steps[: max(0, through - request.summarised)]
    if short:
        calls = {step.number: step.calls for step in history}
        steps = [_shortened(step, calls[request.summarised + n]) for n, step in enumerate(steps, 1)]
    return replace(request, steps=steps, reflect=False)


def _answered(step: PastStep, messages: Sequence[str] | None) -> PastStep:
    return replace(step, messages=tuple(messages)) if messages else step


def past_step(step: Step) -> PastStep:
    """A recorded step as a model is shown it, without what the user wrote after it."""
    verifications = step.verifications
    calls = tuple(PastCall(call.tool, call.arguments, bool(call.ok), call.preview) for call in step.calls if call not in verifications)
    failed = [call for call in verifications if not call.ok]
    note = step.note
    if failed:
        note = "Not finished yet:\n" + "\n".join(f"{verified(call)}: failed\n{call.preview}" for call in failed)
    return PastStep(thought=step.thought, calls=calls, note=note, reflection=step.reflection)


def _shortened(step: PastStep, calls: Sequence[Call]) -> PastStep:
    """A step with its observations shortened; `calls` are its recorded ones, of which verifications come last."""
    return replace(
        step,
        calls=tuple(replace(past, observation=shortened(past.observation, call.id)) for past, call in zip(step.calls, calls, strict=False)),
        note=step.note[:_NOTE_CHARS],
    )
