"""Named fault points: where tests break a real process, on each side of everything that others can see.

`point(Fault.X)` costs one test of a variable while nothing is armed, and nothing can be armed but by the environment variable
`DUALTRACK_FAULTS` at the start of a process. It is for tests only. It names a file of rules, one a line, read anew whenever it changes
(so a running process can be told to break, and need not be started for it):

    POINT,ACTION[,skip=N][,times=N][,seconds=S]

`skip` passages are let through first, then the next `times` ones (default 1; `lose` and `twice`: all) are acted upon. What was done is
appended to the file's name plus `.fired`, a JSON object a line, before it is done: the test knows that, where and when.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import InvalidRequest

_LOG: Final = logging.getLogger(__name__)
VARIABLE: Final = "DUALTRACK_FAULTS"
FIRED: Final = ".fired"


class Fault(StrEnum):
    """Every point, by the process that passes it first: before a commit the verb is in the present, after it in the past."""

    COMMIT = "db.commit"
    """Any transaction of the process is complete and not yet committed."""
    COMMITTED = "db.committed"
    """It is committed, and nothing that follows a commit has been done."""
    PUBLISH = "broker.publish"
    """A ring is about to be published; `lose` and `twice` act here."""
    PUBLISHED = "broker.published"
    """The broker has confirmed it."""
    ACKNOWLEDGE = "broker.acknowledge"
    """A message has been handled and is about to be acknowledged."""
    ACKNOWLEDGED = "broker.acknowledged"
    UPLOAD = "objects.upload"
    """An object is about to be written."""
    UPLOADED = "objects.uploaded"

    ROUTER_ACCEPT = "router.accept"
    """A job, its first event and its idempotency key are written and not committed."""
    ROUTER_ACCEPTED = "router.accepted"
    """They are committed; the planner is not rung."""
    ROUTER_RUNG = "router.rung"
    """The planner is rung; the client has no answer."""

    APPROVAL_DECIDE = "approval.decide"
    """What a person decided is written and not committed."""
    APPROVAL_DECIDED = "approval.decided"
    """It is committed; nobody is rung, and the person has no answer."""

    PLANNER_CLAIM = "planner.claim"
    PLANNER_CLAIMED = "planner.claimed"
    """The job is this planner's; the model has not been asked."""
    PLANNER_DECIDED = "planner.decided"
    """The model has answered; nothing is written."""
    PLANNER_RECORD = "planner.record"
    PLANNER_RECORDED = "planner.recorded"
    """The decision is committed; nobody is rung."""

    EXECUTOR_CLAIM = "executor.claim"
    EXECUTOR_CLAIMED = "executor.claimed"
    """The call is this executor's; nothing has run."""
    EXECUTOR_EFFECT = "executor.effect"
    """The workspace is restored; the tool is about to run."""
    EXECUTOR_EFFECTED = "executor.effected"
    """The tool has run: whatever it does to the world is done; nothing is kept."""
    EXECUTOR_SNAPSHOT = "executor.snapshot"
    """The workspace is uploaded; nothing refers to it."""
    EXECUTOR_OBSERVATION = "executor.observation"
    """A long observation is uploaded; nothing refers to it."""
    EXECUTOR_RECORD = "executor.record"
    EXECUTOR_RECORDED = "executor.recorded"
    """The outcome is committed; nobody is rung."""

    EXTERNAL_INTEND = "external.intend"
    """An external call is about to be written down as begun."""
    EXTERNAL_SEND = "external.send"
    """That is committed; nothing has left the platform."""
    EXTERNAL_SENT = "external.sent"
    """The world has answered; nobody else knows."""

    SCHEDULER_PUSH_BACK = "scheduler.push-back"
    """Due rows have their next ring and are not committed."""
    SCHEDULER_PUSHED_BACK = "scheduler.pushed-back"
    """They are; none of them is rung."""
    SCHEDULER_RUNG = "scheduler.rung"
    SCHEDULE_TICK = "schedule.tick"
    """A schedule's job and its next time are written and not committed."""
    SCHEDULE_TICKED = "schedule.ticked"
    """They are; the planner is not rung."""
    DELIVERY_CLAIMED = "delivery.claimed"
    """A webhook's delivery is this scheduler's; nothing is sent."""
    DELIVERY_SENT = "delivery.sent"
    """The endpoint has answered; nothing is written."""


class Action(StrEnum):
    """What happens at a point."""

    KILL = "kill"
    """`SIGKILL` of this process."""
    STOP = "stop"
    """`SIGSTOP` of this process; whoever armed it continues it."""
    SLEEP = "sleep"
    """This thread stands still for `seconds`."""
    LOSE = "lose"
    """A ring is not published, and its sender believes that it was."""
    TWICE = "twice"
    """A ring is published twice."""


