"""`make sandbox-hostile`: minutes of bombs, floods, orphans and executors killed with -9, beside well-behaved work; status 1 if that was
disturbed or anything is left on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dualtrack.sandbox.factory import configured
from dualtrack.settings import SandboxSettings
from dualtrack.testing.hostile.inventory import differences, inventory
from dualtrack.testing.hostile.tally import Tally, end_in_order
from dualtrack.testing.hostile.worker import Job

_FIRST_UID: Final = 200_000
_UIDS: Final = 100_000
_START_S: Final = 120.0
_END_S: Final = 120.0
_SHORTEST_LIFE_S: Final = 2.0
_LONGEST_LIFE_S: Final = 25.0
_PROGRESS_S: Final = 15.0
_SETTLE_S: Final = 10.0
_SLACK: Final = 12
"""Descriptors of one sandbox that is being started while they are counted."""


class Mix:
    """The run: one executor that is never killed and does well-behaved work, one that is attacked from inside and killed at random."""

    def __init__(self, driver: str, folder: Path, seed: int, threads: int) -> None:
        self.uid = _FIRST_UID + secrets.randbelow(_UIDS) if os.geteuid() == 0 else os.getuid()
        self.folder = folder
        self.tally = Tally()
        self.executors: list[int] = []
        self.kills = 0
        self._driver = driver
        self._seed = seed
        self._threads = threads
        self._readers: list[threading.Thread] = []

    def start(self, name: str, *, hostile: int, good: int) -> subprocess.Popen[str]:
        """A worker that is ready. Raises `RuntimeError` where it does not get so."""
        job = Job(
            driver=self._driver,
            workspaces=self.folder,
            uid=self.uid,
            seed=self._seed + len(self.executors),
            hostile=hostile,
            good=good,
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "dualtrack.testing.hostile.worker", job.model_dump_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.executors.append(process.pid)
        started = threading.Event()
        reader = threading.Thread(target=self.tally.follow, args=(name, process.stdout, started), daemon=True)
        reader.start()
        self._readers.append(reader)
        deadline = time.monotonic() + _START_S
        while not started.wait(0.1):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise RuntimeError(f"the executor {name} did not start (status {process.wait()})")
        return process

    def run(self, steady: subprocess.Popen[str], seconds: float) -> None:
        """Attack and kill until the time is over."""
        chance = random.Random(self._seed)
        end = time.monotonic() + seconds
        said = time.monotonic()
        while time.monotonic() < end:
            victim = self.start("beside attacks", hostile=self._threads, good=1)
            dies = min(end, time.monotonic() + chance.uniform(_SHORTEST_LIFE_S, _LONGEST_LIFE_S))
            while time.monotonic() < dies:
                time.sleep(min(0.5, max(0.0, dies - time.monotonic())))
                if victim.poll() is not None:
                    self._problem(f"an executor ended by itself (status {victim.returncode})")
                    break
                if steady.poll() is not None:
                    self._problem(f"the steady executor ended (status {steady.returncode})")
                    return
                if time.monotonic() - said > _PROGRESS_S:
                    said = time.monotonic()
                    print(self.progress(end - time.monotonic()), flush=True)
            victim.kill()
            victim.wait()
            self.kills += 1

    def progress(self, left: float) -> str:
        """One line."""
        with self.tally.lock:
            attacks, good = sum(self.tally.attacks.values()), sum(map(len, self.tally.good.values()))
            wrong = len(self.tally.problems)
        return f"{left:5.0f} s left: {attacks} attacks, {self.kills} executors killed, {good} well-behaved runs finished, {wrong} disturbed"

    def _problem(self, text: str) -> None:
        with self.tally.lock:
            self.tally.problems.append(text)


def main() -> int:
    """The command; the exit status."""
    options = _options()
    driver = options.rung or configured(SandboxSettings()).value
    began = time.monotonic()
    with _folder() as folder:
        mix = Mix(driver, folder, options.seed, options.threads)
        print(f"rung {driver}, seed {options.seed}, {options.minutes:g} minutes, {options.threads} hostile threads", flush=True)
        end_in_order(mix.start("first", hostile=0, good=0), _END_S)  # makes what is kept on purpose
        before_steady = inventory(folder, mix.uid, mix.executors, os.getpid())
        steady = mix.start("undisturbed executor", hostile=0, good=1)
        _await_work(mix)
        descriptors = _descriptors(steady.pid)
        mix.run(steady, options.minutes * 60)
        after_descriptors = _descriptors(steady.pid)
        if after_descriptors > descriptors + _SLACK:
            mix.tally.problems.append(f"the undisturbed executor has {after_descriptors} descriptors open; it had {descriptors}")
        if not end_in_order(steady, _END_S):
            mix.tally.problems.append("the steady executor did not end in order")
        end_in_order(mix.start("last", hostile=0, good=0), _END_S)  # its start removes what the killed ones have left
        left = _settled(mix, before_steady)
    result = _result(mix, left, {"descriptors at the start": descriptors, "descriptors at the end": after_descriptors})
    print(_text(mix, left, descriptors, after_descriptors, time.monotonic() - began))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if left or mix.tally.problems or not mix.tally.good.get("undisturbed executor") else 0


def _await_work(mix: Mix) -> None:
    """Until the steady executor has done some work: only then all it keeps open is open."""
    deadline = time.monotonic() + _START_S
    while len(mix.tally.good.get("undisturbed executor", [])) < 5 and time.monotonic() < deadline:
        time.sleep(0.1)


def _descriptors(pid: int) -> int:
    """Open descriptors of a process, the fewest in a moment: a run under way has some."""
    counts = []
    for _ in range(20):
        with contextlib.suppress(OSError):
            counts.append(len(list(Path(f"/proc/{pid}/fd").iterdir())))
        time.sleep(0.05)
    return min(counts, default=-1)


def _settled(mix: Mix, before: dict[str, list[str]]) -> dict[str, list[str]]:
    """What differs from before, after a moment for the kernel to finish what was ended."""
    deadline = time.monotonic() + _SETTLE_S
    while left := differences(before, inventory(mix.folder, mix.uid, mix.executors, os.getpid())):
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    left.pop("descriptors", None)  # of this process, which holds the pipes of its executors
    return left


def _text(mix: Mix, left: dict[str, list[str]], descriptors: int, after: int, seconds: float) -> str:
    tally = mix.tally
    lines = [
        "",
        f"{sum(tally.attacks.values())} attacks by {len(tally.attacks)} programs in {seconds:.0f} s, {mix.kills} executors killed with -9",
    ]
    lines.append("  ended by: " + ", ".join(f"{reason} {count}" for reason, count in tally.ends.most_common()))
    lines.append(f"  {'well-behaved work':<24}{'finished':>10}{'p50':>9}{'p99':>9}{'longest':>9}")
    for worker, times in tally.good.items():
        p50, p99 = tally.percentile(worker, 50), tally.percentile(worker, 99)
        lines.append(f"  {worker:<24}{len(times):>10}{p50:>7.2f} s{p99:>7.2f} s{max(times):>7.2f} s")
    lines.append(f"  descriptors of the undisturbed executor: {descriptors} at its start, {after} at its end")
    lines += [f"!! {problem}" for problem in tally.problems[:20]]
    for kind, changes in left.items():
        lines += [f"!! {kind}: {change}" for change in changes[:20]]
    if not left:
        lines.append(
            "  left on the machine: nothing (processes, mounts, control groups, sockets, System V objects, temporary files, directories)"
        )
    lines.append("the machine is as it was, no work was disturbed" if not left and not tally.problems else "FAILED")
    return "\n".join(lines)


def _result(mix: Mix, left: dict[str, list[str]], more: dict[str, Any]) -> dict[str, Any]:
    good = {worker: {"finished": len(times), "longest_s": max(times)} for worker, times in mix.tally.good.items()}
    return {
        "attacks": mix.tally.attacks,
        "ends": mix.tally.ends,
        "kills": mix.kills,
        "good": good,
        "problems": mix.tally.problems,
        "left": left,
        **more,
    }


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Workspaces of this run alone, which the sandbox's user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="dualtrack-hostile-", dir="/var/tmp"))
    folder.chmod(0o711)
    try:
        yield folder / "workspaces"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dualtrack.testing.hostile", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="of programs and kills (default 1)")
    parser.add_argument("--threads", type=int, default=2, help="hostile programs at once (default 2)")
    parser.add_argument("--rung", help="default: the one that is configured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
