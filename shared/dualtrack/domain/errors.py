"""Every error the platform raises on purpose: a stable code, whether trying again may help, and a message that says
what to do.

Two families must never be mixed up. *Our machinery failed* (`InfrastructureError` and below) is retried and never shown
to the model. *The command failed* is not an exception at all: it is an observation (see `dualtrack.tools`).
HTTP statuses are mapped in one place, `router.errors`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dualtrack.domain.text import storable
from dualtrack.domain.usage import Usage


class DualtrackError(Exception):
    """Base of all errors of this package.

    Picklable: every subclass is built from `message` and `param` alone.

    Attributes:
        code: stable, machine-readable; part of the API.
        retryable: the same call may succeed later without anybody changing anything.
        outage: somebody else's service is away or busy: retrying goes on for as long as the job may take.
        message: one sentence for a person, saying what to do. Always storable: it may quote a provider or a server, which say anything.
        param: the field that is at fault, as the caller named it (`limits.steps`), or None.
        retry_after_s: seconds after which trying again may help, where whoever refused it said so; None: not known.
    """

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False
    outage: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        self.message: str = storable(message)
        super().__init__(self.message)
        self.param = param
        self.retry_after_s: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.param), {"retry_after_s": self.retry_after_s})


def _rebuild(cls: type[DualtrackError], message: str, param: str | None) -> DualtrackError:
    return cls(message, param=param)


# --- the caller's mistakes -------------------------------------------------------------------------------------------


class InvalidRequest(DualtrackError):
    """The request can't be accepted as it is; `param` names the field."""

    code = "invalid_request"


class InvalidJSON(InvalidRequest):
    code = "invalid_json"


class UnknownModel(InvalidRequest):
    """No track and no configured model has that name."""

    code = "model_not_found"


class UnknownTool(InvalidRequest):
    code = "tool_not_found"


class InvalidPath(InvalidRequest):
    """A path or file name that would leave the workspace, or that no workspace can hold."""

    code = "invalid_path"


class TooLarge(InvalidRequest):
    code = "request_too_large"


class Unauthenticated(DualtrackError):
    code = "invalid_api_key"


class NotFound(DualtrackError):
    """It does not exist, or belongs to somebody else: the two are not told apart."""

    code = "not_found"


class Conflict(DualtrackError):
    """The resource's state does not allow it."""

    code = "conflict"


class IdempotencyMismatch(Conflict):
    """The idempotency key was used before, with another body."""

    code = "idempotency_key_reused"


class BudgetExceeded(DualtrackError):
    """What the key may use in a day is used up."""

    code = "budget_exceeded"


# --- the model ------------------------------------------------------------------------------------------------------


class ModelError(DualtrackError):
    """The model's provider, not our machinery, did not give an answer that can be used."""

    code = "model_error"


class ModelRateLimited(ModelError):
    code = "model_rate_limited"
    retryable = True
    outage = True


class ModelTimeout(ModelError):
    code = "model_timeout"
    retryable = True
    outage = True


class ModelUnavailable(ModelError):
    code = "model_unavailable"
    retryable = True
    outage = True


class ModelRefusedRequest(ModelError):
    """The provider calls the request itself wrong (bad parameters, bad key)."""

    code = "model_request_refused"


class ContextTooLong(ModelError):
    code = "context_length_exceeded"


class MalformedAction(ModelError):
    """The model answered with something that is no action; the agent is told and may try again.

    Attributes:
        raw: what the model said (at most some thousand characters).
        model: the configured model that said it.
        usage: what it cost all the same.
    """

    code = "malformed_action"

    def __init__(self, message: str, *, param: str | None = None, raw: str = "", model: str = "", usage: Usage | None = None) -> None:
        super().__init__(message, param=param)
        self.raw = raw
        self.model = model
        self.usage = usage or Usage()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_malformed, (self.message, self.param, self.raw, self.model, self.usage))


def _rebuild_malformed(message: str, param: str | None, raw: str, model: str, usage: Usage) -> MalformedAction:
    return MalformedAction(message, param=param, raw=raw, model=model, usage=usage)


# --- requests to somebody else's servers ------------------------------------------------------------------------------


class OutgoingError(DualtrackError):
    """A request to an address that somebody else named got no answer.

    Attributes:
        sent: whether the server may have acted on it.
    """

    code = "outgoing_request_failed"
    sent: ClassVar[bool] = False


class AddressRefused(OutgoingError):
    """The address is none, or not one that the platform may reach. Nothing was sent."""

    code = "address_refused"


class HostUnreachable(OutgoingError):
    """The host is unknown, or there is no connection to it. Nothing was sent."""

    code = "host_unreachable"
    retryable = True
    outage = True


class AnswerBroken(OutgoingError):
    """The request was sent, at least in part, and no whole answer came: what the server did with it is not known."""

    code = "answer_broken"
    retryable = True
    outage = True
    sent = True


# --- our machinery --------------------------------------------------------------------------------------------------


class InfrastructureError(DualtrackError):
    """Something of ours failed: retried with backoff, never shown to the model as output."""

    code = "infrastructure_error"
    retryable = True


class InternalFault(InfrastructureError):
    """A fault of ours that has no name yet; the log has all of it. Retried like any failure of our machinery."""

    code = "internal_fault"


class DatabaseUnavailable(InfrastructureError):
    code = "database_unavailable"
    outage = True


class BrokerUnavailable(InfrastructureError):
    code = "broker_unavailable"
    outage = True


class StorageUnavailable(InfrastructureError):
    code = "storage_unavailable"
    outage = True


class SandboxFailed(InfrastructureError):
    """The sandbox could not be started or lost its link; says nothing about the command."""

    code = "sandbox_failed"


class SandboxUnavailable(DualtrackError):
    """No sandbox of the configured kind can work on this machine; the message says why and what to do."""

    code = "sandbox_unavailable"


class RecordUnreadable(DualtrackError):
    """A row that this release can't read: written by a newer one, or damaged. Retrying does not help."""

    code = "record_unreadable"


class StaleAttempt(DualtrackError):
    """A newer attempt has taken this work over: drop the result, it must not be written."""

    code = "stale_attempt"


class Cancelled(DualtrackError):
    """The job was told to stop, or the claim is lost, while its workspace was saved or restored: neither is finished, nothing names it."""

    code = "cancelled"


class ObjectMissing(DualtrackError):
    """No object under that key."""

    code = "object_not_found"
