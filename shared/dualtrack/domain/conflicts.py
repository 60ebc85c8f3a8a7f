"""What the state of a resource does not allow: one code for each reason, so that a program need not read the message.

Each is a `Conflict` (409): whoever only wants to know that it was refused catches that.
"""

from __future__ import annotations

from dualtrack.domain.errors import Conflict


class JobEnded(Conflict):
    """The job has ended: nothing can be asked of it any more, but a fork or a retry."""

    code = "job_ended"


class JobNotEnded(Conflict):
    """Only a job that has ended can be retried."""

    code = "job_not_ended"


class JobSucceeded(Conflict):
    """There is nothing to retry."""

    code = "job_succeeded"


class JobStopping(Conflict):
    """The job was told to stop, and ends within seconds."""

    code = "job_stopping"


class JobWaits(Conflict):
    """The job waits, or is about to, for something else than what was asked for; the message says for what."""

    code = "job_waits"


class ParentHeld(Conflict):
    """The job is held because the one above it is, which must be resumed or extended instead."""

    code = "parent_held"


class StepNotEnded(Conflict):
    """Calls of the step are open."""

    code = "step_not_ended"


class StepCutShort(Conflict):
    """Not all calls of the step were made, they never will be, and none of them did anything outside."""

    code = "step_cut_short"


class CallNotEnded(Conflict):
    """The call has given nothing back yet."""

    code = "call_not_ended"


class LimitReached(Conflict):
    """There are as many as there may be; the message names the limit."""

    code = "limit_reached"


class OtherApprovalKind(Conflict):
    """An approval of that kind is decided another way."""

    code = "other_approval_kind"


class OtherArguments(Conflict):
    """What is approved is not what the approval asks about."""

    code = "other_arguments"


class ApprovalDecided(Conflict):
    """Somebody decided it before, otherwise."""

    code = "approval_decided"


class ApprovalExpired(Conflict):
    """Nobody decided it in time."""

    code = "approval_expired"


class ApprovalWithdrawn(Conflict):
    """Nothing depends on it any more: its job has ended or is about to."""

    code = "approval_withdrawn"


class WebhookDisabled(Conflict):
    """Nothing is sent to it until it is enabled."""

    code = "webhook_disabled"


class DeliveryUnderWay(Conflict):
    """An attempt is being made right now."""

    code = "delivery_under_way"
