"""A private RabbitMQ: Debian's `rabbitmq-server`, or whichever is on the PATH, run by hand as whoever runs the tests."""

from __future__ import annotations

import abc
import base64
import json
import os
import secrets
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dualtrack.testing.servers.process import ServerFailed, ServerProcess, accepts_tcp, free_ports
from dualtrack.testing.servers.server import Server

START_TIMEOUT_S = 120.0
USER = "dualtrack"
_GONE = ": 404 "
PASSWORD = "dualtrack"  # the broker listens on 127.0.0.1 only, for the time of the tests
MISSING = (
    "RabbitMQ is needed and was not found: run 'sudo scripts/install-rabbitmq' (Debian, Ubuntu), or 'brew install rabbitmq' (macOS), "
    "or start Docker, then run the tests again."
)
# Debian's wrapper in /usr/sbin refuses everybody but root and the user rabbitmq; the script behind it runs for anybody.
_DEBIAN_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_CONF = """\
listeners.tcp.1 = 127.0.0.1:{port}
default_user = {user}
default_pass = {password}
loopback_users = none
management.tcp.ip = 127.0.0.1
management.tcp.port = {http_port}
log.console = true
log.console.level = warning
log.file = false
vm_memory_high_watermark.absolute = 2GB
disk_free_limit.absolute = 100MB
raft.wal_max_size_bytes = 33554432
"""


def rabbitmq_script() -> Path | None:
    """The `rabbitmq-server` to run: Debian's own script, else one on the PATH or in the sbin folders; None where there is none."""
    if _DEBIAN_SCRIPT.exists():
        return _DEBIAN_SCRIPT
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin"])
    found = shutil.which("rabbitmq-server", path=path)
    return None if found is None else Path(found).resolve()


