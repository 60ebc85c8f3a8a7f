"""Sandboxes: claim to first output of Python, warm and cold, and claims per second, for each rung this machine has.

Beside them, in the same run and by turns: a bare `python3 -c` without any sandbox. Then sessions in a row and at once, with what is left of
them counted (exit status 1 for a leak).
"""

import argparse
import gc
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.factory import examine, open_rung
from dualtrack.sandbox.pool import SessionPool
from dualtrack.sandbox.port import Command
from dualtrack.sandbox.rung import RungName
from dualtrack.sandbox.sandboxes import Sandboxes
from dualtrack.sandbox.sessions import PythonCell, Session, SessionRequest, Start
from dualtrack.settings import SandboxSettings

_PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or "python3"
_THREADS = 8
_ROW_MEMORY_BYTES = 24 * 1024**2
"""Growth of this process's memory that is no leak: what the allocator keeps and what is loaded at the first use of something."""
_SETTLE_S = 20.0
_GOAL_RATIO, _GOAL_P99 = 0.5, 4.0

Figures = dict[str, float]


def bare() -> float:
    """Seconds to the first byte of Python without a sandbox."""
    started = time.perf_counter()
    with subprocess.Popen([_PYTHON, "-c", "print(1)"], stdout=subprocess.PIPE, env={"PATH": "/usr/bin:/bin"}) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        took = time.perf_counter() - started
        process.stdout.read()
    return took


def first_output(pool: SessionPool, request: SessionRequest, start: Start, run: Callable[[Session, Callable[..., None]], object]) -> float:
    """Seconds from the claim to the first byte."""
    seen: list[float] = []
    started = time.perf_counter()
    session = pool.claim(request)
    run(session, lambda *_: seen.append(time.perf_counter()))
    session.close()
    if session.start is not start:
        raise AssertionError(f"the claim was {session.start.value}, not {start.value}")
    return seen[0] - started


def cell(limits: SandboxLimits, session: Session, sink: Callable[..., None]) -> None:
    session.python(PythonCell("print(1)"), limits, threading.Event(), sink)


def shell(limits: SandboxLimits, session: Session, sink: Callable[..., None]) -> None:
    session.run(Command(("sh", "-c", "echo 1")), limits, threading.Event(), sink)


def _await_warm(pool: SessionPool, count: int = 1) -> None:
    deadline = time.monotonic() + 120
    while pool.warm("default") < count:
        if time.monotonic() > deadline:
            raise AssertionError("the pool is not warm after 120 s")
        time.sleep(0.002)
    time.sleep(0.02)  # what started it has come to rest


@contextmanager
def opened(rung: RungName, workspaces: Path, limits: SandboxLimits, **settings: object) -> Iterator[Sandboxes]:
    chosen = SandboxSettings.model_validate({"workspaces": workspaces, "driver": rung.value, **settings})
    with Sandboxes(partial(open_rung, rung, chosen, limits), chosen, limits) as found:
        yield found


def latency(rung: RungName, workspaces: Path, limits: SandboxLimits, rounds: int) -> dict[str, list[float]]:
    """Samples by turns: bare, a warm Python cell, a warm shell command, and for every fifth of them a cold start."""
    samples: dict[str, list[float]] = {"bare": [], "warm": [], "shell": [], "cold": []}
    request = SessionRequest(limits)
    with opened(rung, workspaces, limits, pool_min=2, pool_max=2) as warm, opened(rung, workspaces, limits, pool_max=0) as cold:
        for number in range(rounds + 2):
            taken = {}
            _await_warm(warm.pool, 2)
            taken["bare"] = bare()
            taken["warm"] = first_output(warm.pool, request, Start.WARM, partial(cell, limits))
            _await_warm(warm.pool, 2)
            taken["shell"] = first_output(warm.pool, request, Start.WARM, partial(shell, limits))
            if number % 5 == 0:
                _await_warm(warm.pool, 2)
                taken["cold"] = first_output(cold.pool, request, Start.COLD, partial(cell, limits))
            if number >= 2:  # the first are warm-up
                for name, seconds in taken.items():
                    samples[name].append(seconds)
    return samples


