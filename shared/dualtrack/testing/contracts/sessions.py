"""What every session does, whatever isolates it. A subclass gives the fixture `sessions` (of class scope).

Commands: `SessionContract`. Python: `SessionPythonContract`. Limits and the certain end: `SessionLimitsContract`.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.limits import KIB, MIB, SandboxLimits
from dualtrack.sandbox.port import Command, Ended, Outcome
from dualtrack.sandbox.sessions import Channel, EndReason, PythonCell, Session, SessionRequest, Sessions, Sink
from dualtrack.testing.contracts.sandbox import host_processes, leaves_no_descriptors
from dualtrack.testing.sandbox import sandbox_workspace
from dualtrack.testing.waiting import PATIENCE_S, wait_until

LIMITS = SandboxLimits(wall_time_s=30, cpu_time_s=20, memory_bytes=512 * MIB, processes=64, output_bytes=64 * KIB)

Run = Callable[..., Outcome]


class Asking:
    """Fixtures: a session, and short ways to use it."""

    @pytest.fixture(scope="class")
    @classmethod
    def kept(cls, sessions: Sessions) -> Iterator[list[Session]]:
        """The session that tests share as long as it lives."""
        kept: list[Session] = []
        yield kept
        for session in kept:
            session.close()

    @pytest.fixture
    def session(self, sessions: Sessions, kept: list[Session]) -> Session:
        if not kept or kept[-1].ended is not None:
            kept.append(sessions.claim(SessionRequest(LIMITS)))
        return kept[-1]

    @pytest.fixture
    def fresh(self, sessions: Sessions) -> Iterator[Session]:
        """A session that is nobody else's."""
        session = sessions.claim(SessionRequest(LIMITS))
        yield session
        session.close()

    @pytest.fixture
    def run(self, session: Session) -> Run:
        return runner(session)

    @pytest.fixture
    def python(self, session: Session) -> Run:
        return python_runner(session)


def runner(session: Session) -> Run:
    """Runs `argv`; keyword arguments are limits, or `stdin`, `env`, `cancel`, `sink`."""

    def run(*argv: str, cancel: threading.Event | None = None, sink: Sink | None = None, **others: object) -> Outcome:
        of_command = {name: others.pop(name) for name in ("stdin", "env") if name in others}
        command = Command(argv, **of_command)  # type: ignore[arg-type]
        return session.run(command, LIMITS.model_copy(update=others), cancel or threading.Event(), sink)

    return run


def python_runner(session: Session) -> Run:
    """Runs Python source; `persistent`, or limits."""

    def python(source: str, *, persistent: bool = False, cancel: threading.Event | None = None, **others: object) -> Outcome:
        return session.python(PythonCell(source, persistent), LIMITS.model_copy(update=others), cancel or threading.Event())

    return python


