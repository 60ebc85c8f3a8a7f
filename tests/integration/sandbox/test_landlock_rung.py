"""The landlock rung by itself: what it refuses without hiding anything, and that nothing is left of it without namespaces."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dualtrack.domain.errors import SandboxUnavailable
from dualtrack.domain.limits import MIB, SandboxLimits
from dualtrack.objects.own_directory import own_directory
from dualtrack.sandbox.inside.landlock import SCOPES_ABI, supported_abi
from dualtrack.sandbox.landlock import LandlockRung
from dualtrack.sandbox.landlock_sandbox import LandlockSandbox
from dualtrack.sandbox.port import Command, Ended
from dualtrack.sandbox.rung import LaunchSpec, Mount
from dualtrack.settings import SandboxSettings
from dualtrack.testing.contracts.sandbox import host_processes, open_descriptors
from dualtrack.testing.rung_sandbox import RungSandbox
from dualtrack.testing.waiting import comes_true

from .standin import ask, await_ready, standin
from .users import ORDINARY_USER, interpreter_for

pytestmark = pytest.mark.skipif(sys.platform != "linux" or supported_abi() < 1, reason="this kernel has no Landlock")

SpecOf = Callable[..., LaunchSpec]
Start = Callable[..., LandlockSandbox]
GIVE_UP_S = 60.0
DENIED = ("PermissionError", "OSError [Errno 1]", "OSError [Errno 13]")


@pytest.fixture(params=["groups", "no groups"])
def marked(folder: Path, request: pytest.FixtureRequest) -> tuple[LandlockRung, str]:
    agent, marker = standin(folder)
    settings = SandboxSettings(workspaces=folder / "all")
    return LandlockRung(settings, SandboxLimits(), agent, cgroups=request.param == "groups"), marker


@pytest.fixture
def start(marked: tuple[LandlockRung, str], spec_of: SpecOf) -> Iterator[Start]:
    started = []

    def start(**others: object) -> LandlockSandbox:
        launched = marked[0].launch(spec_of(**others))
        started.append(launched)
        await_ready(launched)
        return launched

    yield start
    for launched in started:
        launched.close()


def test_it_has_its_workspace_its_mounts_and_its_environment(start: Start, folder: Path) -> None:
    shown = folder / "shown"
    shown.mkdir()
    (shown / "file").write_text("of the template")
    launched = start(mounts=[Mount(shown, "/opt/template")], environment={"PYTHONPATH": "/opt/template/lib:/opt/template", "MINE": "yes"})
    (said,) = ask(launched, "import os; print(os.getcwd(), os.environ['HOME'], os.environ['PYTHONPATH'], os.environ['MINE'])")
    assert said == f"{launched.inside} {launched.inside} {shown}/lib:{shown} yes"
    assert ask(launched, "open('made', 'w').write('1'); print(open(os.environ['PYTHONPATH'].split(':')[1] + '/file').read())") == [
        "of the template"
    ]
    assert ask(launched, f"open({str(shown / 'file')!r}, 'w')")[0].startswith("PermissionError")
    assert ask(
        launched, "import tempfile; f = tempfile.NamedTemporaryFile(); f.write(b'x'); print(f.name.startswith(os.environ['TMPDIR']))"
    ) == ["True"]
    assert ask(launched, "print(set(os.environ) - {'PYTHONPATH', 'MINE', 'LC_CTYPE'} == {'PATH', 'HOME', 'LANG', 'TMPDIR'})") == ["True"]


@pytest.mark.parametrize(
    "source",
    [
        "open('/etc/passwd')",
        "open('/proc/1/cmdline')",
        "open('/proc/self/environ')",
        "import os; os.listdir('/tmp')",
        "import os; os.listdir('/dev/shm')",
        "import os; os.listdir('..')",
        "open('/tmp/made', 'w')",
        "import socket; socket.socket()",
        "import socket; socket.socket(socket.AF_UNIX)",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE)",
        "import os; os.setpriority(os.PRIO_USER, 0, 5)",
        "import os; os.chroot('.')",
        "import os; os.unshare(os.CLONE_NEWUSER) if hasattr(os, 'unshare') else os.setresuid(0, 0, 0)",
    ],
)
def test_it_is_refused(start: Start, source: str) -> None:
    said = ask(start(), source)
    assert said, "it worked"
    assert said[0].startswith(DENIED), said


def _await_processes(marker: str, count: int) -> None:
    deadline = time.monotonic() + GIVE_UP_S
    while len(host_processes(marker, within_s=0)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_sandboxes_reach_nothing_of_each_other(start: Start, marked: tuple[LandlockRung, str]) -> None:
    first, second = start(), start()
    ask(first, "open('secret', 'w').write('mine')")
    (pid,) = ask(first, "import os; print(os.getpid())")
    assert ask(second, f"open('{first.inside}/secret')")[0].startswith("PermissionError")
    assert ask(second, f"import os; os.listdir('{first.inside}')")[0].startswith("PermissionError")
    if supported_abi() >= SCOPES_ABI:
        assert ask(second, f"import os; os.kill({pid}, 0)")[0].startswith("PermissionError")
        assert ask(second, "import signal; os.kill(-1, signal.SIGSTOP); print('went on')") == ["went on"]  # it has no other process
        assert ask(first, "print('alive')") == ["alive"]


def test_what_leaves_its_parents_is_ended_as_well(start: Start, marked: tuple[LandlockRung, str]) -> None:
    launched = start()
    mischief = """
