"""Carrying out the faults of a plan, one after the other, while clients work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from dualtrack.faults import Action, Fault, Rule
from dualtrack.testing.chaos.rig import NAMES, Rig, wait_for, wrong_clock
from dualtrack.testing.chaos.strikes import Kind, Strike

_SLOW_S: Final = 0.2
_LOSERS: Final = tuple(name for name in NAMES if not name.startswith("scheduler"))

Breaking = Callable[[Rig, Strike], AbstractContextManager[None]]
"""Breaks something at the beginning of a block, and mends it at its end."""


def strike(rig: Rig, what: Strike, done: Callable[[], bool]) -> None:
    """One fault, from its beginning to its end; it ends early once `done`."""
    if wait_for(done, what.pause_s):
        return
    with _BREAKING[what.kind](rig, what):
        over = done if what.kind is not Kind.POINT else lambda: done() or not rig.stack.process(what.target).running()
        wait_for(over, what.seconds)


@contextmanager
def _killed(rig: Rig, what: Strike) -> Iterator[None]:
    rig.replace(what.target)
    yield


@contextmanager
def _at_point(rig: Rig, what: Strike) -> Iterator[None]:
    if what.fault is None:
        raise ValueError(what)
    rig.arm((what.target,), Rule(what.fault, Action.KILL, skip=what.skip))
    yield
    rig.arm((what.target,))
    if not rig.stack.process(what.target).running():
        rig.replace(what.target)


@contextmanager
def _frozen(rig: Rig, what: Strike) -> Iterator[None]:
    with rig.frozen(what.target):
        yield


@contextmanager
def _clock(rig: Rig, what: Strike) -> Iterator[None]:
    rig.replace(what.target, **wrong_clock())
    yield
    rig.replace(what.target)


def _between(begin: Callable[[Rig], object], end: Callable[[Rig], object]) -> Breaking:
    @contextmanager
    def breaking(rig: Rig, _: Strike) -> Iterator[None]:
        begin(rig)
        yield
        end(rig)

    return breaking


def _rings(names: tuple[str, ...], action: Action) -> Breaking:
    return _between(lambda rig: rig.arm(names, Rule(Fault.PUBLISH, action, times=None)), lambda rig: rig.arm(names))


def _once(act: Callable[[Rig], object]) -> Breaking:
    return _between(act, lambda rig: None)


def _full(*, on: bool) -> Callable[[Rig], None]:
    def change(rig: Rig) -> None:
        rig.s3_proxy.refuse_writes = on

    return change


def _slowed(proxy: str) -> Breaking:
    return _between(lambda rig: setattr(getattr(rig, proxy), "delay_s", _SLOW_S), lambda rig: setattr(getattr(rig, proxy), "delay_s", 0.0))


_BREAKING: Final[dict[Kind, Breaking]] = {
    Kind.KILL: _killed,
    Kind.POINT: _at_point,
    Kind.FREEZE: _frozen,
    Kind.CLOCK: _clock,
    Kind.LOSE: _rings(_LOSERS, Action.LOSE),
    Kind.TWICE: _rings(NAMES, Action.TWICE),
    Kind.BROKER_CUT: _once(lambda rig: rig.cut_broker()),
    Kind.BROKER_RESTART: _once(lambda rig: rig.rabbitmq.restart()),
    Kind.BROKER_KILL: _between(lambda rig: rig.rabbitmq.kill(), lambda rig: rig.rabbitmq.start()),
    Kind.BROKER_DISK: _between(lambda rig: rig.disk_alarm(on=True), lambda rig: rig.disk_alarm(on=False)),
    Kind.DATABASE_RESTART: _once(lambda rig: rig.postgres.restart()),
    Kind.DATABASE_KILL: _between(lambda rig: rig.postgres.kill(), lambda rig: rig.postgres.start()),
    Kind.DATABASE_REFUSED: _between(lambda rig: rig.database_proxy.refuse(), lambda rig: rig.database_proxy.allow()),
    Kind.DATABASE_SLOW: _slowed("database_proxy"),
    Kind.S3_AWAY: _between(lambda rig: rig.s3_proxy.refuse(), lambda rig: rig.s3_proxy.allow()),
    Kind.S3_SLOW: _slowed("s3_proxy"),
    Kind.S3_FULL: _between(_full(on=True), _full(on=False)),
}
