"""The test servers keep their promises: they answer, go on with the same data, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import kombu
import psutil  # type: ignore[import-untyped]
import psycopg
import pytest
from kombu.simple import SimpleQueue

from dualtrack.testing.servers import Postgres, S3Server, ServerFailed
from dualtrack.testing.servers.process import ServerProcess, free_ports
from dualtrack.testing.servers.rabbitmq import RabbitBroker, RabbitMQ, rabbitmq_script
from dualtrack.testing.waiting import wait_until

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@contextlib.contextmanager
def simple_queue(url: str, name: str) -> Iterator[SimpleQueue]:
    """A quorum queue, publishing with confirms."""
    queue = kombu.Queue(name, kombu.Exchange(""), routing_key=name, durable=True, queue_arguments={"x-queue-type": "quorum"})
    with (
        kombu.Connection(url, transport_options={"confirm_publish": True}) as connection,
        connection.channel() as channel,
        contextlib.closing(SimpleQueue(channel, queue)) as simple,  # type: ignore[arg-type]  # the stubs know names only,
    ):
        yield simple


@contextlib.contextmanager
def connected(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        yield connection


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def tree(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def test_postgres_speaks_utf8_has_pgvector_and_gives_empty_databases(postgres: Postgres, database_url: str) -> None:
    with connected(database_url) as connection:
        assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)
        connection.execute("CREATE EXTENSION vector")
        assert connection.execute("SELECT '[1,2]'::vector <-> '[1,4]'::vector").fetchone() == (2.0,)
        connection.execute("CREATE TABLE words (word text)")
        connection.execute("INSERT INTO words VALUES ('größer ☃')")
    copy = postgres.create_database(template=database_url)
    with connected(copy) as connection:
        assert connection.execute("SELECT word FROM words").fetchall() == [("größer ☃",)]
    empty = postgres.create_database()
    with connected(empty) as connection:
        assert connection.execute("SELECT to_regclass('words')").fetchone() == (None,)
    for url in (copy, empty):
        postgres.drop_database(url)
    with pytest.raises(psycopg.OperationalError, match="does not exist"), connected(empty):
        pass


def test_postgres_keeps_committed_rows_through_restart_and_kill() -> None:
    with Postgres() as server:
        url = server.create_database()
        with connected(url) as connection:
            connection.execute("CREATE TABLE numbers (n int)")
            connection.execute("INSERT INTO numbers VALUES (1)")
        server.restart()
        with connected(url) as connection:
            connection.execute("INSERT INTO numbers VALUES (2)")
        processes = tree(server.pid)
        server.kill()
        assert not [pid for pid in processes if alive(pid)]
        server.start()
        with connected(url) as connection:
            assert connection.execute("SELECT n FROM numbers ORDER BY n").fetchall() == [(1,), (2,)]
        folder, processes = server.folder, tree(server.pid)
    assert not folder.exists()
    assert not [pid for pid in processes if alive(pid)]


def test_rabbitmq_vhosts_are_empty_brokers_with_quorum_queues(rabbitmq: RabbitBroker, broker_url: str) -> None:
    vhost = broker_url.rsplit("/", 1)[1]
    with simple_queue(broker_url, "doorbell") as queue:
        queue.put("ring")
        message = queue.get(timeout=60)
        assert message.payload == "ring"
        message.ack()
        assert [(q["name"], q["type"]) for q in rabbitmq.api("GET", f"queues/{vhost}")] == [("doorbell", "quorum")]
    other = rabbitmq.new_vhost()
    assert rabbitmq.api("GET", f"queues/{other.rsplit('/', 1)[1]}") == []
    rabbitmq.delete_vhost(other)
    with pytest.raises(ServerFailed, match="404"):
        rabbitmq.api("GET", f"queues/{other.rsplit('/', 1)[1]}")


@pytest.mark.skipif(rabbitmq_script() is None, reason="no rabbitmq-server installed: Docker's has no processes to look at")
def test_rabbitmq_keeps_confirmed_messages_through_restart_and_kill_and_leaves_no_process() -> None:
    with RabbitMQ() as server:
        with simple_queue(server.url, "doorbell") as queue:
            queue.put("first")
        processes = tree(server.pid) + tree(server.epmd_pid)
        server.restart()
        assert not [pid for pid in processes if alive(pid)]
        with simple_queue(server.url, "doorbell") as queue:
            message = queue.get(timeout=60)
            assert message.payload == "first"
            message.ack()
            queue.put("second")
        processes = tree(server.pid) + tree(server.epmd_pid)
        server.kill()
        assert not [pid for pid in processes if alive(pid)]
        server.start()
        with simple_queue(server.url, "doorbell") as queue:
            assert queue.get(timeout=60).payload == "second"
        folder = server.folder
    assert not folder.exists()


def test_s3_server_keeps_objects_through_restart_and_refuses_a_wrong_secret() -> None:
    import boto3
    from botocore.exceptions import ClientError

    with S3Server() as server:

        def client(secret: str) -> S3Client:
            return boto3.client(
                "s3",
                endpoint_url=server.endpoint_url,
                region_name=server.region,
                aws_access_key_id=server.access_key_id,
                aws_secret_access_key=secret,
            )

        right = client(server.secret_access_key)
        right.create_bucket(Bucket="kept")
        right.put_object(Bucket="kept", Key="a", Body=b"1")
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            client("wrong").get_object(Bucket="kept", Key="a")
        server.restart()
        assert right.get_object(Bucket="kept", Key="a")["Body"].read() == b"1"
        with pytest.raises(ClientError, match="NoSuchBucket"):
            right.put_object(Bucket="absent", Key="a", Body=b"1")
        right.close()


def test_a_server_that_ends_while_starting_is_reported_with_its_log(tmp_path: Path) -> None:
    process = ServerProcess(
        "broken", [sys.executable, "-c", "print('no such disk'); raise SystemExit(3)"], log=tmp_path / "log", env=os.environ, cwd=tmp_path
    )
    with pytest.raises(ServerFailed, match=r"(?s)broken ended with status 3 .*no such disk"):
        process.wait_until(lambda: False, timeout_s=60)
    process.kill()


def test_a_server_that_never_answers_is_reported_and_killed_with_its_children(tmp_path: Path) -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"
    process = ServerProcess("silent", [sys.executable, "-c", script], log=tmp_path / "log", env=os.environ, cwd=tmp_path)
    process.wait_until(lambda: len(tree(process.pid)) > 1, timeout_s=60)
    with pytest.raises(ServerFailed, match="did not answer"):
        process.wait_until(lambda: False, timeout_s=0.05)
    processes = tree(process.pid)
    process.stop(grace_s=0.1)
    assert not [pid for pid in processes if alive(pid)]


def test_a_server_ends_with_the_test_run_that_was_killed(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys\n"
        "from dualtrack.testing.servers.process import ServerProcess\n"
        "here = pathlib.Path(sys.argv[1])\n"
        "command = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "server = ServerProcess('s', command, log=here / 'log', env=os.environ, cwd=here, folder=here)\n"
        "print(server.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -9
    server = int(done.stdout)
    wait_until(lambda: not alive(server), "its end")
    wait_until(lambda: not tmp_path.exists(), "the end of its folder")


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="there is no way to look at an ended process here without giving its id away")
def test_the_id_of_a_process_that_ended_by_itself_is_kept_until_its_group_is_killed(tmp_path: Path) -> None:
    process = ServerProcess("brief", ["/bin/sh", "-c", "exit 3"], log=tmp_path / "log", env={}, cwd=tmp_path)
    wait_until(lambda: not process.running(), "its end")
    assert not process.running()
    assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE  # else somebody else could have this id by now
    process.kill()
    assert not psutil.pid_exists(process.pid)
    assert not process.running()


def test_free_ports_are_distinct() -> None:
    ports = [*free_ports(20), *free_ports(20)]
    assert len(set(ports)) == 40
    assert all(1024 < port < 55_000 - 10_000 for port in ports)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_free_ports_are_none_that_the_system_gives_to_whoever_asks_for_any() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(free_ports(100)) < first


def test_unit_tests_are_denied_sockets(tmp_path: Path) -> None:
    """Run a unit test that connects, with the real conftest, and see it fail for that reason."""
    tests = Path(__file__).parents[1]
    unit = tmp_path / "tests" / "unit"
    unit.mkdir(parents=True)
    (tmp_path / "tests" / "conftest.py").write_text((tests / "conftest.py").read_text())
    (unit / "test_it.py").write_text("import socket\ndef test_it():\n    socket.create_connection(('127.0.0.1', 9), timeout=1)\n")
    (tmp_path / "tests" / "test_other.py").write_text(
        "import pytest, socket\ndef test_it():\n"
        "    with pytest.raises(OSError):\n        socket.create_connection(('127.0.0.1', 9), timeout=1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--import-mode=importlib", str(tmp_path / "tests")],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "A unit test must not use sockets" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
