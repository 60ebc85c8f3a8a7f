"""The Docker driver, for machines without bubblewrap (macOS): a hardened container for every session, about 300 ms to start.

The workspace must be on the engine's own machine, at the same path. Containers carry labels that tell whose they are, so that those of
executors that were killed can be removed, and no others.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.objects.process_dir import ProcessDirectory
from dualtrack.sandbox.access import give_workspace
from dualtrack.sandbox.container_seccomp import docker_profile
from dualtrack.sandbox.docker_command import complaint, docker, remove
from dualtrack.sandbox.docker_options import Image
from dualtrack.sandbox.docker_sandbox import DockerSandbox
from dualtrack.sandbox.programs import agent_program
from dualtrack.sandbox.rung import AgentProgram, Enforced, LaunchSpec, Mount, RungName, RungReport
from dualtrack.sandbox.rung_directory import rung_directory
from dualtrack.settings import SandboxSettings

_STRENGTH: Final = "container: unprivileged user, no capabilities, no network, allow-list of system calls; shares the engine's kernel"
_STRENGTH_RUNTIME: Final = "container without capabilities and network in the runtime {runtime}"
_DIRECTORY: Final = ".docker"  # beside the workspaces
_IDENTITY: Final = "id"
_PLACE_LABEL: Final = "dualtrack.workspaces"
_OWNER_LABEL: Final = "dualtrack.executor"
_PROOF: Final = ("python3", "-I", "-S", "-c", "print(6 * 7)")
_TRIAL_S: Final = 60.0
_RUNC: Final = frozenset({"runc", "crun", "io.containerd.runc.v2"})


@dataclass(frozen=True, slots=True)
class _Setup:
    """What was found of the engine, and made for this process."""

    image: Image
    labels: dict[str, str]
    engine: dict[str, Any]
    """What `docker info` says."""


class DockerRung:
    """`Rung` by containers. Thread-safe; asks the engine on first use."""

    name = RungName.DOCKER
    shares_files = True

    def __init__(self, settings: SandboxSettings, limits: SandboxLimits, agent: AgentProgram | None = None) -> None:
        """Nothing is started yet.

        Args:
            settings: image, runtime, where workspaces are, and the user that sandboxes run as.
            limits: those that trial sandboxes run under.
            agent: what is started inside; None: the agent of this version.
        """
        self._settings = settings
        self._limits = limits
        self._agent = agent
        self._as_root = os.getuid() == 0
        self._lock = threading.Lock()
        self._setup: _Setup | None = None

    def launch(self, spec: LaunchSpec) -> DockerSandbox:
        """See `Rung.launch`. As root, what is in the workspace is given to the sandbox's user first."""
        setup = self._ready()
        if self._as_root:
            give_workspace(spec.workspace, self._settings.uid)
        agent = self._program()
        return self._start(setup, spec, agent.argv, [agent.mount])

    def _start(self, setup: _Setup, spec: LaunchSpec, argv: Sequence[str], mounts: Sequence[Mount] = ()) -> DockerSandbox:
        shown = LaunchSpec(
            workspace=spec.workspace,
            limits=spec.limits,
            mounts=[*mounts, *spec.mounts],
            environment=spec.environment,
            relay_port=spec.relay_port,
            writable=spec.writable,
        )
        return DockerSandbox(setup.image, shown, argv, setup.labels)

    def probe(self) -> RungReport:
        """See `Rung.probe`."""
        runtime = self._settings.docker_runtime
        strength = _STRENGTH_RUNTIME.format(runtime=runtime) if runtime else _STRENGTH
        try:
            setup = self._ready()
            started = time.monotonic()
            printed, said = self._trial(setup)
            took = time.monotonic() - started
        except (SandboxUnavailable, SandboxFailed) as error:
            return RungReport(self.name, works=False, strength=strength, found={}, problem=error.message)
        except OSError as error:
            return RungReport(self.name, works=False, strength=strength, found={}, problem=f"No workspace can be made: {error}.")
        engine, image = setup.engine, setup.image
        found = {
            "engine": f"{engine.get('ServerVersion')} ({engine.get('OperatingSystem')})",
            "image": image.name,
            "runtime": image.runtime or str(engine.get("DefaultRuntime")),
            "storage": str(engine.get("Driver")),
            "control groups": f"v{engine.get('CgroupVersion')} ({engine.get('CgroupDriver')})",
            "system call filter": "the runtime's own" if image.seccomp is None else "ours (container_seccomp.json)",
            "user": f"{image.user}:{image.group}",
            "start, Python and end": f"{took * 1000:.0f} ms",
        }
        problem = ""
        if printed.strip() != b"42":
            problem = f"Python does not run in the image {image.name} ({said}): set DUALTRACK_SANDBOX__DOCKER_IMAGE to one with python3."
        return RungReport(self.name, works=not problem, strength=strength, found=found, gaps=_gaps(setup), problem=problem)

    def sweep(self) -> Sequence[str]:
        """See `Rung.sweep`. Looks at the containers of executors that share this one's directory of workspaces only."""
        process = self._directory()
        place = self._place(process)
        format_ = f'{{{{.ID}}}} {{{{.Label "{_OWNER_LABEL}"}}}}'
        done = docker("container", "ls", "--all", "--no-trunc", "--filter", f"label={_PLACE_LABEL}={place}", "--format", format_)
        if done.returncode != 0:
            raise SandboxFailed(f"Docker does not list its containers: {complaint(done)}")
        removed = []
        for line in done.stdout.decode().splitlines():
            container, _, owner = line.partition(" ")
            if not process.lives(owner):
                if problem := remove(container):
                    raise SandboxFailed(f"The container {container[:12]} of a dead executor can't be removed: {problem}")
                removed.append(f"container {container[:12]}")
        process.sweep()
        return removed

    def _program(self) -> AgentProgram:
        with self._lock:
            if self._agent is None:
                self._agent = agent_program(self._settings.workspaces)
            return self._agent

    def _directory(self) -> ProcessDirectory:
        return rung_directory(self._settings.workspaces, _DIRECTORY)

    @staticmethod
    def _place(process: ProcessDirectory) -> str:
        """A word for the directory of workspaces that no other one has, on whatever machine: several may share an engine."""
        path = process.base / _IDENTITY
        with tempfile.NamedTemporaryFile("w", dir=process.path) as file:
            file.write(secrets.token_hex(16))
            file.flush()
            with contextlib.suppress(FileExistsError):
                os.link(file.name, path)
        return path.read_text(encoding="utf-8")

    def _ready(self) -> _Setup:
        process = self._directory()
        with self._lock:
            if self._setup is None:
                engine = _engine()
                image = self._settings.docker_image
                if docker("image", "inspect", "--format", "{{.Id}}", image).returncode != 0:
                    raise SandboxUnavailable(f"The sandbox's image is not here yet: docker pull {image}")
                labels = {_PLACE_LABEL: self._place(process), _OWNER_LABEL: process.path.name}
                self._setup = _Setup(self._image(engine, process.path), labels, engine)
            return self._setup

    def _image(self, engine: dict[str, Any], directory: Path) -> Image:
        runtime = self._settings.docker_runtime or ""
        if runtime and runtime not in engine.get("Runtimes", {}):
            known = ", ".join(sorted(engine.get("Runtimes", {})))
            raise SandboxUnavailable(f"DUALTRACK_SANDBOX__DOCKER_RUNTIME: the engine has no runtime {runtime}; it has {known}.")
        own_kernel = (runtime or engine.get("DefaultRuntime")) not in _RUNC
        seccomp = None
        if _filters(engine) and not own_kernel:
            seccomp = directory / "seccomp.json"
            seccomp.write_text(docker_profile(), encoding="utf-8")
        user, group = (self._settings.uid, self._settings.uid) if self._as_root else (os.getuid(), os.getgid())
        # The agent limits the number of processes where the engine does not, or counts others.
        enforced = Enforced(bool(engine.get("MemoryLimit", True)), processes=bool(engine.get("PidsLimit", True)) and not own_kernel)
        return Image(self._settings.docker_image, runtime, seccomp, own_kernel, user, group, enforced)

    def _trial(self, setup: _Setup) -> tuple[bytes, str]:
        """What a quick command printed, and what was printed to say why it did not."""
        with self._scratch() as workspace:
            sandbox = self._start(setup, LaunchSpec(workspace, self._limits), _PROOF)
            try:
                ended = sandbox.wait_ended(_TRIAL_S)
                sandbox.kill()  # then its output ends, whatever it was doing
                printed = os.read(sandbox.output, len(b"42\n"))
            finally:
                sandbox.close()
            return printed, sandbox.said() or ("no message" if ended else f"no end after {_TRIAL_S:g} s")

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path]:
        with ProcessDirectory(self._settings.workspaces) as own:
            workspace = own.path / "trial"
            workspace.mkdir(mode=0o700)
            if self._as_root:
                give_workspace(workspace, self._settings.uid)
            yield workspace


def _engine() -> dict[str, Any]:
    done = docker("info", "--format", "{{json .}}")
    found: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        found = json.loads(done.stdout)
    if done.returncode != 0 or not found.get("ServerVersion"):
        raise SandboxUnavailable("No Docker engine answers: start Docker (Docker Desktop, colima, dockerd), or set DOCKER_HOST.")
    return found


def _filters(engine: dict[str, Any]) -> bool:
    return any(option.startswith("name=seccomp") for option in engine.get("SecurityOptions") or ())


def _gaps(setup: _Setup) -> list[str]:
    engine, image = setup.engine, setup.image
    options = engine.get("SecurityOptions") or ()
    missing = {
        "no system call filter: the engine has no seccomp": not image.own_kernel and image.seccomp is None,
        "the memory limit is one of each process: the engine's kernel has none for all": not image.enforced.memory,
        "the process limit is one of the user's: the engine does not count processes inside": not image.enforced.processes,
        "the engine has no user namespaces (userns-remap, rootless): a user inside is the same one outside": not any(
            option.startswith(("name=userns", "name=rootless")) for option in options
        ),
        "what may be read only rests on the runtime's own settings (runsc: --directfs=false)": image.own_kernel,
    }
    return [text for text, applies in missing.items() if applies]
