"""Asking a person about one call, and taking what they say: the call runs, is refused, is answered, or its doubt is resolved.

Every decision is written under the job's row lock, together with its event and what it does to the call; then `flow.go_on` takes the job
on. It is bound to tool and arguments: `dualtrack.db.approvals.permits` is asked before a guarded call is begun, whatever led there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from dualtrack.db import approvals, events, jobs, steps
from dualtrack.db.engine import Transaction
from dualtrack.domain.approval import Approval, Resolution, arguments_sha256
from dualtrack.domain.conflicts import (
    ApprovalDecided,
    ApprovalExpired,
    ApprovalWithdrawn,
    JobStopping,
    OtherApprovalKind,
    OtherArguments,
)
from dualtrack.domain.doubt import DOUBTED, OUTCOME, UNKNOWN
from dualtrack.domain.errors import InvalidRequest, TooLarge
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.ids import new_id
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import TERMINAL, JobStatus
from dualtrack.domain.policy import NO_REASON, Action, judge
from dualtrack.domain.reasons import Reason
from dualtrack.domain.step import Call
from dualtrack.domain.waiting import ApprovalKind, ApprovalStatus, Held
from dualtrack.engine import flow
from dualtrack.engine.ending import end_job
from dualtrack.engine.runtime import Runtime
from dualtrack.faults import Fault, point

SCHEDULER: Final = "scheduler"
"""Who decides where nobody did in time."""
_HELD: Final = {ApprovalKind.CALL: Held.APPROVAL, ApprovalKind.QUESTION: Held.INPUT, ApprovalKind.UNKNOWN: Held.UNKNOWN}
_HOW: Final = {ApprovalKind.CALL: "approve or deny it", ApprovalKind.QUESTION: "answer or deny it", ApprovalKind.UNKNOWN: "resolve it"}
_EXPIRED: Final = {
    ApprovalKind.CALL: "Not run: it needs a person's approval, and nobody decided in time. Do it another way, or finish without it.",
    ApprovalKind.QUESTION: "Nobody answered in time. Go on by your own judgement, and say in your answer what you assumed.",
    ApprovalKind.UNKNOWN: "Outcome unknown: it may or may not have happened, and nobody said in time. Find out before you do it again.",
}
_RESOLVED: Final = {
    Resolution.HAPPENED: "It did happen, as a person confirmed; what it gave back is not known.",
    Resolution.NOT_HAPPENED: "It did not happen, as a person confirmed.",
    Resolution.FAIL: "Outcome unknown: it may or may not have happened.",
}


def request(
    tx: Transaction, runtime: Runtime, job: Job, call: Call, kind: ApprovalKind, *, message: str, expires_s: float | None = None
) -> Approval:
    """Ask people about a pending call of a job whose row is locked; the call is held until somebody decides or `expires_s` are over.

    The caller goes on with `flow.go_on`.
    """
    steps.hold(tx, call.id, _HELD[kind])
    values = {
        "id": new_id("appr"),
        "tenant_id": job.tenant_id,
        "job_id": job.id,
        "call_id": call.id,
        "kind": kind.value,
        "tool": call.tool,
        "arguments": dict(call.arguments),
        "arguments_sha256": arguments_sha256(call.arguments),
        "message": message,
    }
    asked = approvals.create(tx, values, expires_s=expires_s or runtime.limits.approval_s)
    data = {
        "approval_id": asked.id,
        "kind": kind.value,
        "call_id": call.id,
        "step": call.step,
        "tool": asked.tool,
        "arguments": asked.arguments,
        "arguments_sha256": asked.arguments_sha256,
        "message": message,
        "expires_at": asked.expires_at.isoformat(),
    }
    events.append(tx, job.id, NewEvent(EventType.APPROVAL_REQUESTED, data))
    return asked


class Decisions:
    """What the people of one tenant decide, under the API key `by`.

    Every method gives the approval as it stands then. Deciding again the same way changes nothing.

    Raises (every method):
        NotFound: there is no such approval in this tenant.
        ApprovalDecided, ApprovalExpired, ApprovalWithdrawn, OtherApprovalKind, JobStopping: it can no longer, or not so, be decided.
        TooLarge: a text has more than `limits.approval_chars` characters.
    """

    def __init__(self, runtime: Runtime, *, tenant_id: str, by: str) -> None:
        self._runtime = runtime
        self._tenant_id = tenant_id
        self._by = by

    def approve(
        self, approval_id: str, *, sha256: str | None = None, arguments: Mapping[str, Any] | None = None, note: str | None = None
    ) -> Approval:
        """Let the call run: with the arguments asked about, or with others instead.

        `sha256`: the hash that the person saw, where it is to be compared.

        Raises:
            InvalidRequest: `arguments` don't fit the tool's schema, or a policy denies them.
            OtherArguments: `sha256` is not that of the arguments asked about.
        """
        self._short(note, "note")
        with self._runtime.database.transaction() as tx:
            asked = approvals.get(tx, approval_id, tenant_id=self._tenant_id)
            job = jobs.get(tx, asked.job_id)
        _of_kind(asked, ApprovalKind.CALL)
        if sha256 is not None and sha256.lower() != asked.arguments_sha256:
            raise OtherArguments("These are not the arguments that you approve: show the approval again.", param="arguments_sha256")
        values: dict[str, Any] = {"note": note}
        edited = None if arguments is None else arguments_sha256(arguments)
        if edited == asked.arguments_sha256:
            edited = None
        if edited is not None:
            self._check_edit(job, asked, arguments or {})
            values |= {"edited_arguments": dict(arguments or {}), "edited_sha256": edited}
        with self._runtime.database.transaction() as tx:
            job, now = self._locked(tx, asked)
            if not _undecided(job, now, same=now.status is ApprovalStatus.APPROVED and now.edited_sha256 == edited):
                return now
            steps.let_go(tx, now.call_id, {} if edited is None else {"arguments": values["edited_arguments"]})
            more = {} if edited is None else {"arguments": values["edited_arguments"], "arguments_sha256": edited}
            return self._decided(tx, job, now, ApprovalStatus.APPROVED, values, more)

    def deny(self, approval_id: str, *, reason: str) -> Approval:
        """Refuse the call, or an answer: the agent is given the reason, as a failure."""
        self._short(reason, "reason")
        with self._runtime.database.transaction() as tx:
            job, now = self._locked(tx, approvals.get(tx, approval_id, tenant_id=self._tenant_id))
            _of_kind(now, ApprovalKind.CALL, ApprovalKind.QUESTION)
            if not _undecided(job, now, same=now.status is ApprovalStatus.DENIED):
                return now
            text = f"Denied by a person, not run: {reason}" if now.kind is ApprovalKind.CALL else f"Nobody will answer that: {reason}"
            _settle(tx, job, now, ok=False, text=text)
            return self._decided(tx, job, now, ApprovalStatus.DENIED, {"note": reason})

    def answer(self, approval_id: str, *, text: str) -> Approval:
        """Answer the agent's question."""
        self._short(text, "text")
        with self._runtime.database.transaction() as tx:
            job, now = self._locked(tx, approvals.get(tx, approval_id, tenant_id=self._tenant_id))
            _of_kind(now, ApprovalKind.QUESTION)
            if not _undecided(job, now, same=now.status is ApprovalStatus.ANSWERED and now.note == text):
                return now
            _settle(tx, job, now, ok=True, text=text)
            return self._decided(tx, job, now, ApprovalStatus.ANSWERED, {"note": text})

    def resolve(self, approval_id: str, outcome: Resolution, *, observation: str | None = None) -> Approval:
        """Say what became of an external call in doubt; `observation` is what the agent is told of it."""
        self._short(observation, "observation")
        with self._runtime.database.transaction() as tx:
            job, now = self._locked(tx, approvals.get(tx, approval_id, tenant_id=self._tenant_id))
            _of_kind(now, ApprovalKind.UNKNOWN)
            if not _undecided(job, now, same=now.status is ApprovalStatus.ANSWERED and now.outcome is outcome):
                return now
            if outcome is Resolution.RETRY:
                steps.let_go(tx, now.call_id, {"intent_at": None, "details": DOUBTED})
            else:
                known = UNKNOWN if outcome is Resolution.FAIL else outcome.value
                _settle(tx, job, now, ok=outcome is Resolution.HAPPENED, text=observation or _RESOLVED[outcome], outcome=known)
            values = {"note": observation, "outcome": outcome.value}
            return self._decided(tx, job, now, ApprovalStatus.ANSWERED, values, {"outcome": outcome.value})

    def _locked(self, tx: Transaction, asked: Approval) -> tuple[Job, Approval]:
        """The job, its row locked, and the approval as it stands under that lock."""
        return jobs.get(tx, asked.job_id, lock=True), approvals.get(tx, asked.id)

    def _decided(
        self,
        tx: Transaction,
        job: Job,
        asked: Approval,
        status: ApprovalStatus,
        values: Mapping[str, Any],
        more: Mapping[str, Any] | None = None,
    ) -> Approval:
        """Write the decision and its event, and take the job on."""
        found = approvals.decide(tx, asked.id, status, by=self._by, **values)
        events.append(tx, job.id, _decided_event(found, more))
        if found.outcome is Resolution.FAIL:
            message = f"Nobody knows whether {found.tool} ({found.call_id}) happened, and a person had the job fail."
            end_job(tx, job.id, JobStatus.FAILED, reason=Reason.OUTCOME_UNKNOWN, message=message)
        else:
            tx.after_commit(lambda: point(Fault.APPROVAL_DECIDED, job.id))
            flow.go_on(tx, self._runtime, job)
        point(Fault.APPROVAL_DECIDE, job.id)
        return found

    def _check_edit(self, job: Job, asked: Approval, arguments: Mapping[str, Any]) -> None:
        limits = self._runtime.limits
        if len(json.dumps(arguments)) > limits.arguments_bytes:
            raise TooLarge(f"arguments: at most {limits.arguments_bytes} bytes as JSON (limits.arguments_bytes).", param="arguments")
        spec = self._runtime.registry.spec(asked.tool)
        wrong = self._runtime.registry.fault(spec, arguments)
        if wrong is not None:
            field = ".".join(part for part in ("arguments", wrong.field) if part)
            raise InvalidRequest(f"{field}: {wrong.message}", param=field)
        verdict = judge((*self._runtime.policies, *job.spec.agent.policies), spec, arguments)
        if verdict.action is Action.DENY:
            raise InvalidRequest(f"arguments: denied by policy: {verdict.message or NO_REASON}.", param="arguments")

    def _short(self, text: str | None, param: str) -> None:
        most = self._runtime.limits.approval_chars
        if text is not None and len(text) > most:
            raise TooLarge(f"{param}: at most {most} characters (limits.approval_chars).", param=param)


