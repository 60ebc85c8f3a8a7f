"""The bubblewrap rung by itself: what it isolates, counts, and leaves behind."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.limits import MIB, SandboxLimits
from dualtrack.sandbox.bubblewrap import BubblewrapRung
from dualtrack.sandbox.bwrap_sandbox import BwrapSandbox
from dualtrack.sandbox.cgroups import CgroupSupport, detect
from dualtrack.sandbox.rung import Counters, LaunchSpec, Mount
from dualtrack.settings import SandboxSettings
from dualtrack.testing.contracts.sandbox import host_processes, open_descriptors
from dualtrack.testing.waiting import comes_true

from .standin import ask, await_ready, read_line, standin

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap runs on Linux only")

SpecOf = Callable[..., LaunchSpec]
Start = Callable[..., BwrapSandbox]
GIVE_UP_S = 60.0


@pytest.fixture(scope="module")
def support() -> CgroupSupport:
    return detect()


@pytest.fixture
def marked(folder: Path) -> tuple[BubblewrapRung, str]:
    agent, marker = standin(folder)
    return BubblewrapRung(SandboxSettings(), SandboxLimits(), agent), marker


@pytest.fixture
def rung(marked: tuple[BubblewrapRung, str]) -> BubblewrapRung:
    return marked[0]


@pytest.fixture
def start(rung: BubblewrapRung, spec_of: SpecOf) -> Iterator[Start]:
    """Starts sandboxes and waits until they are ready; ends them."""
    started = []

    def start(**others: object) -> BwrapSandbox:
        launched = rung.launch(spec_of(**others))
        started.append(launched)
        await_ready(launched)
        return launched

    yield start
    for launched in started:
        launched.close()


def groups(support: CgroupSupport, pid: int | None = None) -> list[Path]:
    """Control groups of a process (this one) that are there."""
    return [path for parent in support.parents() for path in parent.glob(f"dualtrack-*-{pid or os.getpid()}-*")]


def mounts(folder: Path) -> list[str]:
    """Mounts of this machine that have to do with a directory; others come and go."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]


def test_it_shows_the_workspace_and_the_mounts_and_nothing_of_the_host(start: Start, folder: Path, marked: tuple[object, str]) -> None:
    shown = folder / "shown"
    shown.mkdir()
    (shown / "file").write_text("of the template")
    launched = start(mounts=[Mount(shown, "/opt/dualtrack/template")], environment={"GREETING": "hello"})
    assert ask(launched, "import os; print(os.getcwd(), os.environ['GREETING'], os.environ['HOME'], os.getuid(), os.getpid() < 5)") == [
        "/workspace hello /workspace 1000 True"
    ]
    assert ask(launched, "open('made', 'w').write('1'); print(open('/opt/dualtrack/template/file').read())") == ["of the template"]
    assert ask(launched, "open('/opt/dualtrack/template/file', 'w')")[0].startswith("OSError [Errno 30]")
    assert ask(launched, "print(sorted(os.listdir('/proc/self/fd')))") == ["['0', '1', '2', '3']"]  # 3 is the directory being listed
    command_line, environment = ask(launched, "print(open('/proc/1/cmdline').read()); print(open('/proc/1/environ').read())")
    assert str(folder) not in command_line
    assert set(environment.rstrip("\0").replace("\0", "\n").splitlines()) == {
        *("PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/workspace", "LANG=C.UTF-8", "TMPDIR=/tmp", "GREETING=hello", "PWD=/workspace")
    }


def test_a_read_only_workspace_can_not_be_changed(start: Start) -> None:
    assert ask(start(writable=False), "open('made', 'w')")[0].startswith("OSError [Errno 30]")


def test_its_loopback_works_and_is_its_own(start: Start) -> None:
    source = """
import socket
server = socket.create_server(('127.0.0.1', 0)); client = socket.create_connection(server.getsockname(), 5)
print(client.getpeername() == server.getsockname(), [name for _, name in socket.if_nameindex()])
"""
    assert ask(start(), source) == ["True ['lo']"]


def test_the_kernels_counters(start: Start, support: CgroupSupport) -> None:
    launched = start(limits=SandboxLimits(memory_bytes=64 * MIB, processes=6))
    assert launched.enforced.memory is (support.memory is not None)
    assert launched.enforced.processes is (support.pids is not None)
    before = launched.counters()
    if support.memory is not None:
        assert ask(launched, "import os\npid = os.fork()\nif not pid:\n    b'x' * (1 << 28)\nprint(os.waitpid(pid, 0)[1])") == ["9"]
        assert launched.counters().out_of_memory == 1
        assert 32 * MIB < (launched.counters().memory_peak_bytes or 0) <= 64 * MIB
    if support.cpu is not None:
        ask(launched, "sum(range(3_000_000))")
        assert (launched.counters().cpu_s or 0) > (before.cpu_s or 0) + 0.01
    if support.pids is not None:
        forks = "import time\nfor n in range(9):\x1f    os.fork() or time.sleep(60)".replace("\x1f", "\n")
        (said,) = ask(launched, "import os\n" + forks)
        assert said.startswith("BlockingIOError")
        assert (before.forks_refused, launched.counters().forks_refused) == (0, 1)
    launched.close()
    after = launched.counters()
    assert after.forks_refused == (1 if support.pids else None)  # known after the end, too
    assert after.out_of_memory == (1 if support.memory else None)


