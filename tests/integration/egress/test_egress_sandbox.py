"""A real sandbox and its way out: curl and Python inside, under the sandbox's own filter, and nothing else that is open."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.factory import open_rung
from dualtrack.sandbox.port import Command, Outcome
from dualtrack.sandbox.rung import RungName
from dualtrack.sandbox.sessions import SessionEgress, SessionRequest
from dualtrack.settings import SandboxSettings
from dualtrack.testing.rung_sessions import RungSessions
from dualtrack.testing.website import Website

from .conftest import VALUE, Outlet, api_secret, wait

Outlets = Callable[..., Outlet]
LIMITS = SandboxLimits(wall_time_s=60)
Run = Callable[[str], Outcome]


@pytest.fixture(scope="module", params=[RungName.BUBBLEWRAP, RungName.GVISOR])
def sessions(request: pytest.FixtureRequest) -> Iterator[RungSessions]:
    with on_rung(request.param) as found:
        yield found


@pytest.fixture(scope="module")
def containers() -> Iterator[RungSessions]:
    with on_rung(RungName.DOCKER) as found:
        yield found


@contextlib.contextmanager
def on_rung(name: RungName) -> Iterator[RungSessions]:
    with tempfile.TemporaryDirectory(prefix="egress-", dir="/var/tmp") as root:
        Path(root).chmod(0o711)
        rung = open_rung(name, SandboxSettings(workspaces=Path(root) / "w"), LIMITS)
        if name is not RungName.BUBBLEWRAP and (problem := rung.probe().problem):
            pytest.skip(problem)
        found = RungSessions(rung, Path(root))
        yield found
        found.close()


def runner(sessions: RungSessions, one: Outlet | None) -> Run:
    egress = None if one is None else SessionEgress(one.proxy.directory, one.proxy.environment, one.proxy.relay_port)
    session = sessions.claim(SessionRequest(LIMITS, egress=egress))

    def run(line: str) -> Outcome:
        return session.run(Command(("sh", "-c", line)), LIMITS, threading.Event())

    return run


def test_curl_and_python_inside_reach_what_is_allowed(site: Website, secure_site: Website, outlet: Outlets, sessions: RungSessions) -> None:
    one = outlet([f"*.example.test:{port}" for port in (site.port, secure_site.port)], secrets=[api_secret(secure_site.port)])
    run = runner(sessions, one)
    assert run(f"curl -sS http://web.example.test:{site.port}/").stdout == b"hello"
    url = f"https://api.example.test:{secure_site.port}/echo"
    said = run(f'curl -sS -H "Authorization: Bearer $API_TOKEN" {url}; env; cat /run/egress/ca.pem /proc/*/environ 2>/dev/null')
    assert b'"Authorization": "Bearer dualtrack-secret-api-' in said.stdout, said
    assert VALUE.encode() not in said.stdout + said.stderr
    assert secure_site.visits[0].headers["authorization"] == f"Bearer {VALUE}"
    source = f"import urllib.request as u; print(u.urlopen({url!r}).status)"
    assert run(f'python3 -c "{source}"').stdout == b"200\n"
    assert b"not on this agent" in run("curl -sS http://elsewhere.example/").stdout
    refused = run("curl -sS https://elsewhere.example/")
    assert b"403" in refused.stderr
    assert [told.host for told in one.wait_told(5)].count("elsewhere.example") == 2


def test_a_container_goes_out_the_same_way(secure_site: Website, outlet: Outlets, containers: RungSessions) -> None:
    one = outlet([f"api.example.test:{secure_site.port}"], secrets=[api_secret(secure_site.port)])
    run = runner(containers, one)
    url = f"https://api.example.test:{secure_site.port}/echo"
    source = (
        "import os, urllib.request as u\n"
        "token = {'Authorization': 'Bearer ' + os.environ['API_TOKEN']}\n"
        f"print(u.urlopen(u.Request({url!r}, headers=token)).read().decode())\n"
    )
    said = run(f'python3 -c "{source}"; rm -f /run/egress/proxy.sock; env')
    assert b'"Authorization": "Bearer dualtrack-secret-api-' in said.stdout, said
    assert VALUE.encode() not in said.stdout + said.stderr
    assert b"Read-only file system" in said.stderr
    assert secure_site.visits[0].headers["authorization"] == f"Bearer {VALUE}"


def test_there_is_no_other_way_out(site: Website, outlet: Outlets, sessions: RungSessions) -> None:
    one = outlet([f"web.example.test:{site.port}"])
    run = runner(sessions, one)
    for line in (
        f"curl -sS --noproxy '*' --max-time 3 http://127.0.0.1:{site.port}/",
        f"curl -sS --noproxy '*' --max-time 3 http://web.example.test:{site.port}/",
        "rm -f /run/egress/proxy.sock",
        "mv /run/egress/proxy.sock /tmp/x",
        "touch /run/egress/x",
        "chmod 777 /run/egress",
        "chmod 777 /run/egress/proxy.sock",
        "python3 -c \"import socket; socket.getaddrinfo('example.com', 80)\"",
    ):
        assert run(line).exit_code != 0, line
    assert run(f"curl -sS http://web.example.test:{site.port}/").stdout == b"hello"
    assert len(site.visits) == 1


def test_without_egress_there_is_nothing(site: Website, sessions: RungSessions) -> None:
    run = runner(sessions, None)
    assert run("env | grep -i proxy; ls /run/egress; curl -sS --max-time 3 http://127.0.0.1:3128/").stdout == b""


def test_a_flood_from_inside_is_bounded(site: Website, outlet: Outlets, sessions: RungSessions) -> None:
    one = outlet([f"web.example.test:{site.port}"], connections=8)
    run = runner(sessions, one)
    source = (
        "import socket\n"
        "held = []\n"
        "for _ in range(100):\n"
        "    try:\n"
        "        sock = socket.create_connection(('127.0.0.1', 3128), timeout=20)\n"
        "        sock.sendall(b'GET ')\n"
        "        held.append(sock)\n"
        "    except OSError:\n"
        "        break\n"
        "print(len(held))\n"
    )
    assert int(run(f'python3 -c "{source}"').stdout) > 8
    wait(lambda: sum(thread.name == "egress" for thread in threading.enumerate()) <= 8)
    url = f"http://web.example.test:{site.port}/"
    assert run(f'until [ "$(curl -sS {url})" = hello ]; do sleep 0.1; done; echo room again').stdout == b"room again\n"
