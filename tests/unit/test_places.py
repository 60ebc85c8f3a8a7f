from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import pytest

from dualtrack.db.steps import LatestChange
from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.limits import PlatformLimits, SandboxLimits
from dualtrack.engine.place import Place
from dualtrack.engine.places import Places
from dualtrack.objects.workdirs import Workdirs
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.sandbox.port import Command, Ended, Outcome
from dualtrack.sandbox.sessions import EndReason, PythonCell, SessionRequest
from dualtrack.settings import SandboxSettings
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.sandbox import FakeSessions, completed

LIMITS = SandboxLimits(idle_s=60)
REQUEST = SessionRequest(LIMITS)


class Desk:
    """Places over fakes, and a job's calls as the executor makes them."""

    def __init__(self, places: Places, workdirs: Workdirs, sessions: FakeSessions, ended: set[str]) -> None:
        self.places = places
        self.workdirs = workdirs
        self.sessions = sessions
        self.ended = ended
        self.store = WorkspaceStore(MemoryStore(), "ten_1", PlatformLimits())
        self.outcome: Outcome | Exception = completed()

    def answer(self, *_: object) -> Outcome:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def call(
        self,
        digest: str | None,
        latest: str | None,
        call_id: str,
        cell: PythonCell | None = None,
        *,
        files: str = "",
        kept_state: bool = False,
    ) -> str | None:
        """One changing call from `digest`, which writes `files` into the workspace; the workspace after it."""
        recorded = None if latest is None else LatestChange(latest, kept_state)
        with self.places.lease("job_1", shared=False) as place:
            place.prepare(self.store, digest, lambda: recorded, cancel=threading.Event())
            place.begin()
            self.run(place, cell)
            with place.standing_still() as directory:
                if files:
                    (directory / files).write_text(call_id)
                after = self.store.snapshot(directory, digest)
            place.done(after, call_id)
            self.notice = place.take_notice()
            self.keeps_state = place.keeps_state
            return after.digest

    def read(self, digest: str | None) -> None:
        with self.places.lease("job_1", shared=True) as place:
            place.prepare(self.store, digest, cancel=threading.Event())
            self.run(place, None)

    @staticmethod
    def run(place: Place, cell: PythonCell | None) -> None:
        if cell is None:
            place.run(Command(("true",)), REQUEST, LIMITS, threading.Event(), None)
        else:
            place.python(cell, REQUEST, LIMITS, threading.Event(), None)

    @property
    def ends(self) -> list[EndReason | None]:
        return [session.ended for session in self.sessions.claimed]


@contextmanager
def _desk(tmp_path: Path, limits: SandboxLimits = LIMITS) -> Iterator[Desk]:
    desk: list[Desk] = []
    sessions = FakeSessions(tmp_path / "workspaces" / "fakes", repeat(lambda *asked: desk[0].answer(*asked)))  # noqa: PLW0108 - made after it
    ended: set[str] = set()
    with (
        Workdirs(SandboxSettings(workspaces=tmp_path / "workspaces")) as workdirs,
        Places(sessions, workdirs, limits, lambda ids: ended & set(ids)) as places,
    ):
        desk.append(Desk(places, workdirs, sessions, ended))
        yield desk[0]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with _desk(tmp_path) as found:
        yield found


def test_a_job_goes_on_in_its_session(desk: Desk) -> None:
    first = desk.call(None, None, "call_1", files="a")
    second = desk.call(first, "call_1", "call_2", files="b")
    desk.read(second)
    desk.call(second, "call_2", "call_3")
    assert desk.ends == [None]
    assert [session.quiets for session in desk.sessions.claimed] == [3]


def test_another_workspace_is_restored_before_the_job_goes_on(desk: Desk) -> None:
    first = desk.call(None, None, "call_1", files="a")
    desk.call(first, "call_1", "call_2", files="b")
    desk.call(first, "call_2", "call_3")  # the second one's files were not recorded
    assert desk.ends == [EndReason.DONE, None]
    with desk.places.lease("job_1", shared=True) as place, place.standing_still() as directory:
        assert [path.name for path in directory.iterdir()] == ["a"]


@pytest.mark.parametrize("latest", ["call_9", None], ids=["a call elsewhere that changed no file", "its own call was not recorded"])
def test_variables_of_a_session_that_the_job_has_left_behind_are_not_used(desk: Desk, latest: str | None) -> None:
    first = desk.call(None, None, "call_1", PythonCell("x = 1", persistent=True))
    desk.read(first)
    assert desk.ends == [None], "the files are the same"
    desk.call(first, latest, "call_2")
    assert desk.ends == [EndReason.DONE, None]
    assert "Python variables are gone" in desk.notice


def test_a_call_that_broke_off_leaves_no_session(desk: Desk) -> None:
    first = desk.call(None, None, "call_1", files="a")
    desk.outcome = SandboxFailed("the test says so")
    with pytest.raises(SandboxFailed):
        desk.call(first, "call_1", "call_2", files="b")
    desk.outcome = completed()
    desk.call(first, "call_1", "call_2", files="b")
    assert desk.ends == [EndReason.BROKEN, None]