def throughput(work: Callable[[], object], each: int) -> float:
    """Times a second that 8 threads get it done together."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for _ in range(each):
                work()
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(_THREADS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return _THREADS * each / (time.perf_counter() - started)


def burst(rung: RungName, workspaces: Path, limits: SandboxLimits, count: int) -> float:
    """Claims to first output a second, by 8 threads, while all find a warm one."""
    many = limits.model_copy(update={"sessions": 2 * count + 16})
    held: list[Session] = []
    with opened(rung, workspaces, many, pool_min=count, pool_max=count, pool_starters=4) as sandboxes:
        _await_warm(sandboxes.pool, count)

        def claim() -> None:
            session = sandboxes.pool.claim(SessionRequest(many))
            assert session.start is Start.WARM, session.start
            session.python(PythonCell("print(1)"), many, threading.Event())
            held.append(session)

        found = throughput(claim, count // _THREADS)
        for session in held:
            session.close()
    return found


def left(workspaces: Path) -> dict[str, int]:
    """What there is of this process: processes below it, its threads, descriptors and memory, mounts, control groups, directories."""
    gc.collect()
    own = psutil.Process()
    below = own.children(recursive=True)
    groups = [path for path in Path("/sys/fs/cgroup").rglob("dualtrack-*") if f"-{os.getpid()}-" in path.name]
    return {
        "processes": len(below),
        "threads": own.num_threads(),
        "descriptors": own.num_fds() + sum(child.num_fds() for child in below),
        "memory": own.memory_info().rss,
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "groups": len(groups),
        "directories": sum(1 for _ in workspaces.glob("*-*/slots/*")),
    }


def leaks(rung: RungName, workspaces: Path, limits: SandboxLimits, in_a_row: int, at_once: int) -> tuple[dict[str, object], list[str]]:
    """What was there before and after, and a line for each leak."""
    many = limits.model_copy(update={"sessions": at_once + 16})
    request = SessionRequest(many)
    with opened(rung, workspaces, many, pool_min=2, pool_max=2, pool_starters=4) as sandboxes:
        pool = sandboxes.pool

        def once() -> None:
            session = pool.claim(request)
            outcome = session.python(PythonCell("print(1)"), many, threading.Event())
            assert outcome.stdout == b"1\n", outcome
            session.close()

        for _ in range(20):
            once()
        _await_warm(pool, 2)
        before = left(workspaces)
        started = time.perf_counter()
        for _ in range(in_a_row):
            once()
        row_s = time.perf_counter() - started
        after_row = _settled(pool, workspaces, before)
        started = time.perf_counter()
        sessions = _claim_at_once(pool, request, at_once)
        claimed_s = time.perf_counter() - started
        peak = left(workspaces)
        for session in sessions:
            session.close()
        del sessions
        after = _settled(pool, workspaces, before)
    gone = left(workspaces)
    problems = [
        f"{rung.value}: {name} were {before[name]} before, {found[name]} {when}"
        for when, found in ((f"after {in_a_row} in a row", after_row), (f"after {at_once} at once", after))
        for name in before
        if found[name] > before[name] + (_ROW_MEMORY_BYTES if name == "memory" else 0)
    ]
    problems += [f"{rung.value}: {gone[name]} {name} are left at the end" for name in ("groups", "directories") if gone[name]]
    figures = {"in_a_row": in_a_row, "per_s": round(in_a_row / row_s, 1), "at_once": at_once, "claimed_in_s": round(claimed_s, 1)}
    return figures | {"before": before, "after_row": after_row, "peak": peak, "after": after}, problems


def _claim_at_once(pool: SessionPool, request: SessionRequest, count: int) -> list[Session]:
    sessions: list[Session] = []
    lock = threading.Lock()

    def claim() -> None:
        for _ in range(count // _THREADS):
            session = pool.claim(request)
            with lock:
                sessions.append(session)

    threads = [threading.Thread(target=claim) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({session.id for session in sessions}) == count // _THREADS * _THREADS
    return sessions


def _settled(pool: SessionPool, workspaces: Path, before: dict[str, int]) -> dict[str, int]:
    """What is left once nothing more ends."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        _await_warm(pool, 2)
        found = left(workspaces)
        if all(found[name] <= before[name] for name in found if name != "memory") or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def _quantiles(samples: list[float]) -> Figures:
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    return {"p50": cuts[49] * 1000, "p95": cuts[94] * 1000, "p99": cuts[98] * 1000}