class SessionContract(Asking):
    """Commands, files, streams, background processes."""

    def test_streams_are_separate(self, run: Run) -> None:
        outcome = run("sh", "-c", "echo out; echo err >&2; exit 3")
        assert (outcome.stdout, outcome.stderr, outcome.exit_code, outcome.ended) == (b"out\n", b"err\n", 3, Ended.EXITED)
        assert (outcome.note, outcome.reached, outcome.background) == ("", (), 0)

    def test_stdin_arrives_whole(self, run: Run) -> None:
        data = secrets.token_bytes(3 * MIB)
        assert run("cat", stdin=data, output_bytes=4 * MIB).stdout == data

    def test_no_stdin_is_its_end(self, run: Run) -> None:
        assert run("cat").stdout == b""

    def test_unread_stdin_does_no_harm(self, run: Run) -> None:
        assert run("true", stdin=b"x" * 2 * MIB).exit_code == 0
        assert run("sh", "-c", "exec 0<&-; echo on", stdin=b"x" * 2 * MIB).stdout == b"on\n"

    def test_a_large_command_line_and_environment(self, run: Run) -> None:
        outcome = run("sh", "-c", 'printf %s "$1" | wc -c; printf %s "$BIG" | wc -c', "sh", "x" * 120_000, env={"BIG": "y" * 100_000})
        assert outcome.stdout.split() == [b"120000", b"100000"]

    def test_unknown_program_is_an_outcome(self, run: Run) -> None:
        outcome = run("no-such-program")
        assert (outcome.ended, outcome.exit_code) == (Ended.EXITED, 127)
        assert b"no-such-program" in outcome.stderr

    def test_signal(self, run: Run) -> None:
        outcome = run("sh", "-c", "kill -9 $$")
        assert (outcome.ended, outcome.signal, outcome.exit_code) == (Ended.SIGNALLED, 9, None)
        assert outcome.note == "killed: signal 9 (SIGKILL)"

    def test_an_exit_status_is_no_signal(self, run: Run) -> None:
        outcome = run("sh", "-c", "exit 137")
        assert (outcome.ended, outcome.exit_code, outcome.signal) == (Ended.EXITED, 137, None)

    def test_environment_of_one_command(self, run: Run) -> None:
        assert run("sh", "-c", 'echo "$MINE"', env={"MINE": "yes"}).stdout == b"yes\n"
        assert run("sh", "-c", 'echo "$MINE"').stdout == b"\n"

    def test_descriptors_and_signals_are_an_ordinary_programs(self, run: Run) -> None:
        source = (
            "import os, signal\n"
            "for n in range(64):\n"
            "  try: os.fstat(n); print(n, end=' ')\n"
            "  except OSError: pass\n"
            "names = ('SIGHUP', 'SIGTERM', 'SIGQUIT', 'SIGUSR1', 'SIGALRM', 'SIGCHLD', 'SIGTSTP')\n"
            "print([n for n in names if signal.getsignal(getattr(signal, n)) is not signal.SIG_DFL], signal.pthread_sigmask(0, []))\n"
            "print(os.getpid() == os.getsid(0))\n"
        )
        assert run("python3", "-I", "-c", source).stdout == b"0 1 2 [] set()\nTrue\n"
        assert run("sh", "-c", "yes | head -n 1").stdout == b"y\n"  # which ends by SIGPIPE

    def test_output_is_streamed(self, run: Run) -> None:
        seen: list[tuple[Channel, bytes]] = []
        outcome = run("sh", "-c", "echo one; sleep 0.3; echo two >&2", sink=lambda channel, data: seen.append((channel, data)))
        assert sorted(seen) == sorted([(Channel.STDOUT, b"one\n"), (Channel.STDERR, b"two\n")])
        assert (outcome.stdout, outcome.stderr) == (b"one\n", b"two\n")

    def test_output_is_seen_while_the_command_runs(self, fresh: Session) -> None:
        seen = threading.Event()
        outcome = runner(fresh)("sh", "-c", "echo one; sleep 100; echo two", cancel=seen, sink=lambda *_: seen.set())
        assert (outcome.ended, outcome.stdout) == (Ended.CANCELLED, b"one\n")

    def test_output_beyond_the_limit_goes_to_the_sink_only(self, run: Run) -> None:
        seen = bytearray()
        outcome = run("sh", "-c", "head -c 50000 /dev/zero", output_bytes=1000, sink=lambda _, data: seen.extend(data))
        assert (len(outcome.stdout), outcome.stdout_dropped, len(seen), outcome.exit_code) == (1000, 49_000, 50_000, 0)

    def test_a_slow_sink_holds_the_command_back_and_loses_nothing(self, run: Run) -> None:
        sizes: list[int] = []

        def slow(_: Channel, data: bytes) -> None:
            sizes.append(len(data))
            if len(sizes) % 40 == 0:
                time.sleep(0.05)

        outcome = run("sh", "-c", "head -c 20000000 /dev/zero", output_bytes=MIB, sink=slow)
        assert (outcome.exit_code, sum(sizes)) == (0, 20_000_000)

    def test_a_sink_that_fails_ends_the_session(self, fresh: Session) -> None:
        def fail(_: Channel, data: bytes) -> None:
            raise RuntimeError("no room")

        with pytest.raises(RuntimeError):
            runner(fresh)("sh", "-c", "echo one; sleep 100", sink=fail)
        assert fresh.ended is EndReason.BROKEN

    def test_files_last_from_command_to_command(self, run: Run) -> None:
        run("sh", "-c", "mkdir -p a/b; echo made > a/b/made.txt; echo temporary > $TMPDIR/contract-left")
        assert run("sh", "-c", "cat a/b/made.txt $TMPDIR/contract-left; rm -r a $TMPDIR/contract-left").stdout == b"made\ntemporary\n"

    def test_background_processes_live_on(self, run: Run) -> None:
        outcome = run("sh", "-c", "sleep 600 & echo $!")
        assert (outcome.ended, outcome.exit_code, outcome.background) == (Ended.EXITED, 0, 1)  # though it holds the pipes
        pid = outcome.stdout.decode().strip()
        assert run("sh", "-c", f"kill -0 {pid}").exit_code == 0
        assert run("sh", "-c", f"kill -9 {pid}").exit_code == 0
        wait_until(lambda: run("true").background == 0, "the end of a process that is dying")

    def test_background_output_is_in_nobodys_outcome_and_stops_nobody(self, run: Run) -> None:
        run("sh", "-c", "(i=0; while [ $i -lt 60 ]; do echo late$i; i=$((i+1)); sleep 0.02; done; echo through > through) &")
        outcomes = [run("sh", "-c", "sleep 0.3; echo mine") for _ in range(2)]
        assert [outcome.stdout for outcome in outcomes] == [b"mine\n"] * 2
        assert run("sh", "-c", "while [ ! -e through ]; do sleep 0.05; done; cat through; rm through").stdout == b"through\n"

    def test_a_background_flood_does_not_delay_the_end(self, fresh: Session) -> None:
        run = runner(fresh)
        outcome = run("sh", "-c", "yes & echo done >&2")
        assert (outcome.ended, outcome.stderr, outcome.exit_code) == (Ended.EXITED, b"done\n", 0)
        assert run("echo", "next").stdout == b"next\n"

    def test_closed_streams(self, run: Run) -> None:
        started = time.monotonic()
        assert run("sh", "-c", "exec 0<&- 1>&- 2>&-; sleep 0.5; exit 4").exit_code == 4
        assert time.monotonic() - started >= 0.5

    def test_many_short_children(self, run: Run) -> None:
        script = "i=0; while [ $i -lt 300 ]; do true & i=$((i+1)); [ $((i % 20)) = 0 ] && wait; done; wait; echo all"
        assert run("sh", "-c", script).stdout == b"all\n"

    def test_orphans_are_reaped(self, run: Run) -> None:
        run("sh", "-c", "for i in 1 2 3 4 5; do (setsid sh -c 'true' &); done; sleep 0.3")
        source = (
            "import os, pathlib, time\n"
            "def zombies():\n"
            "  found = []\n"
            "  for path in pathlib.Path('/proc').glob('[0-9]*/stat'):\n"
            "    try: found.append(path.read_text().rpartition(') ')[2].split()[:2])\n"
            "    except OSError: pass\n"
            "  return found.count(['Z', str(os.getppid())])\n"
            "for _ in range(200):\n"
            "  if not zombies(): break\n"
            "  time.sleep(0.1)\n"
            "print(zombies())"
        )
        assert run("python3", "-I", "-c", source).stdout == b"0\n"

    def test_nothing_inside_runs_while_it_is_quiet(self, fresh: Session) -> None:
        run = runner(fresh)
        python_runner(fresh)(
            "import threading, time\n"
            "def tick():\n"
            "  while True:\n"
            "    with open('ticks', 'a') as file: file.write('x')\n"
            "    time.sleep(0.005)\n"
            "threading.Thread(target=tick, daemon=True).start()",
            persistent=True,
        )
        run("sh", "-c", "(while true; do echo x >> more; sleep 0.01; done) & until [ -s more ] && [ -s ticks ]; do sleep 0.02; done")

        def sizes() -> list[int]:
            fresh.pull()
            return [(fresh.workspace / name).stat().st_size for name in ("ticks", "more")]

        with fresh.quiet():
            before = sizes()
            time.sleep(0.3)
            assert sizes() == before

        def both_went_on() -> bool:
            with fresh.quiet():
                return all(now > then for now, then in zip(sizes(), before, strict=True))

        wait_until(both_went_on, "both go on")

    def test_adopt_and_keep(self, sessions: Sessions) -> None:
        with contextlib.ExitStack() as stack:
            given, kept = (stack.enter_context(sandbox_workspace()) for _ in range(2))
            (given / "folder" / "deep").mkdir(parents=True)
            (given / "folder" / "deep" / "file.txt").write_text("from outside")
            (given / "closed").mkdir()
            (given / "link").symlink_to("folder/deep/file.txt")
            session = sessions.claim(SessionRequest(LIMITS))
            session.adopt(given)
            assert list(given.iterdir()) == []
            outcome = runner(session)("sh", "-c", "cat link; echo more >> link; echo made > made.txt; chmod 500 closed; ls")
            assert outcome.stdout == b"from outsideclosed\nfolder\nlink\nmade.txt\n"
            session.pull()
            session.close(keep=kept)
            assert (kept / "folder" / "deep" / "file.txt").read_text() == "from outsidemore\n"
            assert (kept / "link").is_symlink()
            assert sorted(path.name for path in kept.iterdir()) == ["closed", "folder", "link", "made.txt"]
            (kept / "closed").chmod(0o700)

    def test_a_read_only_session(self, sessions: Sessions) -> None:
        session = sessions.claim(SessionRequest(LIMITS, writable=False))
        with sandbox_workspace() as given, sandbox_workspace() as kept:
            (given / "given.txt").write_text("kept")
            session.adopt(given)
            outcome = runner(session)("sh", "-c", "cat given.txt; echo changed > given.txt; echo new > new.txt")
            session.close(keep=kept)
            assert outcome.stdout == b"kept"
            assert outcome.exit_code != 0
            assert [(path.name, path.read_text()) for path in kept.iterdir()] == [("given.txt", "kept")]

    def test_an_ended_session_says_so(self, sessions: Sessions) -> None:
        session = sessions.claim(SessionRequest(LIMITS))
        session.close(EndReason.IDLE)
        session.close()
        assert session.ended is EndReason.IDLE
        with pytest.raises(SandboxFailed, match="idle"):
            runner(session)("true")

    def test_sessions_share_nothing(self, sessions: Sessions) -> None:
        one, other = (sessions.claim(SessionRequest(LIMITS)) for _ in range(2))
        runner(one)("sh", "-c", "echo mine > mine.txt")
        assert runner(other)("ls").stdout == b""
        one.close()
        assert runner(other)("echo", "on").stdout == b"on\n"
        other.close()

    def test_no_descriptors_are_left(self, sessions: Sessions) -> None:
        sessions.claim(SessionRequest(LIMITS)).close()

        def use() -> None:
            for _ in range(3):
                session = sessions.claim(SessionRequest(LIMITS))
                runner(session)("sh", "-c", "sleep 100 & true")
                session.close()

        assert leaves_no_descriptors(use)


