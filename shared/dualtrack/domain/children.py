"""Children: what a call of `delegate` asks for, as the specification of a job of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from dualtrack.domain.errors import InvalidPath
from dualtrack.domain.job import AgentProfile, Job, JobSpec
from dualtrack.domain.limits import LARGEST, PlatformLimits
from dualtrack.domain.paths import workspace_path
from dualtrack.domain.tool import DELEGATE_TOOL, FINISH_TOOL

_INPUTS: Final = "Files to look at: "


def refusal(job: Job, arguments: Mapping[str, Any], limits: PlatformLimits) -> str | None:
    """What is wrong with a call of `delegate` that fits its schema; None: nothing."""
    if job.depth >= limits.child_depth:
        return f"Not delegated: children may be nested {limits.child_depth} deep. Do it yourself."
    foreign = [name for name in arguments.get("tools", ()) if name not in job.spec.agent.tools]
    if foreign:
        return f"tools: {foreign[0]!r} is none of your tools."
    try:
        child_spec(job, arguments, limits)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg'].removeprefix('Value error, ')}"
    except InvalidPath as error:
        return f"inputs: {error.message}"
    return None


def child_spec(job: Job, arguments: Mapping[str, Any], limits: PlatformLimits) -> JobSpec:
    """The child's specification: the parent's agent, the tools and limits it is given.

    A limit that is not given is the platform's largest: what the family may use is bounded by the limits of all jobs above it, which
    count their children. One that is given ends the child, so that the parent's agent hears of it.

    Raises:
        ValidationError, InvalidPath: a path or limit that no job may have.
    """
    inputs = [workspace_path(path, param="inputs") for path in arguments.get("inputs", ())]
    named = f"\n\n{_INPUTS}{', '.join(inputs)}" if inputs else ""
    return JobSpec.model_validate(
        {
            "instructions": f"{arguments['instructions']}{named}",
            "agent": _agent(job, arguments, limits).model_dump(),
            "limits": LARGEST | dict(arguments.get("limits", {})) | {"on_limit": "fail"},
            "outputs": list(arguments.get("outputs", ())),
            "metadata": job.spec.metadata,
            "priority": job.spec.priority,
        }
    )


def _agent(job: Job, arguments: Mapping[str, Any], limits: PlatformLimits) -> AgentProfile:
    wanted = arguments.get("tools", job.spec.agent.tools)
    tools = [name for name in wanted if name != DELEGATE_TOOL or job.depth + 1 < limits.child_depth]
    return job.spec.agent.model_copy(update={"tools": tuple(dict.fromkeys((*tools, FINISH_TOOL)))})
