"""How a peer is told to run jobs: a line `JOBS STEPS` on its standard input, a line of JSON back."""

import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence

Times = dict[str, list[float]]
"""Per job: when each of its decisions was durable, in seconds on any one clock."""


def gaps_ms(decisions: Iterable[Sequence[float]]) -> list[float]:
    """Milliseconds from each decision of a job to its next one, sorted."""
    return sorted((later - earlier) * 1000 for times in decisions for earlier, later in itertools.pairwise(times))


def summary(decisions: Iterable[Sequence[float]], jobs: int, steps: int, took_s: float) -> dict[str, float]:
    """What a run is judged by."""
    gaps = gaps_ms(decisions)
    return {"p50_ms": statistics.median(gaps), "p95_ms": gaps[int(len(gaps) * 0.95)], "steps_per_s": jobs * steps / took_s}


def serve(run: Callable[[int, int], dict[str, float]]) -> None:
    """Announce readiness, then run jobs as told until the input ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        jobs, steps = map(int, line.split())
        print(json.dumps(run(jobs, steps)), flush=True)