_AT_PUBLISH: Final = frozenset({Action.LOSE, Action.TWICE})


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the file."""

    fault: Fault
    action: Action
    skip: int = 0
    times: int | None = 1
    """None: without end."""
    seconds: float = 0.0

    def __str__(self) -> str:
        more = [f"skip={self.skip}"] * (self.skip > 0) + [f"seconds={self.seconds:g}"] * (self.seconds > 0)
        more += [f"times={self.times}"] * (self.times not in {None, 1} or (self.times == 1 and self.action in _AT_PUBLISH))
        return ",".join([self.fault, self.action, *more])


def parse(line: str) -> Rule:
    """The rule of a line.

    Raises:
        InvalidRequest: it is none; the message says what is wrong.
    """
    name, _, rest = line.strip().partition(",")
    action_name, *options = rest.split(",")
    try:
        fault, action = Fault(name), Action(action_name)
        values = dict(option.split("=") for option in options)
        skip = int(values.pop("skip", "0"))
        times = int(values.pop("times")) if "times" in values else None if action in _AT_PUBLISH else 1
        seconds = float(values.pop("seconds", "0"))
    except ValueError as error:
        raise InvalidRequest(f"{VARIABLE}: {line!r} is no rule: {error}", param=VARIABLE) from None
    if values:
        raise InvalidRequest(f"{VARIABLE}: {line!r}: there is no option {', '.join(values)}.", param=VARIABLE)
    if skip < 0 or (times is not None and times < 1) or seconds < 0:
        raise InvalidRequest(f"{VARIABLE}: {line!r}: skip and seconds can't be negative, times is at least 1.", param=VARIABLE)
    if action in _AT_PUBLISH and fault is not Fault.PUBLISH:
        raise InvalidRequest(f"{VARIABLE}: {line!r}: {action} acts at {Fault.PUBLISH} only.", param=VARIABLE)
    if (action is Action.SLEEP) != (seconds > 0):
        raise InvalidRequest(f"{VARIABLE}: {line!r}: sleep needs seconds, nothing else has any.", param=VARIABLE)
    return Rule(fault, action, skip, times, seconds)


class FaultFile:
    """The rules of a file and how often each point was passed since it was last changed. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, int] | None = None
        self._rules: list[Rule] = []
        self._passed: dict[Rule, int] = {}
        self._lock = threading.Lock()

    def take(self, fault: Fault, subject: str, *, publishing: bool = False) -> Rule | None:
        """The rule that this passage sets off, written down as fired; None mostly.

        Raises:
            InvalidRequest: the file holds something else than rules.
        """
        with self._lock:
            self._read()
            for rule in self._rules:
                if rule.fault is not fault or (rule.action in _AT_PUBLISH) is not publishing:
                    continue
                passed = self._passed[rule] = self._passed.get(rule, 0) + 1
                if passed > rule.skip and (rule.times is None or passed <= rule.skip + rule.times):
                    fired = {"fault": fault, "action": rule.action, "subject": subject, "pid": os.getpid(), "at": time.time()}
                    with self._path.with_name(self._path.name + FIRED).open("a", encoding="utf-8") as file:
                        file.write(json.dumps(fired) + "\n")
                    return rule
        return None

    def _read(self) -> None:
        version = None
        with contextlib.suppress(FileNotFoundError):
            status = self._path.stat()
            version = (status.st_mtime_ns, status.st_ino)
        if version == self._version:
            return
        lines = [] if version is None else self._path.read_text(encoding="utf-8").splitlines()
        self._rules = [parse(line) for line in lines if line.strip()]
        self._passed.clear()
        self._version = version


_armed: FaultFile | None = None


def arm(environment: Mapping[str, str]) -> None:
    """Arm the points of this process where the environment says so, and say it in the log."""
    global _armed  # noqa: PLW0603 - one switch a process, set once at its start
    path = environment.get(VARIABLE)
    _armed = FaultFile(Path(path)) if path else None
    if _armed is not None:
        _LOG.warning("fault points are armed (%s): this process may break at any time, for tests only", VARIABLE)


def point(fault: Fault, subject: str = "") -> None:
    """A place to break at; `subject` is the id of the job or call at work, for the test's record."""
    if _armed is not None and (rule := _armed.take(fault, subject)) is not None:
        _act(rule)


def copies(fault: Fault, subject: str = "") -> int:
    """How often to publish what is about to be published: once, unless a test wants it lost or doubled."""
    if _armed is None:
        return 1
    point(fault, subject)
    rule = _armed.take(fault, subject, publishing=True)
    return 1 if rule is None else 0 if rule.action is Action.LOSE else 2


def _act(rule: Rule) -> None:
    if rule.action is Action.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    elif rule.action is Action.STOP:
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        time.sleep(rule.seconds)