def expire(tx: Transaction, runtime: Runtime, job: Job) -> bool:
    """End a live job's requests whose time is over (its row locked): nobody's decision is a no. Whether there were any."""
    lapsed = [asked for asked in approvals.pending(tx, job.id) if asked.lapsed] if job.stopping is None else []
    for asked in lapsed:
        _settle(tx, job, asked, ok=False, text=_EXPIRED[asked.kind], outcome=UNKNOWN if asked.kind is ApprovalKind.UNKNOWN else None)
        events.append(tx, job.id, _decided_event(approvals.decide(tx, asked.id, ApprovalStatus.EXPIRED, by=SCHEDULER)))
    if lapsed:
        flow.go_on(tx, runtime, job)
    return bool(lapsed)


def _of_kind(asked: Approval, *kinds: ApprovalKind) -> None:
    if asked.kind not in kinds:
        raise OtherApprovalKind(f"This approval is of kind {asked.kind}: {_HOW[asked.kind]}.", param="approval_id")


def _undecided(job: Job, now: Approval, *, same: bool) -> bool:
    """Whether a decision may be written; False where it is the one that stands already."""
    if same:
        return False
    if now.status is ApprovalStatus.WITHDRAWN:
        raise ApprovalWithdrawn(f"Too late, it is withdrawn: the job {_end(job)}.", param="approval_id")
    if now.status is ApprovalStatus.EXPIRED or (now.status is ApprovalStatus.PENDING and now.lapsed):
        raise ApprovalExpired(f"Too late: it expired at {now.expires_at.isoformat(timespec='seconds')}.", param="approval_id")
    if now.status is not ApprovalStatus.PENDING:
        edited = " with other arguments" if now.edited_sha256 else ""
        raise ApprovalDecided(f"Too late, it is decided: {now.status}{edited}.", param="approval_id")
    if job.stopping is not None:
        raise JobStopping(f"The job was told to stop and will be {job.stopping}.", param="approval_id")
    return True