class SessionPythonContract(Asking):
    """Fresh and persistent cells."""

    def test_a_fresh_cell_is_like_a_file(self, python: Run) -> None:
        outcome = python(
            "import os, sys, threading\n"
            "print(__name__, os.path.exists(__file__), sys.argv == [__file__], threading.current_thread() is threading.main_thread())\n"
            "print(sorted(name for name in globals() if not name.startswith('__')))\n"
            "print(os.getcwd() == sys.path[0], sys.stdin.read() == '', __spec__)\n"
            "1 + 1"
        )
        assert outcome.stdout == b"__main__ True True True\n['os', 'sys', 'threading']\nTrue True None\n"
        assert (outcome.stderr, outcome.exit_code) == (b"", 0)

    def test_a_traceback_is_pythons_own(self, python: Run) -> None:
        outcome = python(
            "def divide(n):\n    return 1 / n\n\ntry:\n    divide(0)\nexcept ZeroDivisionError as error:\n"
            "    raise ValueError('no') from error"
        )
        text = outcome.stderr.decode()
        assert outcome.exit_code == 1
        assert text.startswith("Traceback (most recent call last):\n  File ")
        assert "    return 1 / n\n" in text
        assert "The above exception was the direct cause" in text
        assert text.endswith("ValueError: no\n")
        assert "dualtrack_inside" not in text
        assert "/run/dualtrack" not in text
        assert text.count(", line ") == 3

    def test_a_syntax_error(self, python: Run) -> None:
        outcome = python("x = 1\nif x\n  pass")
        text = outcome.stderr.decode()
        assert outcome.exit_code == 1
        assert text.lstrip().startswith("File ")
        assert "    if x\n" in text
        assert "SyntaxError" in text

    @pytest.mark.parametrize(
        ("source", "code", "stderr"),
        [
            ("import sys; sys.exit()", 0, b""),
            ("import sys; sys.exit(7)", 7, b""),
            ("import sys; sys.exit('why')", 1, b"why\n"),
            ("import os; print('lost', end=''); os._exit(9)", 9, b""),
            ("raise SystemExit(300)", 44, b""),
            ("raise KeyboardInterrupt", 1, None),
        ],
    )
    def test_exit_status(self, python: Run, source: str, code: int, stderr: bytes | None) -> None:
        outcome = python(source)
        assert (outcome.ended, outcome.exit_code) == (Ended.EXITED, code)
        assert stderr is None or outcome.stderr == stderr

    def test_input_is_at_its_end(self, python: Run) -> None:
        assert python("input('name? ')").stderr.endswith(b"EOFError: EOF when reading a line\n")

    def test_nothing_is_lost_at_the_end(self, python: Run, run: Run) -> None:
        """As at an interpreter's own end: threads, exit functions, files that were not closed, unflushed output."""
        outcome = python(
            "import atexit, ctypes, sys, threading, time\n"
            "class Noisy:\n"
            "  def __del__(self): print('finalised', flush=True)\n"
            "noisy = Noisy()\n"
            "left = open('left.txt', 'w'); left.write('all of it')\n"
            "atexit.register(print, 'exit function')\n"
            "printed = threading.Event()\n"
            "def later(): printed.wait(); time.sleep(0.3); print('thread')\n"
            "threading.Thread(target=later).start()\n"
            "ctypes.CDLL(None).printf(b'from C\\n')\n"
            "print('no newline', end=' ')\n"
            "printed.set()\n"
            "def user(): return left\n"
        )
        assert sorted(outcome.stdout.splitlines()) == sorted([b"no newline thread", b"exit function", b"finalised", b"from C"])
        assert (outcome.stderr, outcome.exit_code) == (b"", 0)
        assert run("cat", "left.txt").stdout == b"all of it"

    def test_a_daemon_thread_does_not_hold_it(self, python: Run) -> None:
        outcome = python("import threading, time\nthreading.Thread(target=time.sleep, args=(100,), daemon=True).start()")
        assert (outcome.ended, outcome.exit_code) == (Ended.EXITED, 0)

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_multiprocessing_and_pickle(self, python: Run, method: str) -> None:
        outcome = python(
            "import multiprocessing, pickle\n"
            "class Point:\n"
            "  def __init__(self, x): self.x = x\n"
            "def square(point): return Point(point.x ** 2)\n"
            "if __name__ == '__main__':\n"
            "  assert pickle.loads(pickle.dumps(Point(3))).x == 3\n"
            f"  with multiprocessing.get_context('{method}').Pool(2) as pool:\n"
            "    print([point.x for point in pool.map(square, [Point(2), Point(3)])])\n"
        )
        assert (outcome.stdout, outcome.stderr) == (b"[4, 9]\n", b"")

    def test_a_cell_that_forks(self, python: Run) -> None:
        source = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('child' if pid == 0 else 'parent')"
        for persistent in (False, True):
            assert python(source, persistent=persistent).stdout == b"child\nparent\n"

    def test_asyncio_subprocess_sqlite_and_threads(self, python: Run) -> None:
        outcome = python(
            "import asyncio, concurrent.futures, inspect, sqlite3, subprocess\n"
            "async def main():\n"
            "  process = await asyncio.create_subprocess_exec('echo', 'child', stdout=-1)\n"
            "  return (await process.communicate())[0]\n"
            "print(asyncio.run(main()), subprocess.run(['echo', 'x'], capture_output=True).stdout)\n"
            "with concurrent.futures.ThreadPoolExecutor() as pool: print(list(pool.map(abs, [-1, -2])))\n"
            "sqlite3.connect('x.db').execute('create table t (a)')\n"
            "print(inspect.getsource(main).splitlines()[0])\n"
        )
        assert outcome.stdout == b"b'child\\n' b'x\\n'\n[1, 2]\nasync def main():\n"
        assert outcome.stderr == b""

    def test_large_output_and_source(self, python: Run) -> None:
        outcome = python("x = '" + "y" * 300_000 + "'\nimport sys\nsys.stdout.write(x)\nsys.stderr.write('z' * 1000)", output_bytes=MIB)
        assert (len(outcome.stdout), len(outcome.stderr)) == (300_000, 1000)

    def test_text_of_any_kind(self, python: Run) -> None:
        assert python("print('é漢🎉', '\\udcff')").stdout == "é漢🎉 ".encode() + b"\xff\n"

    def test_random_numbers_differ(self, python: Run) -> None:
        source = "import random, uuid; print(random.random(), uuid.uuid4())"
        assert len({python(source).stdout for _ in range(3)}) == 3

    def test_nothing_of_the_agent_is_in_the_way(self, python: Run) -> None:
        assert (
            b"agent"
            not in python("import sys; print([path for path in sys.path if 'dualtrack/agent' in path or 'agent' in path[-6:]])").stdout
        )

    def test_modules_of_the_workspace(self, python: Run, run: Run) -> None:
        run("sh", "-c", "echo 'value = 5' > mine.py")
        assert python("import mine; print(mine.value)").stdout == b"5\n"
        run("rm", "mine.py")

    def test_fresh_cells_know_nothing_of_each_other(self, python: Run) -> None:
        python("kept = 1", persistent=True)
        python("own = 1")
        assert python("print('kept' in globals(), 'own' in globals())").stdout == b"False False\n"

    def test_state_is_kept(self, python: Run) -> None:
        python("import math\nx = 41\ndef plus(n): return x + n", persistent=True)
        assert python("plus(1)", persistent=True).stdout == b"42\n"
        assert python("print(math.floor(2.5)); _ + 1", persistent=True).stdout == b"2\n43\n"
        assert python("y = 1", persistent=True).stdout == b""
        assert python("None", persistent=True).stdout == b""

    def test_an_exception_keeps_the_state(self, python: Run) -> None:
        python("x = 1", persistent=True)
        outcome = python("x = 2\n1 / 0\nx = 3", persistent=True)
        assert (outcome.exit_code, outcome.note) == (1, "")
        assert outcome.stderr.count(b", line ") == 1
        assert python("x", persistent=True).stdout == b"2\n"

    @pytest.mark.parametrize("end", ["import sys; sys.exit(3)", "import os; os._exit(3)", "import os; os.kill(os.getpid(), 9)"])
    def test_an_end_of_the_interpreter_is_told(self, python: Run, end: str) -> None:
        python("x = 1", persistent=True)
        outcome = python(end, persistent=True)
        assert (outcome.exit_code, outcome.signal) in {(3, None), (None, 9)}
        outcome = python("x", persistent=True)
        assert b"NameError" in outcome.stderr
        assert outcome.note.startswith("new Python session")
        assert python("y = 2", persistent=True).note == ""

    @pytest.mark.parametrize("reopened", [False, True])
    def test_a_persistent_cell_that_closes_all_descriptors(self, python: Run, *, reopened: bool) -> None:
        python("x = 1", persistent=True)
        file = "mine = open('mine', 'w+'); assert mine.fileno() == 3" if reopened else ""
        outcome = python(f"import os\nos.closerange(3, 256)\n{file}", persistent=True)
        assert (outcome.exit_code, outcome.stderr) == (0, b"")
        outcome = python("import os; print('x' in globals(), os.path.exists('mine') and os.path.getsize('mine'))", persistent=True)
        assert outcome.stdout.split() == [b"False", b"0" if reopened else b"False"]
        assert "new Python session" in outcome.note
        python("import os\nif os.path.exists('mine'): os.remove('mine')")

    def test_persistent_cells_have_a_cpu_limit_each(self, python: Run) -> None:
        # Together more than the limit; each far below, as a kernel in user space needs processor time of its own.
        burn = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
        for _ in range(3):
            assert python(burn, persistent=True, cpu_time_s=1).exit_code == 0

    def test_output_of_a_persistent_thread_is_in_no_other_cell(self, python: Run) -> None:
        python(
            "import threading, time\nstop = threading.Event()\n"
            "def talk():\n  while not stop.wait(0.02): print('late', flush=True)\n"
            "thread = threading.Thread(target=talk, daemon=True); thread.start()",
            persistent=True,
        )
        time.sleep(0.2)
        assert python("print('fresh')").stdout == b"fresh\n"
        assert python("stop.set(); thread.join(); print('end')", persistent=True).stdout.endswith(b"end\n")
        assert python("print('own')", persistent=True).stdout == b"own\n"


