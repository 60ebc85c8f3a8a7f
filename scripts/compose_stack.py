"""A compose stack for tests: a project, ports, passwords and images of its own, and the commands that work on it."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_FILES = ("docker-compose.yml", "docker-compose.test.yml")
_LOG_LINES = "60"


class ComposeError(Exception):
    """A docker command failed; the message carries its output."""


class Stack:
    """Nothing of the user's .env or running stacks is read or touched; `directory` holds this one's .env."""

    def __init__(self, directory: Path) -> None:
        self.project = f"dualtrack-e2e-{secrets.token_hex(3)}"
        self.router_port, self.objects_port = free_ports(2)
        self.url = f"http://127.0.0.1:{self.router_port}"
        self.objects_url = f"http://127.0.0.1:{self.objects_port}"
        self._env_file = directory / "env"
        subprocess.run([ROOT / "scripts" / "make-env", self._env_file], check=True, capture_output=True)
        with self._env_file.open("a", encoding="utf-8") as file:
            file.write(f"ROUTER_PORT={self.router_port}\nOBJECTS_PORT={self.objects_port}\nENV_FILE={self._env_file}\n")
            file.write("DUALTRACK_VERSION=e2e\n")
        self._environment = _environment() | {"COMPOSE_PROGRESS": "plain", "COMPOSE_ANSI": "never"}

    def compose(self, *arguments: str, timeout_s: float = 120) -> str:
        """Run `docker compose …`; its standard output."""
        files = [part for name in _FILES for part in ("-f", name)]
        return self._run(["docker", "compose", "--env-file", str(self._env_file), "-p", self.project, *files, *arguments], timeout_s)

    def docker(self, *arguments: str, timeout_s: float = 60) -> str:
        """Run `docker …`; its standard output."""
        return self._run(["docker", *arguments], timeout_s)

    def containers(self, service: str) -> list[str]:
        """Ids of a service's running containers."""
        return self.compose("ps", "--quiet", "--status", "running", service).split()

    def inspect(self, container: str) -> dict[str, Any]:
        """What docker knows of a container."""
        found: list[dict[str, Any]] = json.loads(self.docker("inspect", container))
        return found[0]

    def services(self) -> dict[str, dict[str, Any]]:
        """The composed configuration of all services, those of profiles too."""
        config: dict[str, Any] = json.loads(self.compose("--profile", "*", "config", "--format", "json"))
        return dict(config["services"])

    def public_images(self) -> list[str]:
        """Images that are pulled, not built; the one that ours are built on included."""
        images = {str(service["image"]) for service in self.services().values() if "build" not in service}
        images -= {str(service["image"]) for service in self.services().values() if "build" in service}
        base = re.search(r"^ARG PYTHON_IMAGE=(\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
        return sorted(images | ({base[1]} if base else set()))

    def troubles(self) -> str:
        """State of all containers, with the last log lines and health checks of those that are not well."""
        parts = [self.compose("ps", "--all")]
        for container in self.compose("ps", "--all", "--quiet").split():
            known = self.inspect(container)
            state, name = known["State"], known["Name"].lstrip("/")
            health = state.get("Health", {})
            if health.get("Status", "healthy") == "healthy" and state["ExitCode"] == 0 and not state["Restarting"]:
                continue
            checks = [check["Output"].strip() for check in health.get("Log", [])[-1:]]
            logs = subprocess.run(
                ["docker", "logs", "--tail", _LOG_LINES, container], env=self._environment, capture_output=True, text=True, check=False
            )
            parts.append(
                f"---- {name}: {state['Status']}, exit status {state['ExitCode']}, last check: {checks}\n{logs.stdout}{logs.stderr}"
            )
        return "\n".join(parts)

    def down(self) -> None:
        """Remove containers, networks and volumes."""
        self.compose("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "5", timeout_s=180)

    def _run(self, command: list[str], timeout_s: float) -> str:
        try:
            done = subprocess.run(command, cwd=ROOT, env=self._environment, capture_output=True, text=True, check=False, timeout=timeout_s)
        except FileNotFoundError as error:
            raise ComposeError("There is no docker command on the PATH: install Docker Engine 25 or newer with Compose.") from error
        except subprocess.TimeoutExpired as error:
            raise ComposeError(f"{' '.join(command)}: not done after {timeout_s:g} s") from error
        if done.returncode != 0:
            raise ComposeError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout[-6000:]}{done.stderr[-6000:]}")
        return done.stdout


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now."""
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [listener.getsockname()[1] for listener in opened]
    finally:
        for listener in opened:
            listener.close()


def _environment() -> dict[str, str]:
    """This process's environment without the stack's variables, which would win over its .env."""
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    names = set(re.findall(r"^(?:# )?([A-Z][A-Z0-9_]*)=", example, re.MULTILINE))
    return {name: value for name, value in os.environ.items() if name not in names and not name.startswith(("COMPOSE_", "DUALTRACK_"))}


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