def _end(job: Job) -> str:
    """How a job has ended or is about to, for a sentence."""
    if job.status not in TERMINAL:
        return f"was told to stop and will be {job.stopping}"
    return f"has ended: {job.status}" + (f" ({job.reason})" if job.reason not in {None, job.status.value} else "")


def _settle(tx: Transaction, job: Job, asked: Approval, *, ok: bool, text: str, outcome: str | None = None) -> None:
    """The held call's outcome, without an executor."""
    details = {"approval_id": asked.id} | ({OUTCOME: outcome} if outcome else {})
    steps.settle_held(tx, asked.call_id, ok=ok, preview=text, details=details)
    call = steps.call(tx, asked.call_id)
    data = {"call_id": call.id, "step": call.step, "tool": call.tool, "ok": ok, "observation": text, "details": details}
    events.append(tx, job.id, NewEvent(EventType.CALL_FINISHED, data))


def _decided_event(decided: Approval, more: Mapping[str, Any] | None = None) -> NewEvent:
    data = {
        "approval_id": decided.id,
        "call_id": decided.call_id,
        "status": decided.status.value,
        "by": decided.decided_by,
        "by_name": decided.decided_by_name,
        "note": decided.note,
    }
    return NewEvent(EventType.APPROVAL_DECIDED, data | dict(more or {}))
