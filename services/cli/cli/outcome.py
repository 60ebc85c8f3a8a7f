"""What the command's exit status says, and the errors that set it."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final


class Exit(IntEnum):
    """Exit statuses; part of the command's contract (`docs/cli.md`)."""

    OK = 0
    JOB_FAILED = 1
    USAGE = 2
    CANCELLED = 3
    EXPIRED = 4
    API_ERROR = 5
    UNREACHABLE = 6
    OUTPUT = 74
    """EX_IOERR of sysexits.h: what was asked for can't be written."""
    TRY_LATER = 75
    """EX_TEMPFAIL of sysexits.h: the server can't do it for now."""
    INTERRUPTED = 130
    """128 + SIGINT, as shells have it."""
    BROKEN_PIPE = 141
    """128 + SIGPIPE: whoever read the output stopped reading."""


_OF_STATUS: Final = {
    "succeeded": Exit.OK,
    "failed": Exit.JOB_FAILED,
    "cancelled": Exit.CANCELLED,
    "expired": Exit.EXPIRED,
}
_PASSING: Final = frozenset({429, 503, 504})
"""HTTP statuses that say: not now."""
HELP: Final = (
    "Exit status: 0 succeeded; 1 the job failed; 2 wrong usage; 3 the job was cancelled; 4 the job expired; "
    "5 the API refused or failed; 6 the server can't be reached; 74 the output can't be written; "
    "75 the server can't do it for now: try again later; 130 interrupted (the job goes on)."
)


def ended(status: str) -> bool:
    """Whether a job's status is final."""
    return status in _OF_STATUS


def of_status(status: str) -> Exit:
    """The exit status for a job's final status; a status this version does not know counts as failed."""
    return _OF_STATUS.get(status, Exit.JOB_FAILED)


class CliError(Exception):
    """A failure that ends the command: one message for a person, one exit status."""

    exit_status: Exit = Exit.API_ERROR
    code: str = "error"
    kind: str = "cli_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def as_json(self) -> dict[str, Any]:
        """The error in the API's own shape."""
        return {"error": {"message": self.message, "type": self.kind, "param": None, "code": self.code}}


class UsageProblem(CliError):
    """The command line, an input file or the settings are wrong."""

    exit_status = Exit.USAGE
    code = "usage"


class OutputProblem(CliError):
    """What was asked for can't be written: a full disk, a closed or failing output."""

    exit_status = Exit.OUTPUT
    code = "output_failed"


class Unreachable(CliError):
    """No answer: the server is not there, or went away and stayed away."""

    exit_status = Exit.UNREACHABLE
    code = "unreachable"


class ApiError(CliError):
    """The server answered with an error.

    Attributes:
        status: HTTP status; 0 where the answer itself could not be understood.
        code: the API's stable code.
        param: the field at fault, or None.
        retry_after: seconds after which to try again, as the server says; None where it does not.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str = "api_error",
        kind: str = "api_error",
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.exit_status = Exit.TRY_LATER if status in _PASSING else Exit.API_ERROR
        self.retry_after = retry_after
        self.status = status
        self.code = code
        self.kind = kind
        self.param = param

    def as_json(self) -> dict[str, Any]:
        """The error in the API's own shape."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}
