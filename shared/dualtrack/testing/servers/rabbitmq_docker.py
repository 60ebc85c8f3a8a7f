"""A private RabbitMQ in a Docker container, for machines without an installed one."""

from __future__ import annotations

import secrets
import subprocess
import time

from dualtrack.testing.servers.process import LOG_TAIL_BYTES, ServerFailed
from dualtrack.testing.servers.rabbitmq import PASSWORD, START_TIMEOUT_S, USER, RabbitBroker

IMAGE = "rabbitmq:4-management"
_PULL_TIMEOUT_S = 600


class DockerRabbitMQ(RabbitBroker):
    """The official image, its ports published on 127.0.0.1 only. Data lives in the container, which `close()` removes."""

    def __init__(self, docker: str = "docker", image: str = IMAGE) -> None:
        super().__init__()
        self._docker = docker
        self._image = image
        self._name = f"dualtrack-test-rabbitmq-{secrets.token_hex(4)}"
        self._created = False

    def start(self) -> None:
        """Create the container the first time, start the stopped one afterwards."""
        if self._created:
            self._run("start", self._name)
        else:
            self._run(
                "run", "--detach", "--name", self._name, "--hostname", "rabbitmq",
                "--publish", f"127.0.0.1:{self.port}:5672", "--publish", f"127.0.0.1:{self.http_port}:15672",
                "--env", f"RABBITMQ_DEFAULT_USER={USER}", "--env", f"RABBITMQ_DEFAULT_PASS={PASSWORD}",
                self._image,
            )  # fmt: skip
            self._created = True
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.answers():
            if time.monotonic() > deadline:
                raise ServerFailed(f"RabbitMQ in Docker did not answer within {START_TIMEOUT_S:.0f} s.\n{self._run('logs', self._name)}")
            time.sleep(0.2)

    def stop(self) -> None:
        """Stop the container in good order; its data stays."""
        self._run("stop", "--time", "30", self._name)

    def kill(self) -> None:
        """`kill -9` of the container's first process."""
        if self._created and self._run("ps", "--quiet", "--filter", f"name={self._name}"):
            self._run("kill", self._name)

    def control(self, *arguments: str) -> None:
        """See `RabbitBroker`."""
        self._run("exec", self._name, "rabbitmqctl", *arguments)

    def close(self) -> None:
        """Remove the container with its data."""
        super().close()
        if self._created:
            self._run("rm", "--force", "--volumes", self._name)
            self._created = False

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [self._docker, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=_PULL_TIMEOUT_S, text=True
        )
        if done.returncode != 0:
            raise ServerFailed(f"docker {' '.join(arguments)} failed:\n{done.stdout[-LOG_TAIL_BYTES:]}")
        return done.stdout[-LOG_TAIL_BYTES:]
