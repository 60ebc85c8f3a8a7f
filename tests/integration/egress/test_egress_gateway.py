"""What an executor opens for a session: by the operator's settings and the agent's profile, in a directory that goes with the process."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dualtrack.domain.egress import EgressReason
from dualtrack.domain.errors import InvalidRequest, SandboxUnavailable
from dualtrack.domain.job import AgentProfile
from dualtrack.domain.limits import EgressLimits
from dualtrack.egress.gateway import EgressGateway
from dualtrack.objects.process_dir import ProcessDirectory
from dualtrack.settings import EgressSettings, SandboxSettings
from dualtrack.telemetry.sandboxes import METRICS
from dualtrack.testing.website import Website

from .conftest import VALUE, raw


def gateway(workspaces: Path, **values: object) -> EgressGateway:
    return EgressGateway(EgressSettings.model_validate(values), SandboxSettings(workspaces=workspaces), EgressLimits())


def profile(**values: object) -> AgentProfile:
    return AgentProfile.model_validate(values)


def test_no_way_out_where_nobody_allows_one(tmp_path: Path) -> None:
    asking = profile(network={"allow": ["pypi.org"]})
    with gateway(tmp_path / "w") as closed:
        assert closed.open(asking, "ten_a") is None
    with gateway(tmp_path / "w", allow=["pypi.org"]) as opened:
        assert opened.open(profile(), "ten_a") is None
    assert not (tmp_path / "w").exists()  # nothing was made for it


def test_a_way_out_for_one_session(site: Website, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_VALUE", VALUE)
    secret = {"value_env": "THE_VALUE", "variable": "API_TOKEN", "hosts": [f"api.example.test:{site.port}"], "plain_http": True}
    deep = tmp_path / ("long" * 20) / "w"  # a socket's path could not be as long
    agent = profile(network={"allow": [f"*.example.test:{site.port}"]}, secrets=[{"name": "api"}])
    with gateway(deep, allow=[f"*:{site.port}"], private=["127.0.0.0/8"], secrets={"api": secret}) as opened:
        outlet = opened.open(agent, "ten_a")
        assert outlet is not None
        directory = outlet.session.directory
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert directory.stat().st_uid == (SandboxSettings().uid if os.geteuid() == 0 else os.geteuid())
        assert {path.name for path in directory.iterdir()} == {"proxy.sock", "ca.pem"}
        refused = METRICS.egress_requests.labels("refused", "not_allowed")._value.get()
        placeholder = outlet.session.environment["API_TOKEN"]
        assert VALUE not in str(dict(outlet.session.environment))
        for host in ("api.example.test", "evil.example.org"):
            head = f"GET http://{host}:{site.port}/echo HTTP/1.1\r\nHost: x\r\nAuthorization: {placeholder}\r\nConnection: close\r\n\r\n"
            answer = raw(directory, head.encode())
            assert VALUE.encode() not in answer
        assert site.visits[0].headers["authorization"] == VALUE
        outlet.close()
        assert not directory.exists()
        assert METRICS.egress_requests.labels("refused", "not_allowed")._value.get() == refused + 1
        first, second = outlet.drain()
        assert (first.host, first.allowed, first.secrets) == ("api.example.test", True, ("api",))
        assert (second.host, second.reason) == ("evil.example.org", EgressReason.NOT_ALLOWED)
        assert outlet.usage.requests == 2
        left = opened.open(agent, "ten_b")
        assert left is not None
    assert not left.session.directory.parent.exists()


def test_a_secret_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    secret = {"value_env": "NOT_THERE_AT_ALL", "variable": "T", "hosts": ["a.example"]}
    with pytest.raises(InvalidRequest, match=r"DUALTRACK_EGRESS__SECRETS.api: the variable NOT_THERE_AT_ALL"):
        gateway(tmp_path, allow=["a.example"], secrets={"api": secret})
    gateway(tmp_path, secrets={"api": secret})  # without a network nobody needs it


def test_no_place_for_sockets_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        gateway(tmp_path / "file", allow=["a.example"]) as opened,
        pytest.raises(SandboxUnavailable, match="DUALTRACK_SANDBOX__WORKSPACES"),
    ):
        opened.open(profile(network={"allow": ["a.example"]}), "ten_a")


def test_after_a_kill_nothing_is_left_once_the_next_has_started(tmp_path: Path) -> None:
    source = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from dualtrack.domain.job import AgentProfile\n"
        "from dualtrack.domain.limits import EgressLimits\n"
        "from dualtrack.egress.gateway import EgressGateway\n"
        "from dualtrack.settings import EgressSettings, SandboxSettings\n"
        "gateway = EgressGateway(EgressSettings(allow=['a.example']), SandboxSettings(workspaces=Path(sys.argv[1])), EgressLimits())\n"
        "outlet = gateway.open(AgentProfile.model_validate({'network': {'allow': ['a.example']}}), 'ten_a')\n"
        "assert (outlet.session.directory / 'proxy.sock').exists()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    workspaces = tmp_path / "w"
    done = subprocess.run([sys.executable, "-c", source, str(workspaces)], check=False, timeout=180)
    assert done.returncode == -signal.SIGKILL
    assert list(workspaces.glob("*/egress-*/proxy.sock"))
    with ProcessDirectory(workspaces) as following:
        following.sweep()
        assert list(workspaces.glob("*/egress-*")) == []
