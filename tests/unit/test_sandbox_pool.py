"""The pool's own rules, over sandboxes that are only pipes. Real ones: tests/integration/test_sandbox_pool.py."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import MIB, SandboxLimits
from dualtrack.objects.process_dir import ProcessDirectory
from dualtrack.sandbox.launching import Launcher
from dualtrack.sandbox.pool import SessionPool
from dualtrack.sandbox.pooled import AgentLink, PooledSession
from dualtrack.sandbox.port import Command, Ended, Outcome
from dualtrack.sandbox.rung import Counters, LaunchSpec, RungName
from dualtrack.sandbox.sessions import EndReason, Session, SessionEgress, SessionRequest, Start
from dualtrack.sandbox.shelves import BACKOFF_S
from dualtrack.sandbox.slots import Slots
from dualtrack.sandbox.templates import Templates
from dualtrack.settings import SandboxSettings
from dualtrack.testing.waiting import wait_until

LIMITS = SandboxLimits(sessions=6)
REQUEST = SessionRequest(LIMITS)
DONE = Outcome(Ended.EXITED, 0, None, b"", b"", 0, 0, 0.0)


class PipeLaunched:
    """A started sandbox: two pipes. `die` is what a kill from elsewhere looks like."""

    def __init__(self, rung: PipeRung) -> None:
        self._rung = rung
        self.output, self._end = os.pipe()
        self._theirs, self.input = os.pipe()
        self.killed = threading.Event()
        self.closed = 0
        self.fail_close = False

    def counters(self) -> Counters:
        return Counters()

    def said(self) -> str:
        return "nothing"

    def die(self) -> None:
        if self._end >= 0:
            os.close(self._end)
            self._end = -1
        self.killed.set()

    def kill(self) -> None:
        self.die()

    def close(self) -> None:
        if self.fail_close:
            raise SandboxFailed("a process is left")
        self.closed += 1
        if self.closed == 1:
            self.die()
            for descriptor in (self.output, self.input, self._theirs):
                os.close(descriptor)
            self._rung.alive.discard(self)


class PipeRung:
    name = RungName.BUBBLEWRAP
    shares_files = True

    def __init__(self) -> None:
        self.alive: set[PipeLaunched] = set()
        self.launches: list[LaunchSpec] = []
        self.threads: set[str] = set()
        self.error: Exception | None = None
        self.hold = threading.Event()
        self.hold.set()

    def launch(self, spec: LaunchSpec) -> PipeLaunched:
        self.threads.add(threading.current_thread().name)
        self.launches.append(spec)
        self.hold.wait(60)
        if self.error is not None:
            raise self.error
        launched = PipeLaunched(self)
        self.alive.add(launched)
        return launched


class PipeAgent:
    def __init__(self, launched: PipeLaunched) -> None:
        self.launched = launched
        self.ended: EndReason | None = None
        self.ready = threading.Event()
        self.ready.set()

    def wait_ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.ready.wait(0.01):
            if self.launched.killed.is_set() or time.monotonic() > deadline:
                raise SandboxFailed("it ended before it was ready")

    def ping(self, timeout_s: float) -> bool:
        return True

    def run(self, *_: object) -> Outcome:
        return DONE

    def push(self, cancel: threading.Event | None = None) -> None:
        """As where files are shared."""

    def close(self, reason: EndReason = EndReason.DONE) -> None:
        self.ended = self.ended or reason


Opened = Callable[..., SessionPool]


@pytest.fixture
def rung() -> PipeRung:
    return PipeRung()


@pytest.fixture
def open_pool(tmp_path: Path, rung: PipeRung) -> Iterator[Opened]:
    with contextlib.ExitStack() as stack:

        def make(limits: SandboxLimits = LIMITS, **changes: Any) -> SessionPool:
            settings = SandboxSettings(workspaces=tmp_path / "workspaces", uid=os.geteuid() or 65534, **changes)
            slots = Slots(stack.enter_context(ProcessDirectory(settings.workspaces)), settings.uid)
            templates = Templates(settings, lambda: "cp311-x86_64-glibc")
            connect = cast("Callable[[Any, LaunchSpec], AgentLink]", lambda launched, _: PipeAgent(launched))
            launcher = Launcher(cast("Any", rung), connect, templates, slots, 60)
            return stack.enter_context(SessionPool(launcher, settings, limits))

        yield make
    assert not rung.alive
    assert not list((tmp_path / "workspaces").glob("*-*/slots/*"))


def until(what: Callable[[], bool]) -> None:
    wait_until(what, "what the test waits for")


def pooled(session: Session) -> PooledSession:
    assert isinstance(session, PooledSession)
    return session


def test_a_warm_one_is_claimed_once_and_replaced(open_pool: Opened, rung: PipeRung) -> None:
    pool = open_pool(pool_min=1)
    until(lambda: pool.warm("default") == 1)
    first = pool.claim(REQUEST)
    assert first.start is Start.WARM
    until(lambda: pool.warm("default") == 1)
    second = pool.claim(REQUEST)
    assert second.id != first.id
    first.close()
    second.close()
    assert all(name.startswith("sandbox-starter-") for name in rung.threads)


def test_without_a_warm_one_it_is_started_for_the_caller(open_pool: Opened, rung: PipeRung) -> None:
    pool = open_pool(pool_max=0)
    session = pool.claim(SessionRequest(LIMITS, "shell", writable=False))
    assert session.start is Start.COLD
    assert not rung.launches[0].writable
    assert rung.launches[0].preload == ()
    assert all(name.startswith("sandbox-starter-") for name in rung.threads)
    session.close()
    assert pool.live == 0


def test_a_kind_that_was_claimed_is_kept_warm(open_pool: Opened) -> None:
    pool = open_pool(pool_min=0)
    pool.claim(SessionRequest(LIMITS, "shell")).close()
    until(lambda: pool.warm("shell") == 1)
    with contextlib.closing(pool.claim(SessionRequest(LIMITS, "shell"))) as session:
        assert session.start is Start.WARM


def test_a_burst_is_prepared_for_up_to_the_maximum(open_pool: Opened) -> None:
    pool = open_pool(pool_min=1, pool_max=3)
    for session in [pool.claim(REQUEST) for _ in range(5)]:
        session.close()
    until(lambda: pool.warm("default") == pool.live == 3)


def test_ways_out_and_other_limits_are_never_served_warm(open_pool: Opened, rung: PipeRung, tmp_path: Path) -> None:
    pool = open_pool(pool_min=1)
    until(lambda: pool.warm("default") == 1)
    egress = SessionEgress(tmp_path, {"HTTPS_PROXY": "http://127.0.0.1:8080"}, 8080)
    for request in (SessionRequest(LIMITS, egress=egress), SessionRequest(LIMITS.model_copy(update={"memory_bytes": 64 * MIB}))):
        with contextlib.closing(pool.claim(request)) as session:
            assert session.start is Start.COLD
    (out,) = [spec for spec in rung.launches if spec.relay_port]
    assert out.environment["HTTPS_PROXY"].endswith(":8080")
    assert [str(mount.source) for mount in out.mounts if mount.target == "/run/egress"] == [str(tmp_path)]


def test_a_dead_one_is_not_given_out(open_pool: Opened, rung: PipeRung) -> None:
    pool = open_pool(pool_min=2)
    until(lambda: pool.warm("default") == 2)
    for launched in list(rung.alive):
        launched.die()
    with contextlib.closing(pool.claim(REQUEST)) as session:
        assert not pooled(session).launched.killed.is_set()  # type: ignore[attr-defined]
        until(lambda: pool.warm("default") >= 2)
        until(lambda: len(rung.alive) == pool.live)  # one that is just being removed is in one of them only


def test_what_a_failed_launch_said_reaches_the_caller_and_refills_back_off(
    open_pool: Opened, rung: PipeRung, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung.error = SandboxFailed("user namespaces are forbidden")
    began = time.monotonic()
    pool = open_pool(pool_min=1)
    with pytest.raises(SandboxFailed, match="user namespaces are forbidden"):
        pool.claim(REQUEST)
    threading.Event().wait(0.4)
    most = 3 + (time.monotonic() - began) / BACKOFF_S  # the caller's, the first refill, one more, and those of a machine that was busy
    assert len(rung.launches) <= most
    assert pool.live == 0
    pool.check()
    monkeypatch.setattr("dualtrack.sandbox.pool._UNHEALTHY", 1)
    with pytest.raises(SandboxFailed, match="template default starts on the rung bubblewrap: user namespaces"):
        pool.check()
    rung.error = None
    until(lambda: pool.warm("default") >= 1)
    pool.check()


def test_an_unknown_template_is_named(open_pool: Opened) -> None:
    pool = open_pool()
    with pytest.raises(SandboxUnavailable, match="no sandbox template 'nothing', only default, python-data, shell"):
        pool.claim(SessionRequest(LIMITS, "nothing"))
    with pytest.raises(SandboxUnavailable, match="no sandbox template 'other'"):
        open_pool(pool_templates=["other"])


def test_one_that_is_not_ready_in_time_fails_and_is_removed(open_pool: Opened, rung: PipeRung, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PipeAgent, "wait_ready", lambda *_: (_ for _ in ()).throw(SandboxFailed("not ready")))
    pool = open_pool(pool_max=0)
    with pytest.raises(SandboxFailed, match="not ready"):
        pool.claim(REQUEST)
    assert pool.live == 0
    assert not rung.alive


def test_there_are_never_more_than_the_limit_and_a_claim_waits_for_room(open_pool: Opened, rung: PipeRung) -> None:
    pool = open_pool(LIMITS.model_copy(update={"sessions": 2}), pool_max=0)
    held = [pool.claim(REQUEST), pool.claim(REQUEST)]
    got: list[Session] = []
    waiting = threading.Thread(target=lambda: got.append(pool.claim(REQUEST)))
    waiting.start()
    waiting.join(0.1)
    assert not got
    assert len(rung.alive) == 2
    held.pop().close()
    waiting.join(60)
    assert len(got) == 1
    for session in (*held, *got):
        session.close()


def test_who_is_interrupted_while_it_waits_leaves_nothing(open_pool: Opened, rung: PipeRung, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = open_pool(pool_max=0)
    rung.hold.clear()

    def interrupted(*_: object) -> None:
        until(lambda: len(rung.launches) == 1)
        raise KeyboardInterrupt

    monkeypatch.setattr("dualtrack.sandbox.pool.BUSY_S", 0.01)
    monkeypatch.setattr(SessionPool, "_give_up", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.claim(REQUEST)
    rung.hold.set()
    until(lambda: pool.live == 0 and not rung.alive)


def test_a_claim_that_finds_no_room_says_which_limit(open_pool: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualtrack.sandbox.pool.BUSY_S", 0.05)
    pool = open_pool(LIMITS.model_copy(update={"sessions": 1}), pool_max=0)
    with contextlib.closing(pool.claim(REQUEST)), pytest.raises(SandboxFailed, match=r"1 of at most 1 exist .*LIMITS__SANDBOX__SESSIONS"):
        pool.claim(REQUEST)


def test_a_warm_one_of_another_kind_makes_room(open_pool: Opened) -> None:
    pool = open_pool(LIMITS.model_copy(update={"sessions": 1}), pool_min=1)
    until(lambda: pool.warm("default") == 1)
    with contextlib.closing(pool.claim(SessionRequest(LIMITS.model_copy(update={"sessions": 1}), "shell"))) as session:
        assert session.start is Start.COLD
        assert pool.live == 1


def test_eight_threads_get_each_their_own(open_pool: Opened, rung: PipeRung) -> None:
    pool = open_pool(pool_min=2)
    seen: list[str] = []

    def use() -> None:
        for _ in range(20):
            session = pool.claim(REQUEST)
            seen.append(session.id)
            session.run(Command(("true",)), LIMITS, threading.Event())
            session.close()

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(seen) == len(set(seen)) == 160
    until(lambda: len(rung.alive) == pool.live)


def test_files_move_in_and_out_by_name(open_pool: Opened, tmp_path: Path) -> None:
    pool = open_pool(pool_max=0)
    source, kept = tmp_path / "job", tmp_path / "kept"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "a.txt").write_text("a")
    (source / "link").symlink_to("/etc/passwd")
    kept.mkdir()
    if os.geteuid() == 0:
        os.chown(source, 65534, 65534)  # as a job's directory is; nobody may enter those of this test
    session = pool.claim(REQUEST)
    session.adopt(source)
    assert list(source.iterdir()) == []
    assert (session.workspace / "sub" / "a.txt").read_text() == "a"
    session.close(keep=kept)
    assert (kept / "sub" / "a.txt").read_text() == "a"
    assert (kept / "link").readlink() == Path("/etc/passwd")
    assert not session.workspace.exists()
    session.close()


def test_what_can_not_be_removed_is_tried_again(open_pool: Opened, rung: PipeRung) -> None:
    pool = open_pool(pool_max=0)
    session = pool.claim(REQUEST)
    (launched,) = rung.alive
    launched.fail_close = True
    with pytest.raises(SandboxFailed, match="a process is left"):
        session.close()
    assert pool.live == 1
    assert pool.tidy() == 0
    assert session.workspace.exists()
    launched.fail_close = False
    assert pool.tidy() == 1
    assert pool.live == 0
    assert not session.workspace.exists()


def test_closing_ends_claimed_warm_and_starting_ones_and_refuses_more(open_pool: Opened, rung: PipeRung) -> None:
    pool = open_pool(pool_min=2)
    until(lambda: pool.warm("default") == 2)
    session = pool.claim(REQUEST)
    pool.close()
    assert session.ended is EndReason.SHUTDOWN
    assert not rung.alive
    with pytest.raises(SandboxFailed, match="stopping"):
        pool.claim(REQUEST)


def test_closing_interrupts_a_start_that_hangs(open_pool: Opened, rung: PipeRung, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()
    original = PipeAgent.__init__

    def never_ready(agent: PipeAgent, launched: PipeLaunched) -> None:
        original(agent, launched)
        agent.ready.clear()
        hanging.set()

    monkeypatch.setattr(PipeAgent, "__init__", never_ready)
    pool = open_pool(pool_min=1)
    assert hanging.wait(60)
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < 30
    assert not rung.alive


def test_warm_ones_that_do_not_answer_are_replaced(open_pool: Opened, rung: PipeRung, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualtrack.sandbox.pool._CHECK_S", 0.01)
    monkeypatch.setattr("dualtrack.sandbox.pool._LOOK_S", 0.01)
    asked = threading.Event()

    def silent_once(agent: PipeAgent, timeout_s: float) -> bool:
        first = not asked.is_set()
        asked.set()
        return not first

    monkeypatch.setattr(PipeAgent, "ping", silent_once)
    pool = open_pool(pool_min=1)
    assert asked.wait(60)
    until(lambda: len(rung.launches) == 2 and pool.warm("default") == 1)
    assert len(rung.alive) == 1
