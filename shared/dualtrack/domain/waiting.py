"""What jobs and calls wait for."""

from __future__ import annotations

from enum import StrEnum


class Hold(StrEnum):
    """Why a job is to stop at its next boundary: nothing new is started, what runs is finished."""

    PAUSED = "paused"
    BUDGET = "budget"
    PARENT = "parent"
    """its parent is held: paused, or out of budget"""


class WaitReason(StrEnum):
    """A waiting job's `reason`."""

    APPROVAL = "approval"
    """a call of the current wave needs somebody's consent, or its unknown outcome somebody's word"""
    INPUT = "input"
    """the agent asked a question"""
    BUDGET = "budget"
    """a limit is reached: extend it or cancel"""
    PAUSED = "paused"
    """on request"""


class Held(StrEnum):
    """What a pending call waits for before it may be claimed (or, for `input` and `child`, has its outcome)."""

    APPROVAL = "approval"
    INPUT = "input"
    CHILD = "child"
    UNKNOWN = "unknown"
    """An external call that may or may not have happened, until somebody says which."""


class ApprovalKind(StrEnum):
    """What a person is asked."""

    CALL = "call"
    """may this exact call run?"""
    QUESTION = "question"
    """the agent's own question (`ask_human`)"""
    UNKNOWN = "unknown"
    """an external call may or may not have happened: what now?"""


class ApprovalStatus(StrEnum):
    """The life of a request to a person: pending, then one of the others, once."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    ANSWERED = "answered"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    """its job ended first"""
