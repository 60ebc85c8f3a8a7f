"""The pool over real bubblewrap: warm claims, killed slots, templates, what is left at the end."""

from __future__ import annotations

import contextlib
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from dualtrack.domain.errors import SandboxUnavailable
from dualtrack.domain.limits import MIB, SandboxLimits
from dualtrack.sandbox.cgroups import detect
from dualtrack.sandbox.factory import open_sandboxes
from dualtrack.sandbox.port import Command, Outcome
from dualtrack.sandbox.sandboxes import Sandboxes
from dualtrack.sandbox.sessions import EndReason, PythonCell, Session, SessionRequest, Start
from dualtrack.settings import SandboxSettings, TemplateSettings
from dualtrack.testing.waiting import wait_until

LIMITS = SandboxLimits(memory_bytes=256 * MIB, processes=32)
REQUEST = SessionRequest(LIMITS)

KILLED = """
import sys, threading
from pathlib import Path
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.factory import open_sandboxes
from dualtrack.sandbox.port import Command
from dualtrack.sandbox.sessions import SessionRequest
from dualtrack.settings import SandboxSettings

limits = SandboxLimits()
sandboxes = open_sandboxes(SandboxSettings(workspaces=Path(sys.argv[1]), pool_min=2), limits).__enter__()
session = sandboxes.pool.claim(SessionRequest(limits))
session.run(Command(("sh", "-c", "touch left; trap '' TERM HUP; sleep 600 & setsid sleep 600 &")), limits, threading.Event())
print(session.workspace, flush=True)
threading.Event().wait()
"""

Opened = Callable[..., Sandboxes]


@pytest.fixture
def open_all(folder: Path) -> Iterator[Opened]:
    with contextlib.ExitStack() as stack:

        def make(**changes: Any) -> Sandboxes:
            settings = SandboxSettings(**{"workspaces": folder / "workspaces", "pool_min": 2, **changes})
            return stack.enter_context(open_sandboxes(settings, LIMITS))

        yield make


def until(what: Callable[[], bool]) -> None:
    wait_until(what, "what the test waits for")


def cell(session: Session, source: str) -> Outcome:
    return session.python(PythonCell(source), LIMITS, threading.Event())


def inside(session: Session) -> list[psutil.Process]:
    """The processes of a sandbox, by its workspace's mount."""
    return processes_at(session.workspace)


