"""The gVisor rung by itself: what it shows, counts, and leaves behind. Installs runsc where it can (`scripts/install-runsc`)."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.limits import MIB, SandboxLimits
from dualtrack.sandbox import gvisor
from dualtrack.sandbox.cgroups import CgroupSupport, detect
from dualtrack.sandbox.gvisor import GvisorRung
from dualtrack.sandbox.gvisor_processes import end_processes_below, processes_below
from dualtrack.sandbox.gvisor_sandbox import GvisorSandbox
from dualtrack.sandbox.rung import LaunchSpec, Mount
from dualtrack.settings import SandboxSettings
from dualtrack.testing.contracts.sandbox import host_processes, open_descriptors
from dualtrack.testing.waiting import PATIENCE_S, comes_true

from .executors import executor
from .standin import ask, await_ready, read_line, standin
from .users import ORDINARY_USER, interpreter_for

SpecOf = Callable[..., LaunchSpec]
Start = Callable[..., GvisorSandbox]
INSTALL = Path(__file__).parents[3] / "scripts" / "install-runsc"
RUNSC = Path(shutil.which("runsc") or "/usr/bin/runsc")
PROGRAM = """
import os, sys, threading
from pathlib import Path
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.gvisor import GvisorRung
from dualtrack.sandbox.port import Command
from dualtrack.sandbox.sessions import SessionRequest
from dualtrack.settings import SandboxSettings
from dualtrack.testing.rung_sessions import RungSessions
folder = Path(sys.argv[1])
rung = GvisorRung(SandboxSettings(workspaces=folder), SandboxLimits())
sessions = RungSessions(rung, folder)
limits = SandboxLimits(processes=10)
session = sessions.claim(SessionRequest(limits))
script = "id -u; echo x > made; echo > /run/dualtrack/agent/__main__.py; chmod 4755 made; for n in 0 1 2 3 4 5 6 7 8 9; do sleep 5 & done"
outcome = session.run(Command(("sh", "-c", script)), limits, threading.Event())
print(outcome.stdout, outcome.stderr, (session.workspace / "made").stat().st_uid, oct((session.workspace / "made").stat().st_mode))
print([path.stat().st_size > 0 for path in folder.glob(".agent-*/**/__main__.py")])
session.close()
"""


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    done = subprocess.run([INSTALL], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode and sys.platform == "linux" and os.geteuid() == 0 and Path("/etc/debian_version").exists():
        raise AssertionError(done.stderr)
    if done.returncode:
        pytest.skip(done.stderr.strip())


@pytest.fixture
def marked(folder: Path) -> tuple[GvisorRung, str]:
    agent, marker = standin(folder)
    rung = GvisorRung(SandboxSettings(workspaces=folder / "all"), SandboxLimits(), agent)
    return rung, marker


@pytest.fixture
def start(marked: tuple[GvisorRung, str], spec_of: SpecOf) -> Iterator[Start]:
    """Starts sandboxes and waits until they are ready; ends them."""
    started = []

    def start(spec: LaunchSpec | None = None, **others: object) -> GvisorSandbox:
        launched = marked[0].launch(spec or spec_of(**others))
        started.append(launched)
        await_ready(launched)
        return launched

    yield start
    for launched in started:
        launched.close()


def groups(support: CgroupSupport) -> list[Path]:
    return [path for parent in support.parents() for path in parent.glob(f"dualtrack-*-{os.getpid()}-*")]


def test_what_the_host_moves_into_the_workspace_is_seen_and_what_is_made_belongs_to_its_user(start: Start, spec_of: SpecOf) -> None:
    spec = spec_of()
    workspace = spec.workspace
    launched = start(spec)
    assert ask(launched, "import os; print(os.listdir('.'), os.getuid(), os.getcwd())") == [
        f"[] {1000 if not os.getuid() else 0} /workspace"
    ]
    given = workspace.parent / "given"
    given.mkdir()
    (given / "file").write_text("one")
    os.chown(given / "file", *[SandboxSettings().uid if not os.getuid() else os.getuid()] * 2)
    (given / "file").rename(workspace / "file")
    assert ask(launched, "print(os.listdir('.'), open('file').read())") == ["['file'] one"]
    (workspace / "file").write_text("changed, and longer")
    assert ask(launched, "print(open('file').read())") == ["changed, and longer"]
    (workspace / "file").rename(given / "file")
    assert ask(launched, "print(os.listdir('.')); os.mkdir('d'); open('d/made', 'w').write('x')") == ["[]"]
    assert (workspace / "d/made").read_text() == "x"
    assert (workspace / "d/made").stat().st_uid == workspace.stat().st_uid != 0 or os.getuid() != 0


def test_nothing_read_only_can_be_emptied(start: Start, spec_of: SpecOf, folder: Path) -> None:
    """Opening a file to truncate it once emptied it on read-only mounts, for gVisor's kernel opened files itself."""
    shown = folder / "shown"
    shown.mkdir()
    (shown / "file").write_text("of the template")
    spec = spec_of(writable=False, mounts=[Mount(shown, "/opt/dualtrack/template"), Mount(shown / "file", "/opt/dualtrack/one")])
    (spec.workspace / "kept").write_text("kept")
    attempt = (
        "import os\nfor flags in (os.O_WRONLY | os.O_TRUNC, os.O_RDONLY | os.O_TRUNC):\n    try: os.open({!r}, flags); print('opened')\n"
        "    except OSError: pass"
    )
    for launched in (start(spec), start(mounts=spec.mounts)):
        for path in ("/workspace/kept", "/opt/dualtrack/template/file", "/opt/dualtrack/one"):
            assert ask(launched, attempt.format(path)) == []
    assert (spec.workspace / "kept").read_text() == "kept"
    assert (shown / "file").read_text() == "of the template"


