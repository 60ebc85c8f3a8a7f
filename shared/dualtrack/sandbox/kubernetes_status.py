"""What a pod's status says of its start and its end. Nothing is guessed: where the kubelet gives no reason there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_MESSAGE_CHARS: Final = 500
_HOPELESS: Final = frozenset(
    ("ErrImageNeverPull", "InvalidImageName", "ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError", "CreateContainerError")
) | frozenset(("RunContainerError", "CrashLoopBackOff"))
_OUT_OF_MEMORY: Final = "OOMKilled"
_EVICTED: Final = "Evicted"
_DISK: Final = ('EmptyDir volume "workspace"', "local ephemeral storage limit", "ephemeral local storage usage")
"""Of the kubelet's messages when it evicts a pod for the size of its own files. For want of space on the node it says something else."""


@dataclass(frozen=True, slots=True)
class PodStatus:
    """As of one look at it."""

    running: bool
    """Its container runs."""
    over: bool
    """Its container has ended, or never will run."""
    out_of_memory: bool
    """The kernel ended the container for its memory limit."""
    disk_exceeded: bool
    """The kubelet ended it for the size of its own files."""
    reason: str
    """For a person: why it does not run (yet); empty where nothing is said."""


GONE: Final = PodStatus(running=False, over=True, out_of_memory=False, disk_exceeded=False, reason="the pod was deleted")


def pod_status(pod: Mapping[str, Any]) -> PodStatus:
    """Reads a pod's JSON, whatever of it is there."""
    status = pod.get("status") or {}
    state = _container(status).get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    out_of_memory = ended.get("reason") == _OUT_OF_MEMORY
    disk = reason == _EVICTED and any(part in message for part in _DISK)
    stuck = waiting.get("reason") in _HOPELESS
    over = bool(ended) or status.get("phase") in {"Failed", "Succeeded"} or stuck
    said = [
        (reason, message),
        (str(ended.get("reason") or ""), _exit(ended)),
        (str(waiting.get("reason") or ""), str(waiting.get("message") or "")),
        _unscheduled(status),
    ]
    running = "running" in state and not over and "deletionTimestamp" not in (pod.get("metadata") or {})
    return PodStatus(running, over, out_of_memory, disk, "; ".join(_words(*pair) for pair in said if any(pair)))


def _container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    found = status.get("containerStatuses") or [{}]
    return found[0] or {}


def _exit(ended: Mapping[str, Any]) -> str:
    return str(ended.get("message") or "") or (f"exit status {ended['exitCode']}" if "exitCode" in ended else "")


def _unscheduled(status: Mapping[str, Any]) -> tuple[str, str]:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("reason") or ""), str(condition.get("message") or "")
    return "", ""


def _words(reason: str, message: str) -> str:
    return ": ".join(part for part in (reason, message[:_MESSAGE_CHARS].strip()) if part)