class RabbitBroker(Server):
    """A broker with its management API, however it is run: address, virtual hosts, management calls."""

    def __init__(self) -> None:
        super().__init__("rabbitmq")
        self.port, self.http_port = free_ports(2)

    @property
    def url(self) -> str:
        """Its AMQP address, virtual host `/`."""
        return self._url("/")

    def new_vhost(self) -> str:
        """The AMQP address of a fresh virtual host: an empty broker, for some milliseconds."""
        name = f"test-{secrets.token_hex(6)}"
        self.api("PUT", f"vhosts/{name}")
        self.api("PUT", f"permissions/{name}/{USER}", {"configure": ".*", "write": ".*", "read": ".*"})
        return self._url(name)

    def delete_vhost(self, url: str) -> None:
        """Delete a virtual host that `new_vhost` made, with all queues and connections in it."""
        self.api("DELETE", f"vhosts/{url.rsplit('/', 1)[1]}")

    @abc.abstractmethod
    def control(self, *arguments: str) -> None:
        """`rabbitmqctl`, for what the management API can't do. Raises `ServerFailed`."""

    def api(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One call of the management API (`path` after `/api/`); the parsed answer, None for an empty one.

        Raises:
            ServerFailed: it answered with an error, or not at all.
        """
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http_port}/api/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={
                "Content-Type": "application/json",
                "Authorization": "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode(),
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                data = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise ServerFailed(f"RabbitMQ: {method} {path}: {error.code} {error.read(500)!r}") from error
        except OSError as error:
            raise ServerFailed(f"RabbitMQ: {method} {path}: {error}") from error
        return json.loads(data) if data else None

    def cut_connections(self, vhost: str | None = None) -> None:
        """Close every connection, or those of a virtual host, as a proxy or an operator may."""
        for connection in self.api("GET", "connections" if vhost is None else f"vhosts/{vhost}/connections"):
            try:
                self.api("DELETE", f"connections/{quote(connection['name'], safe='')}")
            except ServerFailed as error:
                if _GONE not in str(error):  # by itself since it was listed
                    raise

    def answers(self) -> bool:
        """Whether AMQP clients can log in and the management API answers."""
        if not accepts_tcp(self.port):
            return False
        import amqp  # kombu's own client; imported late because tests without a broker never need it

        try:
            connection = amqp.Connection(f"127.0.0.1:{self.port}", userid=USER, password=PASSWORD, connect_timeout=20, read_timeout=20)
            connection.connect()
            connection.close()
        except (OSError, amqp.exceptions.AMQPError):
            return False
        try:
            self.api("GET", "vhosts")
        except ServerFailed:
            return False
        return True

    def _url(self, vhost: str) -> str:
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{quote(vhost, safe='')}"


class RabbitMQ(RabbitBroker):
    """`rabbitmq-server` as a child process, with a node name, cookie, folders and an epmd of its own."""

    def __init__(self, script: Path | None = None, *, settings: Mapping[str, int] | None = None) -> None:
        """`script`: the `rabbitmq-server` to run; found by itself when not given. Raises `ServerFailed` where there is none.

        `settings`: further ones of the application `rabbit`, some of which `rabbitmq.conf` does not know.
        """
        found = script or rabbitmq_script()
        if found is None:
            raise ServerFailed(MISSING)
        super().__init__()
        self._script = found
        self._epmd_port, self._dist_port = free_ports(2)
        self._epmd: ServerProcess | None = None
        self._node: ServerProcess | None = None
        (self.folder / "home").mkdir()
        (self.folder / "env.conf").touch()
        (self.folder / "enabled_plugins").write_text("[rabbitmq_management].\n")
        (self.folder / "rabbitmq.conf").write_text(_CONF.format(port=self.port, http_port=self.http_port, user=USER, password=PASSWORD))
        if settings:
            terms = ", ".join(f"{{{name}, {value}}}" for name, value in settings.items())
            (self.folder / "advanced.config").write_text(f"[{{rabbit, [{terms}]}}].\n")

    def start(self) -> None:
        """Start epmd and the node; returns when AMQP and the management API answer."""
        env = self._environment()
        epmd = shutil.which("epmd", path=env["PATH"])
        if epmd is None:
            raise ServerFailed("RabbitMQ needs Erlang's epmd on the PATH.")
        # Run in the foreground as our own child: the daemon that Erlang would start by itself outlives every test.
        self._epmd = ServerProcess(
            "epmd", [epmd, "-address", "127.0.0.1", "-port", str(self._epmd_port)], log=self.folder / "epmd.log", env=env, cwd=self.folder
        )
        self._epmd.wait_until(lambda: accepts_tcp(self._epmd_port), timeout_s=START_TIMEOUT_S)
        self._node = ServerProcess(
            "rabbitmq-server", [str(self._script)], log=self.folder / "rabbitmq.log", env=env, cwd=self.folder, folder=self.folder
        )
        self._node.wait_until(self.answers, timeout_s=START_TIMEOUT_S)

    @property
    def pid(self) -> int:
        """Process id of the node (the Erlang machine)."""
        if self._node is None:
            raise ServerFailed("RabbitMQ is not running: call start().")
        return self._node.pid

    @property
    def epmd_pid(self) -> int:
        """Process id of its port mapper."""
        if self._epmd is None:
            raise ServerFailed("RabbitMQ is not running: call start().")
        return self._epmd.pid

    def stop(self) -> None:
        """SIGTERM: queues are closed in good order."""
        if self._node is not None:
            self._node.stop(grace_s=30)
        self.kill()

    def kill(self) -> None:
        """`kill -9` of the node, and the end of its epmd.

        RabbitMQ 3.10 writes a new quorum queue's membership down some seconds late: a queue declared just before may not
        come back (it answers 541 INTERNAL_ERROR). Call `restart()` between declaring and killing.
        """
        for process in (self._node, self._epmd):
            if process is not None:
                process.kill()
        self._node = self._epmd = None

    def control(self, *arguments: str) -> None:
        """See `RabbitBroker`."""
        tool = self._script.with_name("rabbitmqctl")
        done = subprocess.run(
            [str(tool), *arguments], env=self._environment(), cwd=self.folder, capture_output=True, check=False, timeout=60, text=True
        )
        if done.returncode != 0:
            raise ServerFailed(f"rabbitmqctl {' '.join(arguments)}: {done.stdout[-500:]}{done.stderr[-500:]}")

    def _environment(self) -> dict[str, str]:
        folder = self.folder
        return {
            "PATH": os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin", "/bin"]),
            "HOME": str(folder / "home"),
            "LANG": "C.UTF-8",
            "TMPDIR": str(folder),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "env.conf"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "node.pid"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            # The start script then becomes the Erlang machine instead of waiting for it as its parent: one pid to signal.
            "RUNNING_UNDER_SYSTEMD": "true",
            # Two schedulers without busy waiting: a test machine is shared.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {{127,0,0,1}} "
                f"inet_dist_listen_min {self._dist_port} inet_dist_listen_max {self._dist_port}"
            ),
        }


def open_rabbitmq() -> RabbitBroker:
    """A broker, not yet started, by the best way this machine has: an installed RabbitMQ, else Docker.

    Raises:
        ServerFailed: neither is there; the message says what to install.
    """
    from dualtrack.testing.servers.rabbitmq_docker import DockerRabbitMQ

    if rabbitmq_script() is not None:
        return RabbitMQ()
    docker = shutil.which("docker")
    if docker is not None and subprocess.run([docker, "info"], capture_output=True, check=False, timeout=30).returncode == 0:
        return DockerRabbitMQ(docker)
    raise ServerFailed(MISSING)
