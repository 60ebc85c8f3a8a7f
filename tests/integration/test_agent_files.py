"""Files through the agent, for rungs that share no file system with their host."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualtrack.domain.errors import Cancelled, SandboxFailed
from dualtrack.domain.limits import MIB, SandboxLimits
from dualtrack.objects.trees import WorkspaceTooLarge
from dualtrack.sandbox.port import Command
from dualtrack.sandbox.rung import LaunchSpec
from dualtrack.sandbox.session import AgentSession
from dualtrack.sandbox.sessions import EndReason
from dualtrack.testing.bare_rung import BareRung

LIMITS = SandboxLimits(wall_time_s=60, disk_bytes=8 * MIB, disk_files=500)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[AgentSession]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with BareRung(shares_files=False) as rung:
        session = rung.session(LaunchSpec(workspace, LIMITS))
        try:
            yield session
        finally:
            session.close()


def run(session: AgentSession, script: str) -> str:
    outcome = session.run(Command(("sh", "-c", script)), LIMITS, threading.Event())
    assert outcome.exit_code == 0, outcome.stderr
    return outcome.stdout.decode()


def tree(root: Path) -> dict[str, object]:
    """What a directory holds: mode, and content, target or `dir`."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = (path.stat().st_mode & 0o777, "dir" if path.is_dir() else path.read_bytes())
    return found


def test_there_and_back(session: AgentSession) -> None:
    here = session.workspace
    (here / "a" / "b").mkdir(parents=True)
    (here / "a" / "b" / "big.bin").write_bytes(os.urandom(3 * MIB))
    (here / "a" / "run.sh").write_text("#!/bin/sh\n")
    (here / "a" / "run.sh").chmod(0o755)
    (here / "a" / "link").symlink_to("../nowhere")
    (here / "empty").mkdir()
    (here / "größe.txt").write_text("ü")
    before = tree(here)
    session.push()
    assert run(session, "cat größe.txt; readlink a/link; wc -c < a/b/big.bin; test -x a/run.sh") == f"ü../nowhere\n{3 * MIB}\n"
    session.pull()
    assert tree(here) == before


def test_only_what_differs_is_changed(session: AgentSession) -> None:
    here = session.workspace
    for name in ("same", "changed", "removed", "swapped"):
        (here / name).write_text(name)
    session.push()
    inode = (here / "same").stat().st_ino
    run(
        session, "echo new > changed; rm removed; rm swapped; mkdir swapped; echo x > swapped/x; ln -s x link; mkdir -p d/e; chmod 600 same"
    )
    session.pull()
    assert (here / "changed").read_text() == "new\n"
    assert sorted(path.name for path in here.iterdir()) == ["changed", "d", "link", "same", "swapped"]
    assert (here / "swapped" / "x").read_text() == "x\n"
    assert (here / "same").stat().st_mode & 0o777 == 0o600
    inode = (here / "changed").stat().st_ino
    session.pull()
    assert (here / "changed").stat().st_ino == inode


def test_what_goes_with_all_that_is_in_it_takes_nothing_else_along(session: AgentSession) -> None:
    here = session.workspace
    for name in ("a/b/c", "a/d", "a-b/x", "ab/a/x", "b/a/x", "c/x/y"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(name)
    session.push()
    run(session, "rm -r a ab/a c; echo file > c; mkdir -p ab/new/deep; echo x > ab/new/deep/x")
    session.pull()
    assert sorted(tree(here)) == ["a-b", "a-b/x", "ab", "ab/new", "ab/new/deep", "ab/new/deep/x", "b", "b/a", "b/a/x", "c"]
    assert (here / "c").read_text() == "file\n"


def test_the_host_goes_back_to_an_earlier_state(session: AgentSession) -> None:
    here = session.workspace
    (here / "kept").write_text("kept")
    (here / "dir").mkdir()
    session.push()
    run(session, "rm kept; rmdir dir; echo file > dir; mkdir kept; mkdir -p deep/er; echo x > deep/er/x; chmod 000 deep; mkfifo fifo")
    session.push()
    assert run(session, "ls -A; cat kept; ls dir") == "dir\nkept\nkept"


class After(threading.Event):
    """Set once it has been looked at so often."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._left = looks

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0


def test_a_cancel_ends_the_sending_of_many_files(session: AgentSession) -> None:
    here = session.workspace
    for number in range(300):
        (here / f"{number:03}").write_text("x")
    with pytest.raises(Cancelled):
        session.push(After(450))  # looked at for all of them, and sent some
    assert session.ended is EndReason.CANCELLED
    with pytest.raises(SandboxFailed, match="over"):
        session.push()


def test_a_cancel_ends_the_fetching_of_many_files(session: AgentSession) -> None:
    run(session, "n=0; while [ $n -lt 300 ]; do echo $n > f$n; n=$((n + 1)); done")
    with pytest.raises(Cancelled):
        session.pull(After(303))  # looked at for each, and fetched a few batches at most
    assert len(list(session.workspace.iterdir())) < 300
    assert session.ended is EndReason.CANCELLED


def test_a_cancel_is_seen_while_the_agent_says_nothing(session: AgentSession) -> None:
    agent = int(run(session, "echo $PPID"))
    cancel = threading.Event()
    os.kill(agent, signal.SIGSTOP)
    timer = threading.Timer(0.2, cancel.set)
    timer.start()
    started = time.monotonic()
    with pytest.raises(Cancelled):
        session.pull(cancel)
    assert time.monotonic() - started < 20
    timer.join()


def test_a_hostile_workspace_stays_inside(session: AgentSession, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    run(session, f"ln -s {outside} out; mkdir in; mkfifo pipe; touch \"$(printf 'bad\\nname')\"; ln -s /etc/passwd passwd; chmod 000 in")
    session.pull()
    here = session.workspace
    assert sorted(path.name for path in here.iterdir()) == ["in", "out", "passwd"]
    assert (here / "out").is_symlink()
    run(session, "rm out; mkdir out; echo mine > out/secret")
    session.pull()
    assert (here / "out" / "secret").read_text() == "mine\n"
    assert (outside / "secret").read_text() == "secret"


def test_many_files(session: AgentSession) -> None:
    run(session, "i=0; while [ $i -lt 400 ]; do echo $i > f$i; i=$((i+1)); done")
    session.pull()
    assert (session.workspace / "f399").read_text() == "399\n"
    assert len(list(session.workspace.iterdir())) == 400


@pytest.mark.parametrize("script", ["head -c 9000000 /dev/zero > big", "i=0; while [ $i -lt 501 ]; do : > f$i; i=$((i+1)); done"])
def test_more_than_a_workspace_may_hold(session: AgentSession, script: str) -> None:
    run(session, script)
    with pytest.raises(WorkspaceTooLarge):
        session.pull()
    assert session.ended is None
    assert run(session, "echo on") == "on\n"
