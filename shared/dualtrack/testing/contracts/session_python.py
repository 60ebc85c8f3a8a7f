"""What every session does with Python, whatever isolates it."""

from __future__ import annotations

import time

import pytest

from dualtrack.domain.limits import MIB
from dualtrack.sandbox.port import Ended
from dualtrack.testing.contracts.sessions import Asking, Run


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
