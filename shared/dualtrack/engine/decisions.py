"""Writing a decision down: which calls are refused at once, change the job itself, wait for a person, or go to an executor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dualtrack.domain import children
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.ids import new_id
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.policies import waves
from dualtrack.domain.policy import Action, PolicyRule, Verdict, judge
from dualtrack.domain.text import storable
from dualtrack.domain.tool import ASK_TOOL, CHECK_TOOL, DELEGATE_TOOL, FINISH_TOOL, PLAN_TOOL, SAVE_TOOL, Effect, ProposedCall, ToolSpec
from dualtrack.domain.waiting import ApprovalKind, Held
from dualtrack.tools.registry import Registry

_TOOL_NAME_CHARS: Final = 128
_UNGOVERNED: Final = frozenset({PLAN_TOOL, FINISH_TOOL})
"""Done as the decision is recorded, and touching nothing but the job: policies say nothing of them."""
_WRITTEN: Final = "Not finished: the user wrote while you decided. Read that first; call finish again when nothing more is to be done."
_ALONE: Final = "Not finished: other calls were made in the same step. Look at their results first, then call finish alone."


@dataclass(frozen=True, slots=True)
class Finish:
    """The agent's claim to be done."""

    answer: str
    success: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """What a person is to be asked about a call."""

    call_id: str
    kind: ApprovalKind
    message: str
    expires_s: float | None = None


