"""What a session does with an agent that has been taken over, or with no agent at all: its bytes are a stranger's."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import KIB, SandboxLimits
from dualtrack.sandbox.inside import protocol
from dualtrack.sandbox.port import Command, Ended
from dualtrack.sandbox.rung import Counters, Enforced, LaunchSpec
from dualtrack.sandbox.session import AgentSession
from dualtrack.sandbox.sessions import EndReason
from dualtrack.testing.waiting import PATIENCE_S

LIMITS = SandboxLimits(wall_time_s=60, output_bytes=4 * KIB)
READY = protocol.control(protocol.READY, 0, version=protocol.VERSION, python="3.9.0", problems=[])

Peer = Callable[["Scripted"], None]


def exit_frame(channel: int, **fields: object) -> bytes:
    """An EXIT frame as an honest agent sends it, but for `fields`."""
    report = {"status": 0, "user_us": 0, "system_us": 0, "max_rss_kib": 0, "background": 0, "persistent": False, "new": False}
    return protocol.control(protocol.EXIT, channel, **{**report, **fields})


class Scripted:
    """`Launched` whose agent is a function in a thread."""

    enforced = Enforced(memory=True, processes=True)
    own_processes = True
    inside = "/workspace"
    scratch: Path | None = None

    def __init__(self, peer: Peer) -> None:
        self.source, self.input = os.pipe()
        self.output, self.target = os.pipe()
        self.counted = Counters()
        self.kills = 0
        self._open = {self.source, self.target}
        self._thread = threading.Thread(target=self._play, args=(peer,))
        self._thread.start()

    def _play(self, peer: Peer) -> None:
        with contextlib.suppress(OSError):
            peer(self)

    def send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.target, data) :]

    def read(self) -> bytes:
        return os.read(self.source, 1 << 16)

    def end(self) -> None:
        """As if every process inside had ended."""
        for descriptor in list(self._open):
            self._open.discard(descriptor)
            os.close(descriptor)

    def counters(self) -> Counters:
        return self.counted

    def said(self) -> str:
        return "last words"

    def kill(self) -> None:
        self.kills += 1

    def close(self) -> None:
        self.kill()
        if self.input >= 0:
            for descriptor in (self.input, self.output):
                os.close(descriptor)
            self.input = self.output = -1
            self._thread.join(PATIENCE_S)
            self.end()


Connect = Callable[[Peer], tuple[AgentSession, Scripted]]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    sessions = []

    def connect(peer: Peer) -> tuple[AgentSession, Scripted]:
        launched = Scripted(peer)
        sessions.append(AgentSession(launched, LaunchSpec(tmp_path, LIMITS), "scripted"))
        return sessions[-1], launched

    yield connect
    for session in sessions:
        session.close()


def answering(*answers: bytes) -> Peer:
    """Ready, then one answer for each request."""

    def peer(self: Scripted) -> None:
        for answer in (READY, *answers):
            self.read()
            self.send(answer)
        self.read()

    return peer


def run(session: AgentSession, **limits: object) -> object:
    return session.run(Command(("true",)), LIMITS.model_copy(update=limits), threading.Event())


HOSTILE = {
    "noise": b"\xff" * 100,
    "an unknown kind": protocol.frame(200, 1),
    "a huge frame": protocol.HEADER.pack(protocol.STDOUT, 1, 2**31),
    "a frame of the host": protocol.frame(protocol.EXEC, 1),
    "no JSON": protocol.frame(protocol.EXIT, 1, b"{"),
    "no object": protocol.frame(protocol.EXIT, 1, b"[1]"),
    "nested JSON": protocol.frame(protocol.EXIT, 1, b"[" * 60_000),
    "an exit without a status": protocol.control(protocol.EXIT, 1),
    "a status of text": exit_frame(1, status="0"),
    "a status out of range": exit_frame(1, status=2**40),
    "a negative status": exit_frame(1, status=-1),
    "a flag of numbers": exit_frame(1, persistent=1),
    "more taken than was sent": protocol.control(protocol.TAKEN, 1, bytes=1),
    "an answer to nothing": protocol.frame(protocol.DONE, 1),
    "a refusal without a reason": protocol.control(protocol.REFUSED, 1),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_what_is_no_answer_ends_the_session(connect: Connect, name: str) -> None:
    session, launched = connect(answering(HOSTILE[name]))
    session.wait_ready(PATIENCE_S)
    with pytest.raises(SandboxFailed, match=r"broke off \(broken\)"):
        run(session)
    assert session.ended is EndReason.BROKEN
    assert launched.kills
    with pytest.raises(SandboxFailed, match="over"):
        run(session)


def test_random_frames_never_do_more_than_end_the_session(connect: Connect) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        frames = [
            protocol.frame(
                chance.choice(sorted(protocol.FROM_AGENT)),
                chance.randrange(3),
                chance.choice([b"", b"{}", chance.randbytes(chance.randrange(100)), b'{"status":0,"bytes":1,"errno":11,"error":"x"}']),
            )
            for _ in range(chance.randrange(1, 20))
        ]
        session, _ = connect(answering(b"".join(frames) + b"\xff"))
        session.wait_ready(PATIENCE_S)
        with contextlib.suppress(SandboxFailed):
            run(session, wall_time_s=0.2)
        assert session.ended in {EndReason.BROKEN, EndReason.LIMIT, None}


def test_frames_of_other_channels_are_dropped(connect: Connect) -> None:
    session, _ = connect(answering(exit_frame(77) + protocol.frame(protocol.STDOUT, 9, b"no") + exit_frame(1)))
    session.wait_ready(PATIENCE_S)
    outcome = session.run(Command(("true",)), LIMITS, threading.Event())
    assert (outcome.ended, outcome.stdout, outcome.exit_code) == (Ended.EXITED, b"", 0)


def test_silence_is_wall_time(connect: Connect) -> None:
    session, _ = connect(answering(b""))
    session.wait_ready(PATIENCE_S)
    outcome = session.run(Command(("true",), stdin=b"x" * 4_000_000), LIMITS.model_copy(update={"wall_time_s": 0.5}), threading.Event())
    assert outcome.ended is Ended.WALL_TIME
    assert session.ended is EndReason.LIMIT


def test_half_a_frame_is_wall_time(connect: Connect) -> None:
    session, _ = connect(answering(protocol.HEADER.pack(protocol.STDOUT, 1, 60_000) + b"x"))
    session.wait_ready(PATIENCE_S)
    assert session.run(Command(("true",)), LIMITS.model_copy(update={"wall_time_s": 0.5}), threading.Event()).ended is Ended.WALL_TIME


@pytest.mark.parametrize("channel", [1, 99])
def test_an_endless_flood_is_ended(connect: Connect, channel: int) -> None:
    def peer(self: Scripted) -> None:
        self.read()
        self.send(READY)
        self.read()
        while not self.kills:
            self.send(protocol.frame(protocol.STDOUT, channel, b"x" * 60_000))

    session, _ = connect(peer)
    session.wait_ready(PATIENCE_S)
    outcome = session.run(Command(("true",)), LIMITS.model_copy(update={"wall_time_s": 60 if channel == 1 else 1}), threading.Event())
    assert outcome.ended is (Ended.OUTPUT if channel == 1 else Ended.WALL_TIME)
    assert len(outcome.stdout) <= LIMITS.output_bytes


def test_the_end_of_the_sandbox_is_our_failure_with_its_last_words(connect: Connect) -> None:
    def peer(self: Scripted) -> None:
        self.read()
        self.send(READY)
        self.read()
        self.end()

    session, _ = connect(peer)
    session.wait_ready(PATIENCE_S)
    with pytest.raises(SandboxFailed, match=r"the agent has ended\. last words"):
        run(session)


def test_the_end_of_the_sandbox_for_memory_is_an_outcome(connect: Connect) -> None:
    def peer(self: Scripted) -> None:
        self.counted = Counters(out_of_memory=0, forks_refused=0)
        self.read()
        self.send(READY)
        self.read()
        self.counted = Counters(out_of_memory=2, forks_refused=0)
        self.end()

    session, _ = connect(peer)
    session.wait_ready(PATIENCE_S)
    outcome = session.run(Command(("true",)), LIMITS, threading.Event())
    assert (outcome.ended, outcome.note, session.ended) == (Ended.MEMORY, "killed: memory limit 1024 MiB", EndReason.LIMIT)


def test_the_kernels_counters_are_told_of_a_command_that_exited(connect: Connect) -> None:
    def peer(self: Scripted) -> None:
        self.counted = Counters(out_of_memory=4, forks_refused=7)
        self.read()
        self.send(READY)
        for channel, counted in ((1, Counters(out_of_memory=5, forks_refused=9)), (2, Counters(out_of_memory=5, forks_refused=9))):
            self.read()
            self.counted = counted
            self.send(exit_frame(channel, status=3 << 8))
        self.read()

    session, _ = connect(peer)
    session.wait_ready(PATIENCE_S)
    outcome = session.run(Command(("true",)), LIMITS, threading.Event())
    assert (outcome.ended, outcome.exit_code) == (Ended.EXITED, 3)
    assert outcome.reached == ("memory limit 1024 MiB, for which a process was killed", "process limit 128")
    assert outcome.note == "reached: memory limit 1024 MiB, for which a process was killed; reached: process limit 128"
    outcome = session.run(Command(("true",)), LIMITS, threading.Event())
    assert (outcome.note, outcome.reached) == ("", ())
    assert session.ended is None


def test_cpu_time_of_all_processes_is_read_from_outside(connect: Connect) -> None:
    def peer(self: Scripted) -> None:
        self.counted = Counters(cpu_s=100.0)
        self.read()
        self.send(READY)
        self.read()
        used = 100.0
        while not self.kills:
            used += 1
            self.counted = Counters(cpu_s=used)
            time.sleep(0.02)

    session, _ = connect(peer)
    session.wait_ready(PATIENCE_S)
    outcome = session.run(Command(("true",)), LIMITS.model_copy(update={"cpu_time_s": 5}), threading.Event())
    assert (outcome.ended, outcome.note) == (Ended.CPU_TIME, "killed: CPU time limit 5 s")


def test_no_room_for_a_process_is_told_and_made_by_the_end_of_the_session(connect: Connect) -> None:
    session, _ = connect(answering(protocol.control(protocol.REFUSED, 1, error="no", errno=11)))
    session.wait_ready(PATIENCE_S)
    outcome = session.run(Command(("true",)), LIMITS, threading.Event())
    assert (outcome.ended, outcome.note) == (Ended.PROCESSES, "not started: process limit 128")
    assert session.ended is EndReason.LIMIT


def test_a_template_that_can_not_be_loaded_is_told(connect: Connect) -> None:
    ready = protocol.control(protocol.READY, 0, version=1, python="3", problems=["module nonsense can't be imported"])

    def peer(self: Scripted) -> None:
        self.read()
        self.send(ready)

    with pytest.raises(SandboxUnavailable, match="nonsense"):
        connect(peer)[0].wait_ready(PATIENCE_S)


@pytest.mark.parametrize("answer", [b"", b"\x00" * 100, protocol.frame(protocol.PONG, 0)])
def test_an_agent_that_is_never_ready(connect: Connect, answer: bytes) -> None:
    def peer(self: Scripted) -> None:
        self.read()
        self.send(answer)
        self.read()

    session, _ = connect(peer)
    with pytest.raises(SandboxFailed):
        session.wait_ready(0.5)
    assert session.ended is EndReason.BROKEN


def test_an_agent_that_does_not_answer_a_ping(connect: Connect) -> None:
    session, _ = connect(answering(b""))
    session.wait_ready(PATIENCE_S)
    assert not session.ping(0.3)
    assert session.ended is EndReason.BROKEN
