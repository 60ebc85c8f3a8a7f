"""Running attempts on a ground, and what became of each."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.limits import MIB, SandboxLimits
from dualtrack.objects.nofollow import DIRECTORY_FLAGS, opened
from dualtrack.objects.trees import empty
from dualtrack.sandbox.port import Ended, Outcome
from dualtrack.testing.escapes import inside
from dualtrack.testing.escapes.attempt import Attempt, Evidence, Kind, Said
from dualtrack.testing.escapes.bombs import LIMITS
from dualtrack.testing.escapes.collect import Collector, collect
from dualtrack.testing.escapes.ground import Ground
from dualtrack.testing.escapes.host import Host
from dualtrack.testing.escapes.leftovers import wants_marker
from dualtrack.testing.escapes.processes import wants_witness

BATCH_LIMITS: Final = SandboxLimits(wall_time_s=240, cpu_time_s=120, memory_bytes=512 * MIB, processes=96, output_bytes=8 * MIB)
"""Of the run in which all attempts go that do not need a sandbox of their own."""
_PATIENCE_S: Final = 8.0
_SOURCE: Final = Path(inside.__file__).read_text()


@dataclass(frozen=True, slots=True)
class Result:
    """One attempt on one ground."""

    attempt: str
    proof: str
    """What shows that it worked; empty: it did not."""
    said: Said
    detail: str
    """Why it did not work, as far as the code inside knows."""


def run(
    ground: Ground,
    attempts: Sequence[Attempt],
    uid: int,
    *,
    collector: Collector = collect,
    done: Callable[[Result], None] = lambda _: None,
) -> dict[str, Result]:
    """Run attempts on a ground against a host of their own.

    Args:
        ground: where.
        attempts: which; those that may share a sandbox do.
        uid: the user that sandboxes run as on this machine.
        collector: reads what attempts about results have left.
        done: called with each result as it is known.

    Raises:
        SandboxFailed: not even ordinary work can be done there.
    """
    results: dict[str, Result] = {}
    with Host(uid) as host:
        _prove(ground, host)
        shared = [attempt for attempt in attempts if not attempt.alone]
        missing = list(shared)
        if len(shared) > 1:
            with _workspace(uid) as workspace:
                outcome = _run(ground, shared, host, workspace, BATCH_LIMITS)
                reports = _reports(outcome.stdout)
                left = _left(workspace)
                for attempt in shared:
                    if attempt.name in reports:
                        results[attempt.name] = _judge(attempt, Evidence(attempt.name, *reports[attempt.name], host, outcome, left))
                        done(results[attempt.name])
            missing = [attempt for attempt in shared if attempt.name not in reports]  # one of them has ended the sandbox
        for attempt in [*missing, *(attempt for attempt in attempts if attempt.alone)]:
            results[attempt.name] = _run_alone(ground, attempt, host, collector)
            done(results[attempt.name])
    return results


def _run_alone(ground: Ground, attempt: Attempt, host: Host, collector: Collector) -> Result:
    with _workspace(host.uid) as workspace:
        outcome = _run(ground, [attempt], host, workspace, LIMITS.model_copy(update=dict(attempt.limits)))
        said, detail, output = _reports(outcome.stdout).get(attempt.name) or (Said.LOST, _end(outcome), "")
        output += outcome.stdout.decode(errors="replace")[-4000:]
        collected = collector(workspace) if attempt.kind is Kind.RESULTS else None
        left = _left(workspace) if workspace.exists() else {}
        try:
            return _judge(attempt, Evidence(attempt.name, said, detail, output, host, outcome, left, collected))
        finally:
            host.tidy(attempt.name)


def _prove(ground: Ground, host: Host) -> None:
    """Where nothing runs at all, nothing is blocked. Raises `SandboxFailed`."""
    attempt = Attempt("ordinary-work", Kind.FILES, "write and read a file of its own", "open('x', 'w').write('x')\nos.unlink('x')")
    with _workspace(host.uid) as workspace:
        outcome = _run(ground, [attempt], host, workspace, LIMITS)
    said, detail, _ = _reports(outcome.stdout).get(attempt.name, (Said.LOST, _end(outcome), ""))
    if said is not Said.WORKED:
        raise SandboxFailed(f"Ordinary work fails here, so that nothing can be said of escapes: {detail} {outcome.stderr[-500:]!r}")


def _run(ground: Ground, attempts: Sequence[Attempt], host: Host, workspace: Path, limits: SandboxLimits) -> Outcome:
    facts = host.facts(
        witnesses=[attempt.name for attempt in attempts if wants_witness(attempt)],
        markers=[attempt.name for attempt in attempts if wants_marker(attempt)],
    )
    order = {
        "host": facts | {"workspace": str(workspace)},
        "attempts": [{"name": attempt.name, "source": attempt.source} for attempt in attempts],
        "patience_s": _PATIENCE_S,
    }
    started = time.monotonic()
    try:
        return ground.run(_SOURCE, json.dumps(order).encode(), workspace, limits)
    except SandboxFailed as error:  # an attempt has broken its sandbox
        return Outcome(Ended.SIGNALLED, None, None, b"", b"", 0, 0, time.monotonic() - started, error.message)


def _judge(attempt: Attempt, evidence: Evidence) -> Result:
    proof = "" if evidence.said is Said.BROKEN else attempt.proof(evidence)
    return Result(attempt.name, proof, evidence.said, evidence.detail)


def _reports(output: bytes) -> dict[str, tuple[Said, str, str]]:
    found = {}
    for line in output.decode(errors="replace").splitlines():
        if line.startswith(inside.MARK):
            with contextlib.suppress(ValueError):
                report: dict[str, Any] = json.loads(line[len(inside.MARK) :])
                found[report["name"]] = (Said(report["said"]), report["detail"], report["output"])
    return found


def _end(outcome: Outcome) -> str:
    return outcome.note or (f"its process ended with status {outcome.exit_code}")


def _left(workspace: Path) -> dict[str, str]:
    """What is in the workspace, at its top."""
    found = {}
    with os.scandir(workspace) as listing:
        for item in listing:
            status = item.stat(follow_symlinks=False)
            if status.st_mode & (stat.S_ISUID | stat.S_ISGID) and not stat.S_ISLNK(status.st_mode):
                found[item.name] = "setid"
            elif stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode):
                found[item.name] = "device"
            elif stat.S_ISREG(status.st_mode) and "security.capability" in os.listxattr(item.path, follow_symlinks=False):
                found[item.name] = "capable"
            else:
                found[item.name] = "root's" if status.st_uid == 0 else "ordinary"
    return found


@contextlib.contextmanager
def _workspace(uid: int) -> Iterator[Path]:
    """An empty workspace that this user may use."""
    directory = Path(tempfile.mkdtemp(prefix="dualtrack-escapes-ws-", dir="/var/tmp"))
    try:
        directory.chmod(0o711)
        workspace = directory / "workspace"
        workspace.mkdir(mode=0o755)
        if os.geteuid() == 0:
            os.chown(workspace, uid, uid)
        yield workspace
    finally:
        with opened(directory, DIRECTORY_FLAGS) as top:
            empty(top)
        directory.rmdir()
