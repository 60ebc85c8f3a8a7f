"""A job that goes on on the same executor finds its files in place: nothing is fetched, nothing read, nothing stored that is there."""

from __future__ import annotations

from contextlib import AbstractContextManager
from os import stat_result

import pytest

from dualtrack.domain.lifecycle import JobStatus
from dualtrack.objects import trees
from dualtrack.testing.objects import MemoryStore

from .conftest import Make, finish, python, shell

FILL = "import os\nfor n in range(1200): os.makedirs(f'd{n // 50}', exist_ok=True); open(f'd{n // 50}/{n}', 'w').write(f'{n} x')"
SETTLE = shell("sleep 0.05")  # what was written before lies in an earlier tick of the file clock


def test_what_is_in_place_is_only_looked_at(make: Make, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = trees.regular_file

    def noting(parent: int, name: str) -> AbstractContextManager[tuple[int, stat_result]]:
        opened.append(name)
        return real(parent, name)

    monkeypatch.setattr(trees, "regular_file", noting)
    stepper = make([python(FILL), SETTLE, shell("echo one > d3/one"), shell("cat d3/one"), finish()])
    job = stepper.run(stepper.submit())
    assert job.status is JobStatus.SUCCEEDED
    assert len(opened) <= 2 * 1200 + 2, "files are read once, and once more if they were saved within a tick of their making"
    assert sum(store.calls[name] for name in ("get", "stream", "part")) == 0, "everything was in place"
    assert store.calls["put"] == 4, "a pack and its manifest, one file and its manifest"
