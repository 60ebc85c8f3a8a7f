"""The `docker` command, through which the engine is spoken to: contexts, Docker Desktop, colima and remote sockets work as for the user.

It costs some 20 ms a call; starting a container takes the engine ten times as long, whichever way it is asked.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any, Final

from dualtrack.domain.errors import SandboxFailed

_PATIENCE_S: Final = 60.0  # an overloaded engine; else tens of milliseconds
MESSAGE_CHARS: Final = 1000
"""Of what it prints, as much as goes into a message."""


def docker(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run it, to its end.

    Raises:
        SandboxFailed: there is no docker command, or it hangs.
    """
    try:
        return subprocess.run(["docker", *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE_S, check=False)
    except OSError as error:
        raise SandboxFailed(f"The docker command can't be run ({error}): install Docker.") from error
    except subprocess.TimeoutExpired as error:
        raise SandboxFailed(f"Docker did not answer within {_PATIENCE_S:g} s ({arguments[0]}).") from error


def complaint(done: subprocess.CompletedProcess[bytes]) -> str:
    """What a failed command has said."""
    return done.stderr.decode(errors="replace").strip()[-MESSAGE_CHARS:] or f"exit status {done.returncode}"


def inspect(container: str) -> dict[str, Any] | None:
    """The state of a container; None: there is none.

    Raises:
        SandboxFailed: see `docker`.
    """
    done = docker("container", "inspect", "--format", "{{json .State}}", container)
    state: dict[str, Any] | None = json.loads(done.stdout) if done.returncode == 0 else None
    return state


def remove(container: str) -> str:
    """End a container and remove it with its volumes; why that was not possible, or empty where there is none any more.

    Raises:
        SandboxFailed: see `docker`.
    """
    done = docker("container", "rm", "--force", "--volumes", container)
    return "" if done.returncode == 0 or b"No such container" in done.stderr else complaint(done)
