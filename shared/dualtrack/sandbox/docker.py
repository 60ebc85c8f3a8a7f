"""The Docker driver, for machines without bubblewrap (macOS): one throw-away container a command, about 300 ms.

Speaks to the engine through the `docker` command, so that contexts, Docker Desktop, colima and remote sockets work as they do for the user;
the workspace must be on the engine's own machine, at the same path. The engine's default system call filter is in force; it lets a command
trace the container's own init and see the names of the machine's disks, and set setuid bits, which are taken off again afterwards.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import uuid
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.access import give_workspace, strip_setid
from dualtrack.sandbox.disk import DiskWatch
from dualtrack.sandbox.outcome import outcome_of
from dualtrack.sandbox.port import Command, Ended, Outcome
from dualtrack.sandbox.pump import Pump
from dualtrack.settings import SandboxSettings

_CLI_S: Final = 30.0
_ENGINE_PROCESSES: Final = 2  # the container's init and its shell
_MESSAGE_CHARS: Final = 1000


class DockerSandbox:
    """`Sandbox` by containers: no network, read-only root, no capabilities, an unprivileged user. Thread-safe."""

    name = "docker"

    def __init__(self, settings: SandboxSettings, limits: SandboxLimits) -> None:
        """Takes the settings, and the limits that `check` runs under."""
        self._settings = settings
        self._limits = limits

    def check(self) -> None:
        """Run `python3` in a container. Raises `SandboxUnavailable`, saying why and what to do."""
        image = self._settings.docker_image
        try:
            if _docker("version", "--format", "{{.Server.Version}}").returncode != 0:
                raise SandboxUnavailable("No Docker engine answers: start Docker (Docker Desktop, colima, dockerd), or set DOCKER_HOST.")
            if _docker("image", "inspect", "--format", "{{.Id}}", image).returncode != 0:
                raise SandboxUnavailable(f"The sandbox's image is not here yet: docker pull {image}")
            self._settings.workspaces.mkdir(mode=0o711, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".check-", dir=self._settings.workspaces) as directory:
                outcome = self.run(Command(("python3", "-I", "-c", "print(6 * 7)")), Path(directory), self._limits, threading.Event())
        except (SandboxFailed, OSError) as error:
            raise SandboxUnavailable(f"The Docker sandbox does not work here: {error}") from error
        if outcome.exit_code != 0 or outcome.stdout.strip() != b"42":
            said = outcome.stderr.decode(errors="replace").strip()[-_MESSAGE_CHARS:]
            raise SandboxUnavailable(
                f"Python does not run in the image {image} ({outcome.note or f'exit status {outcome.exit_code}'}: {said}): set "
                "DUALTRACK_SANDBOX__DOCKER_IMAGE to one with python3."
            )

    def run(self, command: Command, workspace: Path, limits: SandboxLimits, cancel: threading.Event) -> Outcome:
        """See `Sandbox.run`. As root, the workspace and all in it is given to the unprivileged user first.

        Raises:
            SandboxFailed: no engine, no image, or it broke off.
        """
        uid = os.getuid()
        gid = os.getgid()
        if uid == 0:
            uid = gid = self._settings.uid
            give_workspace(workspace, uid)
        name = f"dualtrack-{uuid.uuid4().hex}"
        argv = ["docker", "run", "--name", name, *self._options(command, workspace.resolve(), limits, f"{uid}:{gid}")]
        try:
            with subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, start_new_session=True
            ) as process:
                null = subprocess.DEVNULL
                killers: list[subprocess.Popen[bytes]] = []

                def kill() -> None:
                    """Does not wait: the engine ends a container only once its output is read, which is this thread's work."""
                    if process.poll() is None and not killers:
                        killers.append(subprocess.Popen(["docker", "kill", name], stdin=subprocess.DEVNULL, stdout=null, stderr=null))

                try:
                    watch = DiskWatch(workspace, limits).look if command.writable else _nothing_to_watch
                    pumped = Pump(process, command.stdin, limits, cancel, kill=kill, watch=watch).run()
                    found = _docker("inspect", "--format", "{{json .State}}", name)
                finally:
                    process.kill()
                    for killer in killers:
                        killer.wait()
                    _docker("rm", "--force", "--volumes", name)
                    if command.writable:
                        strip_setid(workspace)
        except OSError as error:
            raise SandboxFailed(f"The docker command could not be run: {error}. Install Docker.") from error
        state = json.loads(found.stdout) if found.returncode == 0 else {"Status": "absent"}
        if state["Status"] in {"absent", "created"}:
            said = pumped.stderr.kept.decode(errors="replace").strip()[-_MESSAGE_CHARS:]
            raise SandboxFailed(f"Docker did not start the sandbox: {said or state.get('Error') or 'no message'}")
        return outcome_of(pumped, int(state["ExitCode"]), limits, out_of_memory=bool(state["OOMKilled"]))

    def _options(self, command: Command, workspace: Path, limits: SandboxLimits, user: str) -> list[str]:
        mount = f"type=bind,source={workspace},target=/workspace" + ("" if command.writable else ",readonly")
        environment = {"HOME": "/workspace", "LANG": "C.UTF-8", "TMPDIR": "/tmp", **command.env}  # noqa: S108 - the sandbox's own
        cpu = limits.cpu_time_s
        result = [
            *("--interactive", "--init", "--pull", "never", "--log-driver", "none", "--hostname", "sandbox", "--user", user),
            *("--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--tmpfs", "/tmp:rw,exec,nosuid,nodev,size=256m,mode=1777", "--shm-size", "64m"),  # noqa: S108
            *("--pids-limit", str(limits.processes + _ENGINE_PROCESSES)),
            *("--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes)),
            *("--ulimit", f"cpu={cpu}:{cpu + 1}", "--ulimit", f"fsize={limits.file_bytes}", "--ulimit", "core=0"),
            *("--ulimit", f"nofile={limits.open_files}", "--mount", mount, "--workdir", "/workspace"),
        ]
        for key, value in environment.items():
            result += ["--env", f"{key}={value}"]
        return [*result, "--entrypoint", "/bin/sh", self._settings.docker_image, "-c", 'exec "$@"', "sh", *command.argv]


def _nothing_to_watch() -> Ended | None:
    return None


def _docker(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """One short docker command.

    Raises:
        SandboxFailed: when there is no docker command, or it hangs.
    """
    try:
        return subprocess.run(["docker", *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=_CLI_S, check=False)
    except FileNotFoundError as error:
        raise SandboxFailed("There is no docker command on the PATH: install Docker.") from error
    except subprocess.TimeoutExpired as error:
        raise SandboxFailed(f"Docker did not answer within {_CLI_S:g} s ({arguments[0]}).") from error