@dataclass(slots=True)
class Outline:
    """A decision, taken apart. `rows` are call rows without database defaults, `dispatch` the ids of those without an outcome, by wave."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)
    dispatch: list[tuple[int, str]] = field(default_factory=list)
    plan: list[Mapping[str, Any]] | None = None
    finish: Finish | None = None
    asks: list[Ask] = field(default_factory=list)
    unverified: bool = False
    """One of the job's own checks or outputs is denied by policy, so that it can't succeed."""

    @property
    def delegates(self) -> bool:
        """Whether children are to be started now."""
        return any(row["tool"] == DELEGATE_TOOL and row["id"] in self.first_wave for row in self.rows)

    @property
    def answer(self) -> str | None:
        """What the job ends with by this decision, as a success and without anything to be verified first; None: it does not."""
        ends = self.finish is not None and self.finish.success and not self.dispatch and not self.unverified
        return self.finish.answer if self.finish is not None and ends else None

    @property
    def first_wave(self) -> list[str]:
        """Calls that may run now, where nobody is to be asked."""
        return [call_id for wave, call_id in self.dispatch if wave == 0]


def put_off(outline: Outline) -> Outline:
    """The same decision with its `finish` refused, since the user has written meanwhile: nothing is verified, and the job goes on."""
    rows = [row for row in outline.rows if row["effect"] == Effect.CONTROL]  # the others are its verifications: a finish is accepted alone
    refused = {"status": CallStatus.FAILED.value, "ok": False, "preview": _WRITTEN}
    return Outline(
        rows=[row | refused if row["tool"] == FINISH_TOOL and row.get("ok") else row for row in rows],
        events=[event for event in outline.events if event.type is not EventType.CHECKS_STARTED],
        plan=outline.plan,
    )


def _kind(spec: ToolSpec) -> str:
    """What decides with which others it may run side by side."""
    if spec.name == ASK_TOOL:  # a question changes nothing: the pure calls beside it run while it waits
        return Effect.PURE
    return DELEGATE_TOOL if spec.name == DELEGATE_TOOL else spec.effect


class DecisionReader:
    """Turns a model's proposals into call rows by the policies of the operator and of the job's agent profile.

    Policies see a call as it was proposed, once it fits its tool's schema. The engine's own calls (checks, outputs) were asked for by
    whoever submitted the job, so nobody is asked about them; a rule that denies them holds all the same.
    """

    def __init__(self, registry: Registry, limits: PlatformLimits, policies: Sequence[PolicyRule] = ()) -> None:
        self._registry = registry
        self._limits = limits
        self._policies = tuple(policies)

    def outline(self, job: Job, step: int, proposals: tuple[ProposedCall, ...], traceparent: str) -> Outline:
        """Take a decision of `job` apart. Of the proposals beyond the limit on calls a step, the first is refused on behalf of all."""
        found = Outline()
        beyond = len(proposals) - self._limits.calls_per_step
        proposals = proposals[: self._limits.calls_per_step + 1]
        accepted: list[tuple[int, ProposedCall, ToolSpec]] = []
        verdicts: dict[int, Verdict] = {}
        for position, proposal in enumerate(proposals):
            refused, spec = self._refusal(job, position, proposal, beyond)
            if spec is not None and spec.name not in _UNGOVERNED:
                verdicts[position] = judge(self._rules(job), spec, proposal.arguments)
                refused, spec = verdicts[position].refusal, None if verdicts[position].action is Action.DENY else spec
            if spec is None:
                found.rows.append(self._settled(job, step, position, proposal, ok=False, text=refused))
            else:
                accepted.append((position, proposal, spec))
        runnable = [(position, proposal, spec) for position, proposal, spec in accepted if spec.name not in _UNGOVERNED]
        for position, proposal, spec in accepted:
            if spec.name == PLAN_TOOL:
                found.plan = list(proposal.arguments["steps"])
                found.rows.append(self._settled(job, step, position, proposal, ok=True, text="Plan updated."))
                found.events.append(NewEvent(EventType.PLAN_UPDATED, {"step": step, "plan": found.plan}))
            elif spec.name == FINISH_TOOL:
                self._finish(found, job, step, position, proposal, alone=not runnable)
        for (position, proposal, spec), wave in zip(runnable, waves([_kind(spec) for _, _, spec in runnable]), strict=True):
            row = self._dispatch(found, job, step, position, proposal.tool, proposal.arguments, spec.effect, wave, traceparent)
            self._ask(found, row, verdicts[position])
        if found.finish is not None and found.finish.success:
            self._verify(found, job, step, len(proposals), traceparent)
        found.rows.sort(key=lambda row: int(row["position"]))
        return found

    def _rules(self, job: Job) -> tuple[PolicyRule, ...]:
        return (*self._policies, *job.spec.agent.policies)

    @staticmethod
    def _ask(found: Outline, row: dict[str, Any], verdict: Verdict) -> None:
        """Hold a call that needs a person."""
        if row["tool"] == ASK_TOOL:
            row["held"] = Held.INPUT.value
            found.asks.append(Ask(row["id"], ApprovalKind.QUESTION, str(row["arguments"]["question"])))
        elif verdict.action is Action.ASK:
            row |= {"held": Held.APPROVAL.value, "guarded": True}
            found.asks.append(Ask(row["id"], ApprovalKind.CALL, verdict.message, verdict.expires_s))

    def _verify(self, found: Outline, job: Job, step: int, position: int, traceparent: str) -> None:
        """Have the job's checks run one after the other, then its outputs saved."""
        calls = [(CHECK_TOOL, {"command": command}, Effect.WORKSPACE) for command in job.spec.checks]
        calls += [(SAVE_TOOL, {"path": path}, Effect.PURE) for path in job.spec.outputs]
        for n, ((tool, arguments, effect), wave) in enumerate(zip(calls, waves([effect for _, _, effect in calls]), strict=True)):
            verdict = judge(self._rules(job), self._registry.tool(tool).spec, arguments)
            if verdict.action is Action.DENY:  # accepted before the operator's rules changed
                found.unverified = True
                denied = self._settled(job, step, position + n, ProposedCall(tool, arguments), ok=False, text=verdict.refusal)
                found.rows.append(denied | {"effect": effect.value})
            else:
                self._dispatch(found, job, step, position + n, tool, arguments, effect, wave, traceparent)
        if calls:
            data = {"step": step, "checks": list(job.spec.checks), "outputs": list(job.spec.outputs)}
            found.events.append(NewEvent(EventType.CHECKS_STARTED, data))

    def _refusal(self, job: Job, position: int, proposal: ProposedCall, beyond: int) -> tuple[str, ToolSpec | None]:
        if position >= self._limits.calls_per_step:
            more = f", nor the {beyond - 1} calls after it" if beyond > 1 else ""
            return f"Not run{more}: at most {self._limits.calls_per_step} calls a step. Ask again in the next step.", None
        offered = {spec.name: spec for spec in self._registry.on_offer(job.spec.agent.tools)}
        spec = offered.get(proposal.tool)
        if spec is None:
            return f"There is no tool {proposal.tool!r}. The tools are: {', '.join(offered)}.", None
        if len(json.dumps(proposal.arguments)) > self._limits.arguments_bytes:
            return f"The arguments are longer than {self._limits.arguments_bytes} bytes: write long content in several calls.", None
        wrong = self._registry.validate(spec, proposal.arguments)
        if wrong is None and spec.name == DELEGATE_TOOL:
            wrong = children.refusal(job, proposal.arguments, self._limits)
        return ("", spec) if wrong is None else (f"Wrong arguments for {proposal.tool}: {wrong}", None)

    def _finish(self, found: Outline, job: Job, step: int, position: int, proposal: ProposedCall, *, alone: bool) -> None:
        if not alone or found.finish is not None:
            found.rows.append(self._settled(job, step, position, proposal, ok=False, text=_ALONE))
            return
        found.finish = Finish(answer=str(proposal.arguments.get("answer", "")), success=bool(proposal.arguments.get("success", True)))
        found.rows.append(
            self._settled(
                job, step, position, proposal, ok=True, text="Running the checks." if job.spec.checks or job.spec.outputs else "Finished."
            )
        )

    @staticmethod
    def _row(job: Job, step: int, position: int, tool: str, arguments: Mapping[str, Any], effect: Effect) -> dict[str, Any]:
        return {
            "id": new_id("call"),
            "job_id": job.id,
            "tenant_id": job.tenant_id,
            "step": step,
            "position": position,
            "tool": tool,
            "effect": effect.value,
            "arguments": dict(arguments),
        }

    def _settled(self, job: Job, step: int, position: int, proposal: ProposedCall, *, ok: bool, text: str) -> dict[str, Any]:
        tool = storable(proposal.tool[:_TOOL_NAME_CHARS]) or "?"
        arguments = storable(proposal.arguments) if len(json.dumps(proposal.arguments)) <= self._limits.arguments_bytes else {}
        status = CallStatus.SUCCEEDED if ok else CallStatus.FAILED
        return self._row(job, step, position, tool, arguments, Effect.CONTROL) | {
            "status": status.value,
            "ok": ok,
            "preview": storable(text),
        }

    def _dispatch(
        self,
        found: Outline,
        job: Job,
        step: int,
        position: int,
        tool: str,
        arguments: Mapping[str, Any],
        effect: Effect,
        wave: int,
        traceparent: str,
    ) -> dict[str, Any]:
        row = self._row(job, step, position, tool, arguments, effect)
        row |= {"status": CallStatus.PENDING.value, "wave": wave, "traceparent": traceparent}
        found.rows.append(row)
        found.dispatch.append((wave, row["id"]))
        return row