def test_the_one_socket_of_the_host_is_reached_only_where_there_is_a_relay(start: Start, folder: Path) -> None:
    shown = folder / "egress"
    shown.mkdir()
    connect = "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('/run/egress/proxy.sock')\nprint(s.recv(9))"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(shown / "proxy.sock"))
        (shown / "proxy.sock").chmod(0o666)
        server.listen()

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.sendall(b"hello")

        answering = threading.Thread(target=answer)
        answering.start()
        mounts = [Mount(shown, "/run/egress")]
        assert ask(start(mounts=mounts, relay_port=3128), connect) == ["b'hello'"]
        answering.join()
        (said,) = ask(start(mounts=mounts), connect)
        assert said.startswith(("ConnectionRefusedError", "PermissionError"))


def test_counters_and_the_end_by_memory(start: Start) -> None:
    support = detect()
    launched = start(limits=SandboxLimits(memory_bytes=64 * MIB))
    assert launched.enforced.memory is (support.memory is not None)
    if support.cpu is not None:
        before = launched.counters().cpu_s or 0
        ask(launched, "sum(range(3_000_000))")
        assert (launched.counters().cpu_s or 0) > before + 0.01
    if support.memory is None:
        pytest.skip("no control group for memory can be made here")
    os.write(launched.input, b"x = b'x' * (400 << 20)\n")
    with pytest.raises(EOFError):
        read_line(launched)
    assert launched.counters().out_of_memory == 1
    launched.close()
    assert launched.counters().out_of_memory == 1  # known after the end, too


def test_no_more_processes_than_allowed(start: Start) -> None:
    launched = start(limits=SandboxLimits(processes=6))
    forks = "import os, time\nfor n in range(9):\x1f    os.fork() or time.sleep(60)".replace("\x1f", "\n")
    (said,) = ask(launched, forks)
    assert said.startswith("BlockingIOError")