def processes_at(directory: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if str(directory) in Path(f"/proc/{process.pid}/mountinfo").read_text():
                found.append(process)
    return found


def slots(folder: Path) -> list[Path]:
    return list((folder / "workspaces").glob("*-*/slots/*"))


def test_a_warm_claim_runs_python_and_files_come_and_go(open_all: Opened, folder: Path) -> None:
    pool = open_all().pool
    until(lambda: pool.warm("default") == 2)
    source, kept = folder / "job", folder / "kept"
    source.mkdir()
    kept.mkdir()
    (source / "in.txt").write_text("6 7")
    session = pool.claim(REQUEST)
    assert session.start is Start.WARM
    session.adopt(source)
    outcome = cell(session, "a, b = map(int, open('in.txt').read().split()); print(a * b, file=open('out.txt', 'w'))")
    assert outcome.exit_code == 0, outcome
    session.close(keep=kept)
    assert (kept / "out.txt").read_text() == "42\n"
    assert session.workspace not in [slot / "workspace" for slot in slots(folder)]


def test_sandboxes_killed_while_warm_are_replaced_unnoticed(open_all: Opened) -> None:
    pool = open_all().pool
    until(lambda: pool.warm("default") == 2)
    warm = [session for shelf in pool._shelves.values() for session, _ in shelf.warm]
    for doomed in warm:
        for process in inside(doomed):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
    until(lambda: not any(inside(doomed) for doomed in warm))
    # The last process that holds a sandbox's output is the one outside that waits for those inside.
    until(lambda: all(select.select([doomed.launched.output], [], [], 0)[0] for doomed in warm))
    with contextlib.closing(pool.claim(REQUEST)) as session:
        assert session.id not in {one.id for one in warm}
        assert cell(session, "print(1)").stdout == b"1\n"


def test_eight_threads_never_share_a_sandbox(open_all: Opened, folder: Path) -> None:
    pool = open_all(pool_max=8).pool
    problems: list[str] = []

    def use(number: int) -> None:
        for turn in range(4):
            with contextlib.closing(pool.claim(REQUEST)) as session:
                said = cell(session, f"import os; print(sorted(os.listdir())); open('mine-{number}-{turn}', 'w')").stdout
                if said != b"[]\n":
                    problems.append(said.decode())

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(250)
    assert not problems
    until(lambda: len(slots(folder)) == pool.live)


def test_a_hundred_sessions_leave_nothing(open_all: Opened, folder: Path) -> None:
    pool = open_all(pool_max=2, template="shell").pool
    own = psutil.Process()

    def rested() -> bool:
        return pool.warm("shell") == pool.live == 2

    def counts() -> dict[str, int]:
        below = own.children(recursive=True)
        with contextlib.suppress(psutil.NoSuchProcess):
            return {
                "processes": len(below),
                "descriptors": own.num_fds() + sum(child.num_fds() for child in below),
                "threads": own.num_threads(),
                "slots": len(slots(folder)),
            }
        return {"processes": 10**9}

    def use(times: int) -> None:
        for _ in range(times):
            with contextlib.closing(pool.claim(REQUEST)) as session:
                assert session.run(Command(("true",)), LIMITS, threading.Event()).exit_code == 0

    use(4)
    until(rested)
    before = counts()
    use(100)
    until(rested)
    until(lambda: all(now <= before[name] for name, now in counts().items()))


def test_the_end_ends_everything(open_all: Opened, folder: Path) -> None:
    sandboxes = open_all()
    session = sandboxes.pool.claim(REQUEST)
    session.run(Command(("sh", "-c", "sleep 600 & echo started")), LIMITS, threading.Event())
    assert inside(session)
    sandboxes.__exit__()
    assert session.ended is EndReason.SHUTDOWN
    until(lambda: not inside(session))
    assert not slots(folder)


def test_what_a_killed_executor_leaves_is_gone_once_the_next_has_started(open_all: Opened, folder: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(folder / "workspaces")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as executor:
        assert executor.stdout is not None
        workspace = Path(executor.stdout.readline().strip())
        executor.kill()
    assert (workspace / "left").exists()
    dead = workspace.parents[2]
    sandboxes = open_all(pool_max=0)
    assert not dead.exists()
    until(lambda: not processes_at(dead))
    groups = [path for parent in detect().parents() for path in parent.glob(f"dualtrack-*-{executor.pid}-*")]
    until(lambda: not any(group.exists() for group in groups))
    assert sandboxes.pool.live == 0


def test_the_rung_that_works_is_reported_and_one_that_does_not_refuses_to_start(open_all: Opened, folder: Path) -> None:
    sandboxes = open_all()
    assert sandboxes.report.works
    assert sandboxes.report.rung.value == "bubblewrap"
    assert sandboxes.templates.interpreter.startswith("cp3")
    sandboxes.pool.check()
    (folder / "taken").write_text("")
    with pytest.raises(SandboxUnavailable, match="DUALTRACK_SANDBOX__WORKSPACES"):
        open_all(workspaces=folder / "taken" / "below")


def test_a_template_of_the_operator_is_built_once_and_shown_read_only(open_all: Opened, folder: Path) -> None:
    files = folder / "data"
    files.mkdir()
    (files / "greeting.txt").write_text("hello")
    template = TemplateSettings(files=files, environment={"GREETING": "hi"}, preload=["decimal"])
    sandboxes = open_all(templates={"mine": template}, pool_templates=["mine"])
    directory = sandboxes.templates.directory(sandboxes.templates.definition("mine"))
    made = directory.stat().st_mtime_ns
    with contextlib.closing(sandboxes.pool.claim(SessionRequest(LIMITS, "mine"))) as session:
        source = """
import os, sys
print(open("/opt/dualtrack/template/files/greeting.txt").read(), os.environ["GREETING"], "decimal" in sys.modules)
"""
        assert cell(session, source).stdout == b"hello hi True\n"
        refused = cell(session, "open('/opt/dualtrack/template/files/greeting.txt', 'w')")
        assert refused.exit_code == 1
        assert b"Read-only file system" in refused.stderr or b"Permission denied" in refused.stderr
    assert (files / "greeting.txt").read_text() == "hello"
    again = open_all(templates={"mine": template}, pool_templates=["mine"])
    assert again.templates.directory(again.templates.definition("mine")).stat().st_mtime_ns == made


def test_a_template_that_was_not_built_says_how(open_all: Opened) -> None:
    with pytest.raises(SandboxUnavailable, match="dualtrack sandbox templates build python-data"):
        open_all().pool.claim(SessionRequest(LIMITS, "python-data"))
