"""The Docker rung by itself, where there is an engine (the gate has one): what it shows, refuses, counts, and leaves behind."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import MIB, SandboxLimits
from dualtrack.sandbox.docker import DockerRung
from dualtrack.sandbox.docker_sandbox import DockerSandbox
from dualtrack.sandbox.rung import LaunchSpec, Mount
from dualtrack.settings import SandboxSettings
from dualtrack.testing.contracts.sandbox import host_processes, open_descriptors
from dualtrack.testing.waiting import comes_true

from .executors import executor
from .standin import ask, await_ready, read_line, standin

SpecOf = Callable[..., LaunchSpec]
Start = Callable[..., DockerSandbox]


@pytest.fixture(scope="module", autouse=True)
def engine() -> None:
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=120).returncode != 0:
        pytest.skip("no Docker engine answers")
    image = SandboxSettings().docker_image
    if subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False, timeout=120).returncode != 0:
        pytest.skip(f"the image {image} is not here")


@pytest.fixture
def marked(folder: Path) -> tuple[DockerRung, str]:
    agent, marker = standin(folder)
    rung = DockerRung(SandboxSettings(workspaces=folder / "all"), SandboxLimits(), agent)
    return rung, marker


@pytest.fixture
def start(marked: tuple[DockerRung, str], spec_of: SpecOf) -> Iterator[Start]:
    """Starts sandboxes and waits until they are ready; ends them."""
    started = []

    def start(**others: object) -> DockerSandbox:
        launched = marked[0].launch(spec_of(**others))
        started.append(launched)
        await_ready(launched)
        return launched

    yield start
    for launched in started:
        launched.close()


def containers(workspaces: Path) -> set[str]:
    """Of executors with this directory of workspaces."""
    place = (workspaces / ".docker/id").read_text()
    listing = ["docker", "container", "ls", "--all", "--quiet", "--no-trunc", "--filter", f"label=dualtrack.workspaces={place}"]
    return set(subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split())


def test_what_it_shows_and_what_is_made_belongs_to_its_user(start: Start, folder: Path) -> None:
    shown = folder / "shown"
    shown.mkdir()
    (shown / "file").write_text("of the template")
    launched = start(mounts=[Mount(shown, "/opt/dualtrack/template")], environment={"GREETING": "hello"})
    assert ask(launched, "import os; print(os.getcwd(), os.environ['GREETING'], os.environ['HOME'], os.getuid() != 0, os.getpid())") == [
        "/workspace hello /workspace True 1"
    ]
    assert ask(launched, "open('made', 'w').write('1'); print(open('/opt/dualtrack/template/file').read())") == ["of the template"]
    for path in ("/opt/dualtrack/template/file", "/opt/dualtrack/template/new", "/etc/new", "/usr/new"):
        assert ask(launched, f"open({path!r}, 'w')")[0].startswith("OSError [Errno 30]")
    assert ask(launched, "import os; print(os.path.exists('/sys/block'), os.path.exists('/sys/class/dmi'))") == ["False False"]
    (made,) = folder.glob("workspace-*/made")
    assert made.stat().st_uid == (SandboxSettings().uid if os.getuid() == 0 else os.getuid())


def test_the_filter_is_ours_and_refuses_what_dockers_own_lets_through(start: Start) -> None:
    source = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def says(call):
    try: call()
    except OSError as error: return errno.errorcode[error.errno]
    return 'worked'
def system(*arguments):
    if libc.syscall(*arguments) < 0: raise OSError(ctypes.get_errno(), '')
open('/workspace/x', 'w').close()
ARM = os.uname().machine == 'aarch64'
print(says(lambda: socket.socket(40, socket.SOCK_STREAM)), says(lambda: system(425, 4, 0)), says(lambda: os.chmod('/workspace/x', 0o4755)),
      says(lambda: system(117 if ARM else 101, 16, 1, 0, 0)), says(lambda: system(270 if ARM else 310, 1, 0, 0, 0, 0, 0)))
print(says(lambda: socket.socket()), says(lambda: os.chmod('/workspace/x', 0o755)), open('/proc/self/status').read().count('Seccomp:\\t2'))
"""
    assert ask(start(), source) == ["EPERM EPERM EPERM EPERM EPERM", "worked worked 1"]