def test_a_call_whose_snapshot_failed_is_undone(desk: Desk) -> None:
    first = desk.call(None, None, "call_1")
    with desk.places.lease("job_1", shared=False) as place:
        place.prepare(desk.store, first, lambda: LatestChange("call_1"), cancel=threading.Event())
        place.begin()
        desk.run(place, None)
    desk.read(first)
    assert desk.ends == [EndReason.DONE, None]


@pytest.mark.parametrize("background", [0, 2])
def test_the_agent_is_told_what_it_has_lost(desk: Desk, background: int) -> None:
    desk.outcome = completed(background=background)
    first = desk.call(None, None, "call_1")
    desk.outcome = Outcome(Ended.WALL_TIME, None, None, b"", b"", 0, 0, 1.0, note="killed: wall time limit 5 s")
    desk.call(first, "call_1", "call_2")
    assert desk.ends == [EndReason.LIMIT]
    assert ("(killed: wall time limit 5 s): its background processes" in desk.notice) is bool(background)
    desk.outcome = completed()
    desk.call(first, "call_2", "call_3")
    assert desk.notice == ""


@pytest.mark.parametrize("kept_state", [False, True])
def test_the_agent_is_told_of_what_another_executor_had(desk: Desk, kept_state: bool) -> None:
    desk.call(None, "call_1", "call_2", PythonCell("x = 1", persistent=True), kept_state=kept_state)
    assert ("this call runs elsewhere or after a restart" in desk.notice) is kept_state
    assert desk.keeps_state


def test_a_call_that_changes_nothing_does_not_hide_what_another_executor_had(desk: Desk) -> None:
    desk.read(None)
    desk.call(None, "call_1", "call_2", kept_state=True)
    assert desk.ends == [None], "the files are the same"
    assert "Python variables are gone" in desk.notice
    desk.call(None, "call_2", "call_3")
    assert desk.notice == ""


def test_what_is_there_is_not_told_as_lost(desk: Desk) -> None:
    first = desk.call(None, None, "call_1", PythonCell("x = 1", persistent=True))
    desk.call(first, "call_1", "call_2", kept_state=True)
    assert desk.ends == [None]
    assert desk.notice == ""


def test_sessions_end_with_their_jobs_and_when_nobody_uses_them(tmp_path: Path) -> None:
    with _desk(tmp_path, LIMITS.model_copy(update={"idle_s": 0.05})) as desk:
        first = desk.call(None, None, "call_1", PythonCell("x", persistent=True))
        desk.ended.add("job_1")
        desk.places.sweep()
        assert desk.ends == [EndReason.DONE]
        desk.ended.clear()
        desk.call(first, "call_1", "call_2", PythonCell("x", persistent=True))
        deadline = time.monotonic() + 60
        while desk.ends[-1] is None and time.monotonic() < deadline:
            desk.places.sweep()
            time.sleep(0.01)
        desk.call(first, "call_2", "call_3")
        assert desk.ends[:2] == [EndReason.DONE, EndReason.IDLE]
        assert "idle for 0.05 s" in desk.notice


def test_a_session_that_goes_beyond_a_limit_between_calls_is_ended(desk: Desk) -> None:
    first = desk.call(None, None, "call_1", files="a")
    session = desk.sessions.claimed[0]
    desk.places.watch()
    assert desk.ends == [None]
    (session.workspace / "b").touch()
    session.exceeds = "killed: workspace limit 1 MiB"
    desk.places.watch()
    assert desk.ends == [EndReason.LIMIT]
    with desk.workdirs.lease("job_1") as directory:
        assert directory.size >= LIMITS.disk_bytes, "it counts as full until it is restored"
    desk.call(first, "call_1", "call_2")
    assert "(killed: workspace limit 1 MiB, between two calls)" in desk.notice
    assert "what those wrote after the last call" in desk.notice
    with desk.places.lease("job_1", shared=True) as place, place.standing_still() as directory:
        assert [path.name for path in directory.iterdir()] == ["a"]


def test_a_session_at_work_is_not_ended_by_a_sweep(tmp_path: Path) -> None:
    with _desk(tmp_path, LIMITS.model_copy(update={"idle_s": 0.001})) as desk, desk.places.lease("job_1", shared=False) as place:
        place.prepare(desk.store, None, lambda: None, cancel=threading.Event())
        desk.run(place, None)
        time.sleep(0.01)
        desk.ended.add("job_1")
        desk.places.sweep()
        assert desk.ends == [None]


def test_all_sessions_end_with_the_executor(tmp_path: Path) -> None:
    with _desk(tmp_path) as desk:
        desk.call(None, None, "call_1")
    assert desk.ends == [EndReason.SHUTDOWN]