class SessionLimitsContract(Asking):
    """Limits, the certain end, and what a hostile command may try against the agent."""

    others: ClassVar[int] = 0
    """Processes by which the limit may be off, where it is one of the user for all sandboxes together."""

    @pytest.fixture
    def counts_memory(self) -> bool:
        """Whether the kernel's count of kills for memory is known."""
        return True

    @pytest.fixture
    def counts_processes(self) -> bool:
        """Whether the kernel's count of refused forks is known."""
        return True

    def test_wall_time_ends_the_session(self, fresh: Session) -> None:
        marker = str(10**6 + secrets.randbelow(10**6))
        outcome = runner(fresh)("sh", "-c", f"trap '' TERM INT HUP; setsid sleep {marker} & sleep {marker}", wall_time_s=1)
        assert (outcome.ended, outcome.exit_code, outcome.note) == (Ended.WALL_TIME, None, "killed: wall time limit 1 s")
        assert fresh.ended is EndReason.LIMIT
        assert not host_processes(marker)
        with pytest.raises(SandboxFailed, match="limit"):
            runner(fresh)("true")

    @pytest.mark.parametrize("kind", ["command", "fresh", "persistent"])
    def test_cancel(self, fresh: Session, kind: str) -> None:
        marker = str(10**6 + secrets.randbelow(10**6))
        cancel = threading.Event()
        timer = threading.Timer(0.7, cancel.set)
        timer.start()
        started = time.monotonic()
        if kind == "command":
            outcome = runner(fresh)("sleep", marker, cancel=cancel, wall_time_s=90)
        else:
            source = f"import subprocess\nsubprocess.run(['sleep', '{marker}'])"
            outcome = python_runner(fresh)(source, persistent=kind == "persistent", cancel=cancel, wall_time_s=90)
        took = time.monotonic() - started
        timer.join()
        assert (outcome.ended, outcome.note, fresh.ended) == (Ended.CANCELLED, "killed: cancelled", EndReason.CANCELLED)
        assert took < PATIENCE_S
        assert not host_processes(marker)

    def test_cpu_time_of_one_process(self, fresh: Session) -> None:
        outcome = runner(fresh)("sh", "-c", "while :; do :; done", cpu_time_s=1)
        assert (outcome.ended, outcome.exit_code, outcome.note) == (Ended.CPU_TIME, None, "killed: CPU time limit 1 s")
        assert fresh.ended is EndReason.LIMIT

    def test_memory(self, fresh: Session, counts_memory: bool) -> None:
        outcome = python_runner(fresh)("x = b'x' * (900 << 20); print(len(x))")
        assert outcome.stdout == b""
        if counts_memory:
            assert (outcome.ended, outcome.exit_code, outcome.note) == (Ended.MEMORY, None, "killed: memory limit 512 MiB")
        else:
            assert (outcome.ended, outcome.exit_code) == (Ended.EXITED, 1)
            assert b"MemoryError" in outcome.stderr

    def test_memory_of_a_child_is_told(self, fresh: Session, counts_memory: bool) -> None:
        if not counts_memory:
            pytest.skip("nothing counts it")
        outcome = runner(fresh)("sh", "-c", "python3 -c \"x = b'x' * (900 << 20)\"; echo on")
        assert (outcome.ended, outcome.exit_code, outcome.stdout) == (Ended.EXITED, 0, b"on\n")
        assert outcome.note.startswith("reached: memory limit 512 MiB")
        assert runner(fresh)("echo", "alive").note == ""

    def test_processes_are_limited_and_told(self, fresh: Session, counts_processes: bool) -> None:
        source = (
            "import os, time\n"
            "n = 0\n"
            "try:\n"
            "  while n < 300:\n"
            "    if os.fork() == 0: time.sleep(60); os._exit(0)\n"
            "    n += 1\n"
            "except BlockingIOError: pass\n"
            "print(n)"
        )
        outcome = runner(fresh)("python3", "-I", "-c", source)
        assert 40 <= int(outcome.stdout) <= LIMITS.processes + self.others
        if counts_processes:
            assert outcome.note == "reached: process limit 64"
            assert outcome.reached == ("process limit 64",)
        outcome = runner(fresh)("true")
        assert outcome.ended in {Ended.PROCESSES, Ended.EXITED}
        if outcome.ended is Ended.PROCESSES:
            assert outcome.note == "not started: process limit 64"
            assert fresh.ended is EndReason.LIMIT

    def test_file_size(self, run: Run, python: Run) -> None:
        outcome = run("head", "-c", "3000000", "/dev/zero", file_bytes=MIB)
        assert outcome.exit_code == 0  # it wrote to a pipe
        outcome = run("dd", "if=/dev/zero", "of=big", "bs=1000000", "count=3", file_bytes=MIB)
        assert (outcome.ended, outcome.note) == (Ended.SIGNALLED, "killed: file size limit 1 MiB")
        assert run("sh", "-c", "wc -c < big; rm big").stdout.strip() == b"1048576"
        assert b"File too large" in python("open('big', 'wb').write(b'x' * 3_000_000)", file_bytes=MIB).stderr
        run("rm", "-f", "big")

    def test_open_files(self, python: Run, run: Run) -> None:
        source = "files = [open('/dev/null') for _ in range(100)]"
        assert b"Too many open files" in python(source, open_files=50).stderr
        assert b"Too many open files" in run("python3", "-I", "-c", source, open_files=50).stderr

    def test_disk(self, fresh: Session) -> None:
        script = "i=0; while true; do i=$((i+1)); head -c 4000000 /dev/zero > f$i; sleep 0.05; done"
        outcome = runner(fresh)("sh", "-c", script, disk_bytes=20 * MIB, wall_time_s=120)
        assert (outcome.ended, outcome.note) == (Ended.DISK, "killed: workspace limit 20 MiB")
        assert fresh.ended is EndReason.LIMIT

    def test_disk_between_two_commands(self, fresh: Session) -> None:
        script = "(i=0; while true; do i=$((i+1)); head -c 1000000 /dev/zero > f$i; sleep 0.05; done) > /dev/null 2>&1 &"
        assert runner(fresh)("sh", "-c", script, disk_bytes=20 * MIB).exit_code == 0
        deadline = time.monotonic() + PATIENCE_S
        while not (limit := fresh.overrun()) and time.monotonic() < deadline:
            assert fresh.ended is None
            time.sleep(0.2)
        assert limit == "killed: workspace limit 20 MiB"

    def test_flood(self, fresh: Session) -> None:
        outcome = runner(fresh)("sh", "-c", "yes; echo never", output_bytes=4 * KIB)
        assert outcome.ended is Ended.OUTPUT
        assert len(outcome.stdout) == 4 * KIB
        assert fresh.ended is EndReason.LIMIT

    def test_closed_by_another_thread_while_it_runs(self, sessions: Sessions) -> None:
        session = sessions.claim(SessionRequest(LIMITS))
        timer = threading.Timer(0.5, session.close, (EndReason.SHUTDOWN,))
        timer.start()
        started = time.monotonic()
        with pytest.raises(SandboxFailed):
            runner(session)("sleep", "100", wall_time_s=90)
        assert time.monotonic() - started < PATIENCE_S
        timer.join()
        assert session.ended is EndReason.SHUTDOWN

    @pytest.mark.parametrize("attack", ["kill -KILL $PPID", "kill -STOP $PPID", "kill -KILL -1", "kill -STOP -1; sleep 100"])
    def test_the_agent_under_attack(self, sessions: Sessions, attack: str) -> None:
        """Where it can be reached at all. It may cost the session, in time, and nothing else."""
        if "-1" in attack and not self.own_processes:
            pytest.skip("there is no pid namespace: it would reach this test as well")
        session = sessions.claim(SessionRequest(LIMITS))
        started = time.monotonic()
        with contextlib.suppress(SandboxFailed):
            runner(session)("sh", "-c", f"{attack}; sleep 100", wall_time_s=2)
            assert session.ended is EndReason.LIMIT
        assert session.ended in {EndReason.LIMIT, EndReason.BROKEN}
        session.close()
        assert time.monotonic() - started < PATIENCE_S

    own_processes = True
    """Whether it has a pid namespace of its own."""
    agent_is_init = True
    """Whether the agent is the first process of that."""

    def test_a_kill_of_all_processes_is_survived(self, fresh: Session) -> None:
        """Where the agent is the first process of its namespace it can't be killed from inside; its helpers are started again."""
        if not self.agent_is_init:
            pytest.skip("the agent can be killed from inside")
        python = python_runner(fresh)
        python("x = 1", persistent=True)
        runner(fresh)("sh", "-c", "kill -KILL -1; kill -STOP -1; kill -TERM 1; kill -KILL 1; sleep 0.2")
        assert python("print('fresh')").stdout == b"fresh\n"
        outcome = python("print('x' in globals())", persistent=True)
        assert outcome.stdout == b"False\n"
        assert outcome.note.startswith("new Python session")
        assert runner(fresh)("echo", "on").stdout == b"on\n"

    def test_a_polite_kill_does_not_reach_the_agent(self, fresh: Session) -> None:
        run = runner(fresh)
        for number in ("HUP", "INT", "TERM", "USR1"):
            run("sh", "-c", f"kill -{number} $PPID")
        assert run("echo", "alive").stdout == b"alive\n"

    def test_nothing_of_the_agent_can_be_reached_through_proc(self, fresh: Session) -> None:
        outcome = runner(fresh)("sh", "-c", "ls -l /proc/$PPID/fd; cat /proc/$PPID/environ; head -c 10 /proc/$PPID/mem")
        assert outcome.stdout == b""
