"""What workers have told, counted."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import IO, Final

_PERCENT: Final = 100


@dataclass(slots=True)
class Tally:
    """Thread-safe through its lock; filled by the readers of workers' output."""

    attacks: Counter[str] = field(default_factory=Counter)
    """By program."""
    ends: Counter[str] = field(default_factory=Counter)
    """Why hostile programs ended."""
    good: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of each well-behaved run, by worker."""
    problems: list[str] = field(default_factory=list)
    """Well-behaved runs that went wrong, and executors that ended by themselves."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def follow(self, worker: str, stream: IO[str], started: threading.Event) -> None:
        """Count what a worker prints, to its end."""
        for line in stream:
            try:
                told = json.loads(line)
            except ValueError:  # cut off by the kill
                continue
            with self.lock:
                if told["kind"] == "started":
                    started.set()
                elif told["kind"] == "hostile":
                    self.attacks[told["name"]] += 1
                    self.ends[told["ended"]] += 1
                else:
                    self.good.setdefault(worker, []).append(told["s"])
                    if told["problem"]:
                        self.problems.append(f"{worker}: {told['problem']}")

    def percentile(self, worker: str, percent: int) -> float:
        """Seconds of that worker's well-behaved runs."""
        times = sorted(self.good.get(worker, []))
        return times[min(len(times) - 1, len(times) * percent // _PERCENT)] if times else float("nan")


def end_in_order(process: subprocess.Popen[str], seconds: float) -> bool:
    """End a worker by closing its standard input; whether it did in time (else it is killed)."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