def _show(title: str, samples: list[float], per_s: float | None = None) -> Figures:
    found = _quantiles(samples)
    rate = f"{per_s:8.1f}" if per_s is not None else ""
    print(f"  {title:<42} {found['p50']:8.2f} {found['p95']:8.2f} {found['p99']:8.2f} {rate}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rung", action="append", choices=[name.value for name in RungName], help="only this one (repeatable); else all")
    parser.add_argument("--rounds", type=int, default=200, help="samples of each kind on a quick rung; a tenth on docker and gvisor")
    parser.add_argument("--row", type=int, default=1000, help="sessions in a row; a tenth on docker and gvisor")
    parser.add_argument("--at-once", type=int, default=200, help="sessions at once; a tenth on docker and gvisor")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # what a machine does not give a rung is the doctor's to tell
    limits = SandboxLimits()
    ratios: dict[str, object] = {}
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="dualtrack-bench-") as folder:
        Path(folder).chmod(0o711)
        workspaces = Path(folder) / "workspaces"
        chosen = [RungName(name) for name in options.rung] if options.rung else list(RungName)
        settings = SandboxSettings(workspaces=workspaces)
        print(f"  {'ms':<42} {'p50':>8} {'p95':>8} {'p99':>8} {'a second':>8}")
        for report in examine(settings, limits, chosen):
            rung = report.rung
            if not report.works:
                print(f"{rung.value}: not on this machine ({report.problem.splitlines()[0][:120]})")
                continue
            slow = rung in {RungName.DOCKER, RungName.GVISOR, RungName.KUBERNETES}
            share = 10 if slow else 1
            print(rung.value)
            samples = latency(rung, workspaces, limits, max(10, options.rounds // share))
            with opened(rung, workspaces, limits, pool_min=8, pool_max=16, pool_starters=2) as busy:
                request = SessionRequest(limits)

                def once(pool: SessionPool = busy.pool, request: SessionRequest = request) -> None:
                    session = pool.claim(request)
                    session.python(PythonCell("print(1)"), limits, threading.Event())
                    session.close()

                _await_warm(busy.pool, 8)
                claims_per_s = throughput(once, max(2, options.rounds // 10 // share))
            warm_per_s = burst(rung, workspaces, limits, 16 if slow else 64)
            bare_per_s = throughput(bare, 25)
            plain = _show("bare python3 -c, no sandbox", samples["bare"], bare_per_s)
            warm = _show("claim, warm, to first output of Python", samples["warm"], warm_per_s)
            _show("claim, warm, to first output of a shell", samples["shell"])
            cold = _show("claim, cold, to first output of Python", samples["cold"])
            print(
                f"  claims a second from 8 threads: {warm_per_s:.1f} of warm ones, {claims_per_s:.1f} lasting, each with its start and end"
            )
            found, leaked = leaks(rung, workspaces, limits, max(20, options.row // share), max(8, options.at_once // share))
            print(f"  {json.dumps(found)}")
            problems += leaked
            ratios[rung.value] = {
                "warm_p50_to_bare": round(warm["p50"] / plain["p50"], 3),
                "warm_p99_to_p50": round(warm["p99"] / warm["p50"], 2),
                "warm_p99_to_bare_p99": round(warm["p99"] / plain["p99"], 3),
                "bare_p99_to_p50": round(plain["p99"] / plain["p50"], 2),
                "cold_p50_to_bare": round(cold["p50"] / plain["p50"], 2),
                "warm_claims_per_s_to_bare": round(warm_per_s / bare_per_s, 3),
                "lasting_claims_per_s_to_bare": round(claims_per_s / bare_per_s, 3),
                "leaks": len(leaked),
            }
            if rung is RungName.BUBBLEWRAP:
                met = warm["p50"] <= _GOAL_RATIO * plain["p50"] and warm["p99"] < _GOAL_P99 * warm["p50"]
                print(f"  goal (warm p50 at most {_GOAL_RATIO} x bare, p99 under {_GOAL_P99:g} x p50): {'met' if met else 'MISSED'}")
    for problem in problems:
        print(f"leak: {problem}")
    print(json.dumps(ratios))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
