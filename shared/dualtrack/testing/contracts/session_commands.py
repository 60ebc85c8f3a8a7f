"""What every session does with commands, whatever isolates it."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time

import pytest

from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.limits import MIB
from dualtrack.sandbox.port import Ended
from dualtrack.sandbox.sessions import Channel, EndReason, Session, SessionRequest, Sessions
from dualtrack.testing.contracts.sandbox import leaves_no_descriptors
from dualtrack.testing.contracts.sessions import LIMITS, Asking, Run, python_runner, runner
from dualtrack.testing.sandbox import sandbox_workspace
from dualtrack.testing.waiting import wait_until


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
