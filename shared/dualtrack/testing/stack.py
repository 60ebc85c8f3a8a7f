"""The platform as it runs in production: every service a process of its own, over real servers and the scripted model server."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx
from pydantic import SecretStr

from dualtrack.db import migrate, tenants
from dualtrack.db.engine import Database
from dualtrack.faults import FIRED, VARIABLE, Rule
from dualtrack.settings import DatabaseSettings
from dualtrack.testing.servers.process import ServerFailed, ServerProcess, free_ports

SERVICES = ("router", "planner", "executor", "scheduler")
_START_S = 120.0
_POLL_S = 0.05


class Stack:
    """One migrated database, a key of the tenant `default`, the model server and any number of processes of each service.

    Attributes:
        base_url: of the router.
        api_key: a key of the tenant `default`.
        tenant_id: that tenant.
        bucket: where its objects are.
        database: for looking at what the services wrote.
    """

    def __init__(
        self, *, database_url: str, broker_url: str, s3: Any, environment: Mapping[str, str] | None = None, breakable: bool = False
    ) -> None:
        """`breakable`: `arm` can make any process break at a fault point."""
        self._breakable = breakable
        self.folder = Path(tempfile.mkdtemp(prefix="dualtrack-stack-"))
        self.folder.chmod(0o711)
        (port,) = free_ports(1)
        self._port = port
        self.bucket = f"test-{port}"
        self._urls: dict[str, str] = {}
        self.base_url = f"http://127.0.0.1:{port}"
        self.database = Database(DatabaseSettings(url=SecretStr(database_url)))
        migrate.upgrade(self.database)
        with self.database.transaction() as tx:
            self.tenant_id = tenants.ensure_tenant(tx)
            self.api_key = tenants.create_key(tx, self.tenant_id, "test")
        self._processes: dict[str, ServerProcess] = {}
        self._environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "DUALTRACK_DATABASE__URL": database_url,
            "DUALTRACK_BROKER__URL": broker_url,
            "DUALTRACK_OBJECTS__DRIVER": "s3",
            "DUALTRACK_OBJECTS__ENDPOINT_URL": s3.endpoint_url,
            "DUALTRACK_OBJECTS__BUCKET": self.bucket,
            "DUALTRACK_OBJECTS__ACCESS_KEY_ID": s3.access_key_id,
            "DUALTRACK_OBJECTS__SECRET_ACCESS_KEY": s3.secret_access_key,
            "DUALTRACK_SANDBOX__WORKSPACES": str(self.folder / "workspaces"),
            "DUALTRACK_ROUTER__PORT": str(port),
            "DUALTRACK_TELEMETRY__LOG_LEVEL": "INFO",
            **(environment or {}),
        }

    def __enter__(self) -> Self:
        try:
            self.start_model()
            for service in SERVICES:
                self.start(service)
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything; the logs are gone with the folder."""
        for process in self._processes.values():
            process.kill()
        self.database.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, service: str, *, name: str | None = None, environment: Mapping[str, str] | None = None) -> None:
        """Start a process of a service, under a name of its own where there are several."""
        name = name or service
        health = self.folder / f"{name}.health"
        health.unlink(missing_ok=True)
        environment = dict(environment or {})
        self._urls[name] = f"http://127.0.0.1:{environment.get('DUALTRACK_ROUTER__PORT', self._port)}"
        faults = {VARIABLE: str(self._faults(name))} if self._breakable else {}
        self._processes[name] = ServerProcess(
            name,
            [sys.executable, "-m", f"{service}.main"],
            log=self.log(name),
            env=self._environment | {"DUALTRACK_WORKERS__HEALTH_FILE": str(health)} | faults | environment,
            cwd=self.folder,
        )

    def wait_ready(self) -> None:
        """Return once every router says ready, and planners and executors consume."""
        for name, process in self._processes.items():
            if name.startswith("router"):
                process.wait_until(lambda url=self._urls[name]: self._ready(url), timeout_s=_START_S)  # type: ignore[misc] # bound at once
            elif name.startswith(("planner", "executor")):
                self.wait_healthy(name)

    def wait_healthy(self, name: str) -> None:
        """Return once a worker has touched its health file."""
        self.process(name).wait_until((self.folder / f"{name}.health").exists, timeout_s=_START_S)

    def arm(self, name: str, *rules: Rule) -> None:
        """Make a process break by these rules, whether it runs already or not; without any, no more."""
        path = self._faults(name)
        fresh = path.with_suffix(".new")
        fresh.write_text("".join(f"{rule}\n" for rule in rules))
        fresh.replace(path)

    def fired(self, name: str) -> list[dict[str, Any]]:
        """What fault points of a process of that name have done so far, oldest first."""
        path = self._faults(name)
        path = path.with_name(path.name + FIRED)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _faults(self, name: str) -> Path:
        return self.folder / f"{name}.faults"

    def process(self, name: str) -> ServerProcess:
        return self._processes[name]

    def kill(self, name: str) -> None:
        """`kill -9`."""
        self._processes.pop(name).kill()

    def stop(self, name: str) -> None:
        """SIGTERM, and wait."""
        self._processes.pop(name).stop()

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def client(self, **more: Any) -> httpx.Client:
        """An HTTP client with the key."""
        return httpx.Client(
            base_url=self.base_url, headers={"authorization": f"Bearer {self.api_key}"}, timeout=60, trust_env=False, **more
        )

    def submit(self, script: list[dict[str, Any]], **spec: Any) -> str:
        """Submit a job whose model follows `script`; its id."""
        body = {"instructions": f"Follow the script.\n```script\n{json.dumps(script)}\n```", **spec}
        with self.client() as client:
            answer = client.post("/v1/jobs", json=body)
            assert answer.status_code == 201, answer.text
            return str(answer.json()["id"])

    def wait(
        self, job_id: str, *, timeout_s: float = 120, until: tuple[str, ...] = ("succeeded", "failed", "cancelled", "expired")
    ) -> dict[str, Any]:
        """The job once its status is one of `until`."""
        deadline = time.monotonic() + timeout_s
        with self.client() as client:
            while True:
                job: dict[str, Any] = client.get(f"/v1/jobs/{job_id}").raise_for_status().json()
                if job["status"] in until:
                    return job
                if time.monotonic() > deadline:
                    raise ServerFailed(f"job {job_id} is {job['status']} after {timeout_s:.0f} s\n{self.logs()}")
                time.sleep(_POLL_S)

    def events(self, job_id: str) -> list[dict[str, Any]]:
        """All events of a job, by paging."""
        found: list[dict[str, Any]] = []
        with self.client() as client:
            while True:
                page = client.get(f"/v1/jobs/{job_id}/events", params={"after": len(found)}).raise_for_status().json()
                found += page["data"]
                if not page["has_more"]:
                    return found

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"--- {name}\n{process.log_tail()}" for name, process in self._processes.items())

    @staticmethod
    def _ready(url: str) -> bool:
        try:
            return httpx.get(f"{url}/readyz", timeout=30, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def start_model(self) -> None:
        """Start the scripted model server; before the services, which are told its address."""
        log = self.log("model")
        self._processes["model"] = process = ServerProcess(
            "model", [sys.executable, "-m", "dualtrack.testing.model_server"], log=log, env=self._environment, cwd=self.folder
        )
        process.wait_until(lambda: b"\n" in log.read_bytes(), timeout_s=_START_S)
        address = json.loads(log.read_text().splitlines()[0])["base_url"]
        model = {"litellm_model": "openai/scripted", "api_base": address, "action_format": "native", "retries": 1}
        self._environment |= {
            "DUALTRACK_MODELS__MODELS": json.dumps({"scripted": model}),
            "DUALTRACK_MODELS__TRACKS": json.dumps({"fast": ["scripted"], "deep": ["scripted"]}),
        }
