"""What every sandbox does. `SandboxBasics` is for all adapters, the fake included; `SandboxContract` adds what needs real programs.

A subclass gives the fixture `sandbox`.
"""

from __future__ import annotations

import gc
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, Final

import pytest

from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.limits import KIB, MIB, SandboxLimits
from dualtrack.sandbox.port import Command, Ended, Outcome, Sandbox
from dualtrack.testing.escapes import ATTEMPTS
from dualtrack.testing.escapes.allowed import ALLOWED
from dualtrack.testing.escapes.attempt import Kind, Said
from dualtrack.testing.escapes.ground import OneShotGround, sandbox_user
from dualtrack.testing.escapes.run import run as run_escapes
from dualtrack.testing.sandbox import sandbox_workspace
from dualtrack.testing.waiting import PATIENCE_S, comes_true

LIMITS = SandboxLimits(wall_time_s=30, cpu_time_s=20, memory_bytes=512 * MIB, processes=64, output_bytes=64 * KIB)

Run = Callable[..., Outcome]

_ROUNDS: Final = 6
_SETTLE_S: Final = 5.0
"""The other side of a connection may be in this process, too, and end a moment later."""


class SandboxBasics:
    """Ordinary behaviour, by programs that even the fake knows."""

    @pytest.fixture
    def workspace(self) -> Iterator[Path]:
        with sandbox_workspace() as path:
            yield path

    @pytest.fixture
    def run(self, sandbox: Sandbox, workspace: Path) -> Run:
        """Runs `argv` in the workspace; keyword arguments are limits, or `stdin`, `env`, `writable`, `cancel`."""

        def run(*argv: str, cancel: threading.Event | None = None, **others: object) -> Outcome:
            of_command = {name: others.pop(name) for name in ("stdin", "env", "writable") if name in others}
            command = Command(argv, **of_command)  # type: ignore[arg-type]
            return sandbox.run(command, workspace, LIMITS.model_copy(update=others), cancel or threading.Event())

        return run

    def test_check_passes_where_it_works(self, sandbox: Sandbox) -> None:
        sandbox.check()

    def test_output_and_success(self, run: Run) -> None:
        outcome = run("echo", "hello", "world")
        assert (outcome.ended, outcome.exit_code, outcome.signal) == (Ended.EXITED, 0, None)
        assert (outcome.stdout, outcome.stderr, outcome.note) == (b"hello world\n", b"", "")

    def test_failure_is_an_outcome(self, run: Run) -> None:
        outcome = run("false")
        assert (outcome.ended, outcome.exit_code, outcome.note) == (Ended.EXITED, 1, "")

    def test_stdin_arrives_whole(self, run: Run) -> None:
        data = secrets.token_bytes(40 * KIB)
        assert run("cat", stdin=data).stdout == data

    def test_output_beyond_the_limit_is_counted_and_dropped(self, run: Run) -> None:
        outcome = run("cat", stdin=b"x" * 5000, output_bytes=1000)
        assert (outcome.ended, outcome.exit_code) == (Ended.EXITED, 0)
        assert (outcome.stdout, outcome.stdout_dropped, outcome.stderr_dropped) == (b"x" * 1000, 4000, 0)

    def test_wall_time(self, run: Run) -> None:
        outcome = run("sleep", "100", wall_time_s=1.5)
        assert (outcome.ended, outcome.exit_code, outcome.note) == (Ended.WALL_TIME, None, "killed: wall time limit 1.5 s")

    def test_cancel_while_running(self, run: Run) -> None:
        cancel = threading.Event()
        timer = threading.Timer(0.5, cancel.set)
        timer.start()
        started = time.monotonic()
        outcome = run("sleep", "100", cancel=cancel, wall_time_s=90)
        took = time.monotonic() - started
        timer.join()
        assert (outcome.ended, outcome.exit_code, outcome.note) == (Ended.CANCELLED, None, "killed: cancelled")
        assert took < PATIENCE_S

    def test_cancelled_before_it_starts(self, run: Run) -> None:
        cancel = threading.Event()
        cancel.set()
        assert run("sleep", "100", cancel=cancel).ended is Ended.CANCELLED

    def test_many_at_once(self, run: Run) -> None:
        with ThreadPoolExecutor(8) as pool:
            outputs = list(pool.map(lambda n: run("echo", str(n)).stdout, range(16)))
        assert outputs == [f"{n}\n".encode() for n in range(16)]