import os, signal, time
for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        os.fork()
        os.fork()
        time.sleep(1000)
print('done')
"""
    assert ask(launched, mischief) == ["done"]
    _await_processes(marked[1], 20)
    launched.close()
    assert not host_processes(marked[1])


def test_a_fork_bomb_is_ended(start: Start, marked: tuple[LandlockRung, str]) -> None:
    launched = start()
    os.write(launched.input, b"import os, time\x1fwhile True:\x1f    try: os.fork()\x1f    except OSError: pass\n")
    _await_processes(marked[1], 8)
    launched.close()
    assert not host_processes(marked[1])


def test_launches_leave_nothing(marked: tuple[LandlockRung, str], start: Start, spec_of: SpecOf, folder: Path) -> None:
    rung, marker = marked
    start().close()
    gc.collect()
    scratch = own_directory(folder / "all").path
    before = (open_descriptors(), threading.active_count(), sorted(scratch.iterdir()))
    for number in range(12):
        launched = rung.launch(spec_of())
        if number % 3:
            await_ready(launched)
        if number % 2:
            launched.kill()
        launched.close()
        launched.close()
    assert comes_true(lambda: open_descriptors() <= before[0] and threading.active_count() <= before[1])
    assert sorted(scratch.iterdir()) == before[2]
    assert not host_processes(marker)


def test_temporary_files_count_to_the_limit_on_disk(folder: Path) -> None:
    settings = SandboxSettings(workspaces=folder / "all")
    sandbox = RungSandbox(LandlockRung(settings, SandboxLimits()), settings, SandboxLimits())
    (folder / "ws").mkdir()
    script = "i=0; while true; do i=$((i+1)); head -c 4000000 /dev/zero > $TMPDIR/f$i; sleep 0.05; done"
    for writable in (True, False):
        command = Command(("sh", "-c", script), writable=writable)
        outcome = sandbox.run(command, folder / "ws", SandboxLimits(disk_bytes=20 * MIB, wall_time_s=120), threading.Event())
        assert outcome.ended is Ended.DISK


def test_a_way_out_is_refused(marked: tuple[LandlockRung, str], spec_of: SpecOf) -> None:
    with pytest.raises(SandboxUnavailable, match="no network of its own"):
        marked[0].launch(spec_of(relay_port=3128))


def test_the_report_names_the_version_and_the_gaps(folder: Path) -> None:
    settings = SandboxSettings(workspaces=folder / "all")
    report = LandlockRung(settings, SandboxLimits()).probe()
    assert (report.works, report.problem) == (True, "")
    assert report.found["Landlock"] == f"ABI {supported_abi()}"
    older = LandlockRung(settings, SandboxLimits(), cgroups=False, newest_abi=1).probe()
    assert older.works
    assert older.gaps[0].startswith("signals reach all processes of the sandbox's user")
    assert "memory limit is per process" in "; ".join(older.gaps)
    assert set(older.gaps) > set(report.gaps)


AS_A_USER = """
import os, sys, threading
from pathlib import Path
from dualtrack.domain.limits import SandboxLimits
from dualtrack.domain.errors import SandboxFailed
from dualtrack.sandbox.landlock import LandlockRung
from dualtrack.sandbox.port import Command
from dualtrack.settings import SandboxSettings
from dualtrack.testing.rung_sandbox import RungSandbox
from dualtrack.testing.waiting import comes_true
folder = Path(sys.argv[1])
settings = SandboxSettings(workspaces=folder / "all")
sandbox = RungSandbox(LandlockRung(settings, SandboxLimits()), settings, SandboxLimits())
sandbox.check()
(folder / "ws").mkdir()
(folder / "private").write_text("of the same user")
for script in sys.argv[2:]:
    try:
        outcome = sandbox.run(Command(("sh", "-c", script)), folder / "ws", SandboxLimits(), threading.Event())
    except SandboxFailed:
        print("the sandbox is gone")
    else:
        print(outcome.stdout.decode().strip())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(supported_abi() < SCOPES_ABI, reason="this kernel's Landlock lets signals through")
def test_of_an_ordinary_user_it_reaches_neither_files_nor_processes(folder: Path) -> None:
    os.chown(folder, ORDINARY_USER, ORDINARY_USER)
    python, environment = interpreter_for(ORDINARY_USER)
    marker = str(8_000_000 + os.getpid())
    scripts = [
        "echo made > file; cat file; id -u",
        f"cat {folder}/private || echo refused; echo x > {folder}/private || echo refused",
        "python3 -c 'import os; os.kill(-1, 9)'",  # all that it may signal: the agent and what that has started, not the executor
        f"setsid sleep {marker} & setsid sleep {marker} & echo left",
        "ulimit -v",
    ]
    done = subprocess.run(
        [python, "-c", AS_A_USER, str(folder), *scripts],
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
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        *("made", str(ORDINARY_USER), "refused", "refused", "the sandbox is gone", "left"),
        str(SandboxLimits().memory_bytes // 1024),
    ]
    assert not host_processes(marker)
    assert (folder / "private").read_text() == "of the same user"