def mounts(folder: Path) -> list[str]:
    """Of this machine, those that have to do with these tests; an engine beside them comes and goes as it likes."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(folder) in line or "runsc" in line]


def test_launches_leave_nothing(marked: tuple[GvisorRung, str], spec_of: SpecOf, start: Start, folder: Path) -> None:
    rung, marker = marked
    support = detect()
    start().close()  # what is made once is there
    own = next(path for path in (folder / "all/.gvisor").iterdir() if path.is_dir())
    others = set(groups(support))  # warm sandboxes of other tests
    gc.collect()
    before = (open_descriptors(), sorted(own.iterdir()), mounts(folder))
    for number in range(6):
        launched = rung.launch(spec_of())
        if number % 3:  # the others end while they are starting up
            await_ready(launched)
        if number % 2:
            launched.kill()
        launched.close()
        launched.close()
    assert comes_true(lambda: open_descriptors() <= before[0])
    assert (sorted(own.iterdir()), mounts(folder)) == before[1:]
    assert set(groups(support)) <= others
    assert processes_below(folder / "all", RUNSC) == []
    assert not host_processes(marker)


def test_killed_by_another_thread_it_ends_whatever_it_does(start: Start, folder: Path) -> None:
    launched = start()
    os.write(launched.input, b"import os; os.fork(); os.setsid(); [os.fork() for _ in range(3)]; __import__('time').sleep(100)\n")
    killer = threading.Timer(0.3, launched.kill)
    killer.start()
    started = time.monotonic()
    with pytest.raises(EOFError):
        while True:
            read_line(launched)
    launched.close()
    assert time.monotonic() - started < PATIENCE_S
    assert processes_below(folder / "all", RUNSC) == []


def test_a_launch_that_fails_says_why(marked: tuple[GvisorRung, str], spec_of: SpecOf) -> None:
    with pytest.raises(SandboxFailed, match="/absent/of/course"):
        marked[0].launch(spec_of(mounts=[Mount(Path("/absent/of/course"), "/opt/x")]))
    launched = marked[0].launch(spec_of(mounts=[Mount(Path("/usr"), "/proc/self/x")]))
    assert os.read(launched.output, 1) == b""
    launched.close()
    assert "/proc/self/x" in launched.said()


def test_without_control_groups_memory_is_the_agents_to_limit(folder: Path, spec_of: SpecOf) -> None:
    agent, marker = standin(folder)
    rung = GvisorRung(SandboxSettings(workspaces=folder / "all"), SandboxLimits(), agent, cgroups=False)
    launched = rung.launch(spec_of())
    await_ready(launched)
    assert not launched.enforced.memory
    assert launched.counters().out_of_memory is None
    launched.kill()
    launched.close()
    assert processes_below(folder / "all", RUNSC) == []
    report = rung.probe()
    assert report.works
    assert "memory limit is per process, by address space" in "; ".join(report.gaps)
    assert not host_processes(marker)


def test_the_report_tells_what_it_found(marked: tuple[GvisorRung, str]) -> None:
    report = marked[0].probe()
    assert (report.works, report.problem) == (True, "")
    assert report.found["platform"] == "systrap"
    assert report.found["control groups"] == str(detect())


def test_a_report_says_what_to_install(marked: tuple[GvisorRung, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gvisor, "_version", lambda _: "0.0~20221219.0")
    report = marked[0].probe()
    assert not report.works
    assert "20221219" in report.problem
    assert "scripts/install-runsc" in report.problem
    monkeypatch.setenv("PATH", "/nowhere")
    assert "There is no runsc" in marked[0].probe().problem


def test_what_outlived_its_executor_is_found_and_ended(start: Start, folder: Path) -> None:
    launched = start()
    assert end_processes_below(folder / "elsewhere", RUNSC, PATIENCE_S) == 0
    assert end_processes_below(folder / "all", RUNSC, PATIENCE_S) >= 3  # runsc, its kernel, its file server
    assert os.read(launched.output, 1) == b""
    assert processes_below(folder / "all", RUNSC) == []


def test_nothing_is_left_of_a_killed_executor(folder: Path) -> None:
    agent, marker = standin(folder)
    base = folder / "all/.gvisor"
    with executor("gvisor", folder / "all", agent, marker) as living, executor("gvisor", folder / "all", agent, marker) as dead:
        (name,) = [path.name for path in base.iterdir() if path.name.startswith(f"{dead.pid}-")]
        dead.kill()
        dead.wait(60)
        rung = GvisorRung(SandboxSettings(workspaces=folder / "all"), SandboxLimits(), agent)
        assert f"gVisor sandboxes of process {name}" in rung.sweep()
        assert {path.name.split("-")[0] for path in base.iterdir() if path.is_dir()} == {str(living.pid), str(os.getpid())}
        assert processes_below(base / name, RUNSC) == []
        assert processes_below(base, RUNSC) != []  # of the living one
        assert not [path for parent in detect().parents() for path in parent.glob(f"dualtrack-*-{dead.pid}-*")]
        assert rung.sweep() == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_can_run_it(folder: Path) -> None:
    python, environment = interpreter_for(ORDINARY_USER)
    own = folder / "own"
    own.mkdir()
    os.chown(own, ORDINARY_USER, ORDINARY_USER)
    done = subprocess.run(
        [python, "-c", PROGRAM, str(own)],
        user=ORDINARY_USER,
        group=ORDINARY_USER,
        extra_groups=[],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    said, kept = done.stdout.splitlines()
    assert said.startswith("b'0\\n'")  # the one user it can map
    assert "Read-only file system" in said
    assert "Operation not permitted" in said
    assert "Cannot fork" in said
    assert said.endswith(f"{ORDINARY_USER} 0o100644")
    assert kept == "[True]"
