"""Why a job ended other than well: stable codes, part of the API."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Values of a job's `reason`."""

    LIMIT_STEPS = "limit_steps"
    LIMIT_TOKENS = "limit_tokens"
    LIMIT_COST = "limit_cost"
    LIMIT_WALL_TIME = "limit_wall_time"
    WAITED_TOO_LONG = "waited_too_long"
    NO_PROGRESS = "no_progress"
    MALFORMED_ACTIONS = "malformed_actions"
    OUTCOME_UNKNOWN = "outcome_unknown"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    GAVE_UP = "agent_gave_up"
    NOT_APPROVED = "not_approved"
    CANCELLED = "cancelled"
    MODEL_ERROR = "model_error"