def test_the_kernels_counters(start: Start) -> None:
    launched = start(limits=SandboxLimits(memory_bytes=64 * MIB, processes=6))
    before = launched.counters()
    if before.cpu_s is None:
        pytest.skip("the engine is on another machine")
    assert ask(launched, "import os\npid = os.fork()\nif not pid:\n    b'x' * (1 << 28)\nprint(os.waitpid(pid, 0)[1])") == ["9"]
    ask(launched, "sum(range(3_000_000))")
    assert ask(launched, "import os, time\nfor n in range(9):\n    os.fork() or time.sleep(60)")[0].startswith("BlockingIOError")
    after = launched.counters()
    assert (after.out_of_memory, after.forks_refused) == (1, 1)
    assert (after.cpu_s or 0) > before.cpu_s + 0.01
    assert 32 * MIB < (after.memory_peak_bytes or 0) <= 64 * MIB
    launched.close()
    assert launched.counters().out_of_memory == 1  # known after the end, too


def test_the_end_of_all_by_memory_is_known(start: Start) -> None:
    launched = start(limits=SandboxLimits(memory_bytes=64 * MIB))
    launched.counters()
    os.write(launched.input, b"x = b'x' * (400 << 20)\n")
    with pytest.raises(EOFError):
        read_line(launched)
    assert launched.wait_ended(60)
    assert launched.counters().out_of_memory == 1


def test_launches_leave_nothing(marked: tuple[DockerRung, str], spec_of: SpecOf, start: Start, folder: Path) -> None:
    rung, marker = marked
    start().close()  # what is made once is there
    gc.collect()
    before = open_descriptors()
    for number in range(3):
        launched = rung.launch(spec_of())
        if number:  # the first ends while it is starting up
            await_ready(launched)
        if number == 2:
            os.write(launched.input, b"import os; os.fork(); os.setsid(); __import__('time').sleep(100)\n")
            killer = threading.Timer(0.2, launched.kill)
            killer.start()
            started = time.monotonic()
            with pytest.raises(EOFError):
                while True:
                    read_line(launched)
            assert time.monotonic() - started < 60
            killer.join()
        launched.close()
        launched.close()
    assert comes_true(lambda: open_descriptors() <= before)
    assert containers(folder / "all") == set()
    assert not host_processes(marker)


def test_a_launch_that_fails_says_why_and_leaves_nothing(marked: tuple[DockerRung, str], spec_of: SpecOf, folder: Path) -> None:
    with pytest.raises(SandboxFailed, match="/absent/of/course"):
        marked[0].launch(spec_of(mounts=[Mount(Path("/absent/of/course"), "/opt/x")]))
    with pytest.raises(SandboxFailed, match="such a name"):
        marked[0].launch(spec_of(mounts=[Mount(folder / "a,readonly=false", "/opt/x")]))
    assert containers(folder / "all") == set()


def test_the_report_tells_what_it_found(marked: tuple[DockerRung, str]) -> None:
    report = marked[0].probe()
    assert (report.works, report.problem) == (True, "")
    assert report.found["system call filter"].startswith("ours")
    assert report.found["image"] == SandboxSettings().docker_image


@pytest.mark.parametrize(
    ("settings", "problem"),
    [({"docker_image": "dualtrack/absent:1"}, "docker pull dualtrack/absent:1"), ({"docker_runtime": "absent"}, "no runtime absent")],
)
def test_a_report_says_what_to_do(folder: Path, settings: dict[str, str], problem: str) -> None:
    rung = DockerRung(SandboxSettings(workspaces=folder / "all", **settings), SandboxLimits())
    report = rung.probe()
    assert not report.works
    assert problem in report.problem


def test_no_engine_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/no.sock")
    rung = DockerRung(SandboxSettings(workspaces=folder / "all"), SandboxLimits())
    with pytest.raises(SandboxUnavailable, match="No Docker engine answers"):
        rung.launch(LaunchSpec(folder, SandboxLimits()))


def test_nothing_is_left_of_a_killed_executor_and_all_of_others(folder: Path) -> None:
    agent, marker = standin(folder)
    workspaces, elsewhere = folder / "all", folder / "else"
    with (
        executor("docker", workspaces, agent, marker) as living,
        executor("docker", elsewhere, agent, marker),
        executor("docker", workspaces, agent, marker) as dead,
    ):
        assert len(containers(workspaces)) == 2
        dead.kill()
        dead.wait(60)
        rung = DockerRung(SandboxSettings(workspaces=workspaces), SandboxLimits(), agent)
        (removed,) = rung.sweep()
        assert removed.startswith("container ")
        assert len(containers(workspaces)) == len(containers(elsewhere)) == 1
        assert {path.name.split("-")[0] for path in (workspaces / ".docker").iterdir() if path.is_dir()} == {
            str(living.pid),
            str(os.getpid()),
        }
        assert rung.sweep() == []
    for place in (workspaces, elsewhere):
        rung = DockerRung(SandboxSettings(workspaces=place), SandboxLimits(), agent)
        assert len(rung.sweep()) == 1
        assert containers(place) == set()
    assert not host_processes(marker)
