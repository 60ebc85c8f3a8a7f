"""The janitor goes round again and again, in the right order, and a failure of one round is not the end of it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from dualtrack.domain.errors import SandboxFailed
from dualtrack.objects.process_dir import ProcessDirectory
from dualtrack.sandbox.janitor import Janitor, sweep
from dualtrack.sandbox.rung import RungName


class SweptRung:
    """Notes what it was asked, in order; fails the first time."""

    name = RungName.BUBBLEWRAP

    def __init__(self, dead: Path) -> None:
        self.dead = dead
        self.rounds = 0
        self.enough = threading.Event()
        self.seen: list[bool] = []

    def sweep(self) -> list[str]:
        self.rounds += 1
        self.seen.append(self.dead.exists())
        if self.rounds == 1:
            raise SandboxFailed("the engine does not answer")
        if self.rounds == 3:
            self.enough.set()
        return ["a container"]


def test_a_rung_is_swept_before_the_directories_its_sandboxes_may_still_hold(tmp_path: Path) -> None:
    dead = tmp_path / "1-00000000"
    dead.mkdir()
    rung = SweptRung(dead)
    rung.rounds = 1
    with ProcessDirectory(tmp_path) as directory:
        assert sweep(cast("Any", rung), directory) == ["a container", "directory 1-00000000"]
        assert directory.path.exists()
    assert rung.seen == [True]
    assert not dead.exists()


def test_it_goes_on_after_a_round_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualtrack.sandbox.janitor.INTERVAL_S", 0.01)
    rung = SweptRung(tmp_path / "none")
    tidied = []

    def tidy() -> int:
        tidied.append(rung.rounds)
        return 0

    with ProcessDirectory(tmp_path) as directory, Janitor(cast("Any", rung), directory, tidy):
        assert rung.enough.wait(60)
    assert tidied[:3] == [0, 1, 2]
