"""The escape suite itself: it finds what is open, and says so."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.port import Ended, Outcome
from dualtrack.settings import SandboxSettings
from dualtrack.testing.escapes import ATTEMPTS
from dualtrack.testing.escapes.attempt import Attempt, Said
from dualtrack.testing.escapes.collect import trusting
from dualtrack.testing.escapes.ground import OneShotGround, Unsandboxed, sandbox_user
from dualtrack.testing.escapes.remains import processes_with
from dualtrack.testing.escapes.run import run
from dualtrack.testing.rung_sandbox import RungSandbox
from dualtrack.testing.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the attempts are Linux system calls")

ALLOW_ALL = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)


def named(*names: str) -> list[Attempt]:
    found = [attempt for attempt in ATTEMPTS if attempt.name in names]
    assert len(found) == len(names)
    return found


def test_without_a_sandbox_the_host_is_open() -> None:
    names = [
        *("read-same-user", "read-other-session", "write-host-file", "create-host-file", "leaked-file-descriptor", "kill", "stop"),
        *("read-memory", "host-loopback", "abstract-socket", "shared-memory", "launcher-environment", "setuid-chmod"),
    ]
    results = run(Unsandboxed(sandbox_user()), named(*names), sandbox_user())
    assert [name for name, result in results.items() if not result.proof] == []


def test_what_stays_behind_without_a_sandbox_is_found_and_removed() -> None:
    markers: list[str] = []

    class Watched(Unsandboxed):
        def run(self, source: str, stdin: bytes, workspace: Path, limits: SandboxLimits) -> Outcome:
            import json

            markers.extend(json.loads(stdin)["host"]["markers"].values())
            return super().run(source, stdin, workspace, limits)

    results = run(Watched(sandbox_user()), named("deaf-daemon", "segment", "temporary-files"), sandbox_user())
    assert all(result.proof for result in results.values()), results
    assert len(set(markers)) == 3
    assert not any(processes_with(marker, within_s=PATIENCE_S) for marker in markers)
    assert not any(Path(f"/tmp/dualtrack-{marker}").exists() for marker in markers)


def test_hostile_results_catch_a_reader_that_trusts_them() -> None:
    results = run(Unsandboxed(sandbox_user()), named("link-to-secret", "control-names", "many-files"), sandbox_user(), collector=trusting)
    assert all(result.proof for result in results.values()), results


def test_bubblewrap_without_its_filter_lets_system_calls_through(monkeypatch: pytest.MonkeyPatch) -> None:
    from dualtrack.sandbox import bwrap_setup
    from dualtrack.sandbox.bubblewrap import BubblewrapRung

    monkeypatch.setattr(bwrap_setup, "filter_program", lambda: ALLOW_ALL)
    settings = SandboxSettings()
    sandbox = RungSandbox(BubblewrapRung(settings, SandboxLimits()), settings, SandboxLimits())
    filtered = named("keyring", "io-uring", "vsock", "userfaultfd-user", "32-bit-call", "mptcp-socket", "trace-me")
    kept = named("kill", "read-same-user", "host-loopback", "agent-debug")  # namespaces and the agent itself refuse these
    results = run(OneShotGround(sandbox), [*filtered, *kept], sandbox_user())
    open_here = {name for name, result in run(Unsandboxed(sandbox_user()), filtered, sandbox_user()).items() if result.proof}
    assert {attempt.name for attempt in filtered if results[attempt.name].proof} == open_here
    assert open_here >= {"keyring", "trace-me"}
    assert not any(results[attempt.name].proof for attempt in kept)


class Ending:
    """A ground that does ordinary work; every other run ends at once, with what it was told to print."""

    name = "ending"

    def __init__(self, output: bytes = b"", *, works: bool = True) -> None:
        self.output = output
        self.works = works
        self.runs = 0

    def run(self, source: str, stdin: bytes, workspace: Path, limits: SandboxLimits) -> Outcome:
        if b"ordinary-work" in stdin and self.works:
            return Unsandboxed(sandbox_user()).run(source, stdin, workspace, limits)
        self.runs += 1
        return Outcome(Ended.SIGNALLED, None, 9, self.output, b"", 0, 0, 0.1, "killed: signal 9 (SIGKILL)")


def test_where_nothing_runs_nothing_is_blocked() -> None:
    with pytest.raises(SandboxFailed, match="Ordinary work fails here"):
        run(Ending(works=False), named("kill"), sandbox_user())


def test_attempts_that_end_their_sandbox_are_run_again_alone() -> None:
    ground = Ending()
    results = run(ground, named("kill", "keyring"), sandbox_user())
    assert ground.runs == 3
    assert {(result.said, result.proof, result.detail) for result in results.values()} == {(Said.LOST, "", "killed: signal 9 (SIGKILL)")}


def test_a_claim_of_the_code_inside_is_no_proof_where_the_host_can_see() -> None:
    claim = b'\nescape-report:{"name": "kill", "said": "worked", "detail": "", "output": ""}\n'
    assert run(Ending(claim), named("kill"), sandbox_user())["kill"].proof == ""


@pytest.fixture
def nothing_left() -> Iterator[None]:
    def left() -> set[str]:
        return {str(path) for folder in ("/var/tmp", "/tmp", "/dev/shm") for path in Path(folder).glob("dualtrack-escape*")}

    before = left()
    yield
    assert left() <= before
    assert "ESCAPE_CANARY" not in os.environ


@pytest.mark.usefixtures("nothing_left")
def test_the_suite_leaves_nothing() -> None:
    run(Unsandboxed(sandbox_user()), named("read-same-user", "kill", "temporary-files"), sandbox_user())