class SandboxContract(SandboxBasics):
    """Limits, isolation and cleaning up, by real programs."""

    slow_to_start: ClassVar = False
    """Leaves those escapes that need a sandbox each to `make sandbox-escapes`."""

    @pytest.fixture
    def counts_memory(self) -> bool:
        """Whether memory is limited for the command as a whole and a kill for it noticed; else each process's address space is limited."""
        return True

    @pytest.fixture
    def python(self, run: Run) -> Run:
        """Runs Python source."""
        return lambda source, **others: run("python3", "-I", "-c", source, **others)

    # --- behaviour ---------------------------------------------------------------------------------------------------

    def test_streams_are_separate(self, run: Run) -> None:
        outcome = run("sh", "-c", "echo out; echo err >&2; exit 3")
        assert (outcome.stdout, outcome.stderr, outcome.exit_code) == (b"out\n", b"err\n", 3)

    def test_unknown_program_is_an_outcome(self, run: Run) -> None:
        outcome = run("no-such-program")
        assert (outcome.ended, outcome.exit_code) == (Ended.EXITED, 127)
        assert b"no-such-program" in outcome.stderr

    def test_unread_stdin_does_no_harm(self, run: Run) -> None:
        assert run("true", stdin=b"x" * MIB).exit_code == 0

    def test_signal(self, run: Run) -> None:
        outcome = run("sh", "-c", "kill -9 $$")
        assert (outcome.ended, outcome.signal, outcome.exit_code) == (Ended.SIGNALLED, 9, None)
        assert "SIGKILL" in outcome.note

    def test_workspace_is_shared_and_persists(self, run: Run, workspace: Path) -> None:
        (workspace / "given.txt").write_text("from outside")
        (workspace / "given.txt").chmod(0o600)
        outcome = run("sh", "-c", "pwd; cat given.txt; mkdir -p a/b; echo made > a/b/made.txt")
        assert outcome.stdout == b"/workspace\nfrom outside"
        assert (workspace / "a/b/made.txt").read_text() == "made\n"
        assert run("cat", "a/b/made.txt").stdout == b"made\n"

    def test_read_only_view(self, run: Run, workspace: Path) -> None:
        (workspace / "given.txt").write_text("kept")
        outcome = run("sh", "-c", "cat given.txt; rm -f given.txt; echo changed > given.txt; echo new > new.txt", writable=False)
        assert outcome.stdout == b"kept"
        assert outcome.exit_code != 0
        assert [path.name for path in workspace.iterdir()] == ["given.txt"]
        assert (workspace / "given.txt").read_text() == "kept"

    def test_environment_is_scrubbed(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        secret = secrets.token_hex(16)
        monkeypatch.setenv("OPENAI_API_KEY", secret)
        monkeypatch.setenv("DUALTRACK_DATABASE__URL", secret)
        outcome = run("sh", "-c", "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; true", env={"MINE": "yes"})
        assert secret.encode() not in outcome.stdout
        names = {line.split("=")[0] for line in outcome.stdout.decode(errors="replace").split("\0")[0].splitlines() if "=" in line}
        assert names - {"PWD", "SHLVL", "_", "HOSTNAME", "OLDPWD"} >= {"PATH", "HOME", "LANG", "TMPDIR", "MINE"}
        listed = run("env", env={"MINE": "yes"}).stdout.decode().splitlines()
        assert "MINE=yes" in listed
        assert "HOME=/workspace" in listed

    def test_temporary_directory_is_empty_and_its_own(self, run: Run) -> None:
        assert run("sh", "-c", "ls -A /tmp; echo secret > /tmp/left").stdout == b""
        assert run("ls", "-A", "/tmp").stdout == b""

    def test_ordinary_python_works(self, python: Run) -> None:
        outcome = python(
            "import asyncio, multiprocessing, sqlite3, subprocess, tempfile, threading\n"
            "def square(n): return n * n\n"
            "with multiprocessing.get_context('fork').Pool(2) as pool: assert pool.map(square, [2, 3]) == [4, 9]\n"
            "thread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join()\n"
            "database = sqlite3.connect('/workspace/x.db'); database.execute('create table t (a)'); database.commit()\n"
            "assert asyncio.run(asyncio.sleep(0, 5)) == 5\n"
            "assert subprocess.run(['echo', 'child'], capture_output=True).stdout == b'child\\n'\n"
            "with tempfile.NamedTemporaryFile() as file: file.write(b'x')\n"
            "print('all')"
        )
        assert (outcome.stdout, outcome.stderr, outcome.exit_code) == (b"thread\nall\n", b"", 0)

    # --- limits ------------------------------------------------------------------------------------------------------

    def test_cpu_time(self, python: Run) -> None:
        outcome = python("while True: pass", cpu_time_s=1)
        assert (outcome.ended, outcome.exit_code, outcome.note) == (Ended.CPU_TIME, None, "killed: CPU time limit 1 s")

    def test_memory(self, python: Run, counts_memory: bool) -> None:
        outcome = python("x = b'x' * (400 << 20); print(len(x))", memory_bytes=128 * MIB)
        assert outcome.stdout == b""
        if counts_memory:
            assert (outcome.ended, outcome.exit_code, outcome.note) == (Ended.MEMORY, None, "killed: memory limit 128 MiB")
        else:
            assert (outcome.ended, outcome.exit_code) == (Ended.EXITED, 1)
            assert b"MemoryError" in outcome.stderr

    def test_processes(self, python: Run) -> None:
        outcome = python(
            "import os, time\n"
            "n = 0\n"
            "try:\n"
            "  while n < 200:\n"
            "    if os.fork() == 0: time.sleep(60); os._exit(0)\n"
            "    n += 1\n"
            "except BlockingIOError: pass\n"
            "print(n)",
            processes=20,
        )
        assert outcome.exit_code == 0
        assert 10 <= int(outcome.stdout) <= 20

    def test_fork_bomb_is_over_when_run_returns(self, run: Run, workspace: Path) -> None:
        bomb = f"bomb-{secrets.token_hex(6)}.sh"
        (workspace / bomb).write_text(f"sh {bomb} & sh {bomb} & sh {bomb}\n")
        outcome = run("sh", bomb, processes=30, wall_time_s=2, cpu_time_s=5)
        assert outcome.ended in {Ended.EXITED, Ended.WALL_TIME}
        assert run("echo", "fine").stdout == b"fine\n"
        assert not host_processes(bomb)

    def test_file_size(self, run: Run, workspace: Path) -> None:
        outcome = run("sh", "-c", "head -c 3000000 /dev/zero > big", file_bytes=MIB)
        assert outcome.exit_code != 0
        assert (workspace / "big").stat().st_size <= MIB

    def test_open_files(self, python: Run) -> None:
        outcome = python("files = [open('/dev/null') for _ in range(100)]", open_files=50)
        assert outcome.exit_code == 1
        assert b"Too many open files" in outcome.stderr

    def test_workspace_size(self, run: Run) -> None:
        script = "i=0; while true; do i=$((i+1)); head -c 4000000 /dev/zero > f$i; sleep 0.05; done"
        outcome = run("sh", "-c", script, disk_bytes=20 * MIB, wall_time_s=120)
        assert outcome.ended is Ended.DISK
        assert "20 MiB" in outcome.note

    def test_flood_is_killed(self, run: Run) -> None:
        outcome = run("sh", "-c", "yes; echo never", output_bytes=4 * KIB)
        assert outcome.ended is Ended.OUTPUT
        assert len(outcome.stdout) == 4 * KIB
        assert outcome.stdout_dropped > 32 * 4 * KIB

    # --- cleaning up -------------------------------------------------------------------------------------------------

    def test_background_processes_end_with_the_command(self, run: Run) -> None:
        marker = str(10**6 + secrets.randbelow(10**6))
        outcome = run("sh", "-c", f"setsid sleep {marker} & sleep {marker} & echo started")
        assert (outcome.ended, outcome.stdout, outcome.exit_code) == (Ended.EXITED, b"started\n", 0)  # it waited for none of them
        assert not host_processes(marker)

    @pytest.mark.parametrize("how", ["wall_time", "cancel"])
    def test_nothing_is_left_after_a_kill(self, run: Run, how: str) -> None:
        marker = str(10**6 + secrets.randbelow(10**6))
        cancel = threading.Event()
        timer = threading.Timer(1.0, cancel.set)
        if how == "cancel":
            timer.start()
        script = f"trap '' TERM INT HUP; setsid sleep {marker} & sleep {marker}"
        outcome = run("sh", "-c", script, wall_time_s=1.5 if how == "wall_time" else 30, cancel=cancel)
        timer.cancel()
        assert outcome.ended is (Ended.CANCELLED if how == "cancel" else Ended.WALL_TIME)
        assert not host_processes(marker)

    def test_no_descriptors_are_left(self, run: Run) -> None:
        run("true")

        def use() -> None:
            for _ in range(3):
                run("sh", "-c", "sleep 100 & true")

        assert leaves_no_descriptors(use)

    def test_a_thread_that_ends_takes_no_other_run_with_it(self, run: Run) -> None:
        with ThreadPoolExecutor(1) as pool:
            long = pool.submit(run, "sh", "-c", "sleep 2; echo survived")
            for _ in range(3):
                short = threading.Thread(target=run, args=("true",))
                short.start()
                short.join()
            assert long.result().stdout == b"survived\n"

    def test_missing_workspace_is_our_failure(self, sandbox: Sandbox, workspace: Path) -> None:
        with pytest.raises(SandboxFailed):
            sandbox.run(Command(("true",)), workspace / "absent", LIMITS, threading.Event())

    # --- isolation ---------------------------------------------------------------------------------------------------

    def test_no_host_files(self, run: Run, workspace: Path) -> None:
        secret = secrets.token_hex(16)
        outside = workspace.parent / "secret.txt"
        outside.write_text(secret)
        outside.chmod(0o644)
        (workspace / "link").symlink_to(outside)
        script = f"cat link {outside} /etc/shadow /proc/1/root{outside} /proc/self/cwd/../secret.txt; ls /root /home /var/tmp"
        outcome = run("sh", "-c", f"{script}; grep root /etc/passwd; ls -d {Path.cwd()}")
        assert secret.encode() not in outcome.stdout + outcome.stderr
        assert outcome.exit_code != 0
        assert str(Path.cwd()).encode() not in outcome.stdout

    def test_no_writing_outside_the_workspace(self, run: Run) -> None:
        script = "for d in / /usr /etc /usr/bin /dev /proc /sys; do echo x > $d/dualtrack-test 2>/dev/null && echo $d; done; true"
        assert run("sh", "-c", script).stdout == b""

    def test_no_network(self, python: Run) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
            name = f"dualtrack-{secrets.token_hex(8)}"
            abstract.bind(f"\0{name}")
            abstract.listen()
            outcome = python(
                "import socket\n"
                f"attempts = [(socket.AF_INET, ('127.0.0.1', {server.getsockname()[1]})), (socket.AF_INET, ('1.1.1.1', 80)),\n"
                f"            (socket.AF_UNIX, '\\0{name}')]\n"
                "for family, address in attempts:\n"
                "  s = socket.socket(family); s.settimeout(3)\n"
                "  try: s.connect(address); print('reached', address)\n"
                "  except OSError: pass\n"
                "print(sorted(n for _, n in socket.if_nameindex() if n == 'lo' or not n.startswith(('tun', 'sit', 'ip', 'gre', 'erspan'))))"
            )
        assert outcome.stdout == b"['lo']\n"

    def test_no_host_processes(self, python: Run) -> None:
        outcome = python(
            "import os\n"
            f"pid = {os.getpid()}\n"
            "seen = [int(n) for n in os.listdir('/proc') if n.isdigit()]\n"
            "print(len(seen))\n"
            "try: os.kill(pid, 0); print('reached' if pid > max(seen, default=0) else 'own')\n"
            "except ProcessLookupError: print('absent')\n"
        )
        count, reached = outcome.stdout.split()
        assert int(count) <= 5
        assert reached == b"absent"

    def test_no_inherited_descriptors(self, python: Run) -> None:
        source = "import os\nfor n in range(3, 256):\n  try: os.fstat(n); print(n)\n  except OSError: pass"
        assert python(source).stdout == b""

    def test_unprivileged(self, python: Run) -> None:
        """The command, and the sandbox's init, whose memory it may write: taking that over must gain nothing."""
        outcome = python(
            "import os, pathlib\n"
            "for pid in ('self', '1'):\n"
            "  status = pathlib.Path('/proc', pid, 'status')\n"
            "  lines = dict(l.split(':\\t', 1) for l in status.read_text().splitlines()) if status.exists() else {}\n"
            "  caps = {lines.get(name, '0').strip('0') for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')}\n"
            "  print(caps, lines.get('NoNewPrivs', '1'), lines.get('Seccomp', '2'), lines.get('Uid', '1000').split()[0] != '0')\n"
            "if os.path.exists('/proc/1'): assert os.stat('/proc/1/ns/user').st_ino == os.stat('/proc/self/ns/user').st_ino\n"
        )
        assert outcome.stdout == b"{''} 1 2 True\n" * 2, outcome.stderr

    def test_nothing_escapes(self, sandbox: Sandbox) -> None:
        """The escape suite but for bombs and hostile results, which have tests of their own; `make sandbox-escapes` shows all."""
        attempts = [
            attempt for attempt in ATTEMPTS if attempt.kind not in {Kind.BOMBS, Kind.RESULTS} and not (attempt.alone and self.slow_to_start)
        ]
        results = run_escapes(OneShotGround(sandbox), attempts, sandbox_user())
        allowed = ALLOWED.get(sandbox.name, {})
        assert {name: result.proof for name, result in results.items() if result.proof and name not in allowed} == {}
        assert {name: result.detail for name, result in results.items() if result.said is Said.BROKEN} == {}


def host_processes(marker: str, *, within_s: float = PATIENCE_S) -> list[str]:
    """Command lines on this machine that hold `marker` and do not go away in time (a killed process may linger a moment)."""
    deadline = time.monotonic() + within_s
    while True:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if marker in line and "pytest" not in line:
                found.append(line)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def leaves_no_descriptors(use: Callable[[], object]) -> bool:
    """Whether `use`, done again and again, leaves no more and more of them open: a pool of connections may grow at first."""
    for _ in range(_ROUNDS):
        gc.collect()
        before = open_descriptors()
        use()
        if comes_true(lambda before=before: open_descriptors() <= before, within_s=_SETTLE_S):  # type: ignore[misc] # called at once
            return True
    return False


def open_descriptors() -> int:
    """How many file descriptors this process has open."""
    return len(list(Path("/dev/fd").iterdir()))