def test_without_control_groups_nothing_is_enforced_or_counted(folder: Path, spec_of: SpecOf) -> None:
    agent, _ = standin(folder)
    rung = BubblewrapRung(SandboxSettings(), SandboxLimits(), agent, cgroups=False)
    launched = rung.launch(spec_of())
    try:
        await_ready(launched)
        assert not launched.enforced.memory
        assert not launched.enforced.processes
        assert launched.counters() == Counters()
    finally:
        launched.close()
    report = rung.probe()
    assert report.works
    assert "memory limit is per process, by address space" in "; ".join(report.gaps)


def test_a_hundred_launches_leave_nothing(
    marked: tuple[BubblewrapRung, str], spec_of: SpecOf, support: CgroupSupport, start: Start, folder: Path
) -> None:
    rung, marker = marked
    start().close()  # what is made once is there
    gc.collect()
    before = (open_descriptors(), threading.active_count())
    others = set(groups(support))  # warm sandboxes of other tests

    def one(number: int) -> None:
        launched = rung.launch(specs[number])
        if number % 3:  # the others end while they are starting up
            await_ready(launched)
        if number % 5 == 0:
            launched.kill()
        launched.close()
        launched.close()

    specs = [spec_of() for _ in range(100)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(one, range(100)))
    assert comes_true(lambda: open_descriptors() <= before[0] and threading.active_count() <= before[1])
    assert mounts(folder) == []
    assert set(groups(support)) <= others
    assert not host_processes(marker)


def test_a_sandbox_outlives_the_thread_that_asked_for_it(rung: BubblewrapRung, spec_of: SpecOf) -> None:
    started: list[BwrapSandbox] = []
    thread = threading.Thread(target=lambda: started.append(rung.launch(spec_of())))
    thread.start()
    thread.join(GIVE_UP_S)
    (launched,) = started
    try:
        await_ready(launched)
        assert ask(launched, "import time; time.sleep(0.2); print('alive')") == ["alive"]
    finally:
        launched.close()


def test_killed_by_another_thread_it_ends_whatever_it_does(start: Start, marked: tuple[object, str]) -> None:
    launched = start()
    os.write(launched.input, b"import os; os.fork(); os.setsid(); [os.fork() for _ in range(3)]; __import__('time').sleep(100)\n")
    killer = threading.Timer(0.3, launched.kill)
    killer.start()
    started = time.monotonic()
    with pytest.raises(EOFError):
        while True:
            read_line(launched)
    launched.close()
    assert time.monotonic() - started < GIVE_UP_S
    killer.join()
    assert not host_processes(marked[1])


def test_a_launch_that_fails_says_why_and_leaves_nothing(
    marked: tuple[BubblewrapRung, str], spec_of: SpecOf, support: CgroupSupport, start: Start
) -> None:
    rung, marker = marked
    start().close()
    gc.collect()
    before = open_descriptors()
    others = set(groups(support))
    try:
        launched = rung.launch(spec_of(mounts=[Mount(Path("/absent/of/course"), "/opt/x")]))
    except SandboxFailed as error:  # it had ended before it was in its control groups
        said = error.message
    else:
        assert os.read(launched.output, 1) == b""
        launched.close()
        said = launched.said()
    assert "/absent/of/course" in said
    assert comes_true(lambda: open_descriptors() <= before)
    assert set(groups(support)) <= others
    assert not host_processes(marker)


def test_what_bubblewrap_prints_is_kept_bounded(start: Start) -> None:
    launched = start()
    ask(launched, "import os; os.set_blocking(2, False); os.write(2, b'x' * 60000 + b'the end')")
    assert len(launched.said()) <= 2000
    assert launched.said().endswith("the end")


def test_the_spawner_is_started_again_when_it_has_died(rung: BubblewrapRung, start: Start, marked: tuple[object, str]) -> None:
    start()
    process = rung._spawner._process
    assert process is not None
    process.kill()
    process.wait(GIVE_UP_S)
    assert not host_processes(marked[1])  # its sandboxes end with it
    assert ask(start(), "print('again')") == ["again"]
    assert not Path(f"/proc/{process.pid}").exists()


def test_programs_that_can_not_be_started_are_an_error(rung: BubblewrapRung, start: Start) -> None:
    start()
    with pytest.raises(SandboxFailed, match="/absent"):
        rung._spawner.spawn(Path("/absent"), ["absent"], [])


def test_the_report_tells_what_it_found(rung: BubblewrapRung, support: CgroupSupport) -> None:
    report = rung.probe()
    assert (report.works, report.problem) == (True, "")
    assert report.found["bubblewrap"][0].isdigit()
    assert report.found["control groups"] == str(support)
    assert any("memory limit is per process" in gap for gap in report.gaps) is (support.memory is None)


def test_a_report_says_why_it_does_not_work(folder: Path) -> None:
    folder.chmod(0o700)
    agent, _ = standin(folder)
    report = BubblewrapRung(SandboxSettings(workspaces=folder / "all"), SandboxLimits(), agent).probe()
    if os.geteuid() == 0:
        assert not report.works
        assert "DUALTRACK_SANDBOX__WORKSPACES" in report.problem
    else:
        assert report.works
