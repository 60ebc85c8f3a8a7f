"""Warm sandboxes: started before they are asked for, claimed by one owner each, never used twice.

A claim takes one lock and one step of a deque. Everything else happens on a few starter threads, so that no more are started at once than
the machine does well: cold starts that somebody waits for come first, in order, then refills. How many are kept warm follows from what
was claimed lately (`sandbox.demand`); all sandboxes together are bounded by `limits.sandbox.sessions`.
"""

from __future__ import annotations

import contextlib
import logging
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, Self

from dualtrack.domain.errors import DualtrackError, SandboxFailed
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.launching import Launcher
from dualtrack.sandbox.pooled import PooledSession
from dualtrack.sandbox.rung import Launched, Rung
from dualtrack.sandbox.sessions import EndReason, Session, SessionRequest, Start
from dualtrack.sandbox.shelves import Kind, Order, Shelf
from dualtrack.settings import SandboxSettings
from dualtrack.telemetry import sandboxes, tracing
from dualtrack.telemetry.sandboxes import METRICS

_LOG: Final = logging.getLogger(__name__)
BUSY_S: Final = 20.0
"""A claim waits this long for the end of another session, when there are as many as there may be."""
_LOOK_S: Final = 1.0  # between two looks of an idle starter
_CHECK_S: Final = 15.0  # a warm sandbox is asked this often whether it lives
_PING_S: Final = 5.0
_JOIN_S: Final = 30.0
_UNHEALTHY: Final = 4  # failed starts in a row: some seconds


_Task = Callable[[], None]


def prepared(settings: SandboxSettings) -> list[str]:
    """Templates that are built, and have sandboxes started, before anybody asks for one."""
    return settings.pool_templates or [settings.template]


class SessionPool:
    """`Sessions` over one rung; a context manager. Its threads start at once."""

    def __init__(self, launcher: Launcher, settings: SandboxSettings, limits: SandboxLimits) -> None:
        """Takes the sizes of the pool, and the operator's limits, under which warm sandboxes are started.

        Raises:
            SandboxUnavailable: a template of `pool_templates` is not there.
        """
        self._launcher = launcher
        self._settings = settings
        self._limits = limits
        self._rung = launcher.rung.name.value
        self._changed = threading.Condition()
        self._shelves: dict[Kind, Shelf] = {}
        self._orders: deque[Order] = deque()
        self._claimed: set[PooledSession] = set()
        self._stuck: list[PooledSession] = []
        self._live = 0
        self._evicting = 0
        self._closing = False
        for name in prepared(settings) if settings.pool_max else ():
            launcher.templates.get(name)
            self._shelf(Kind(name, writable=True), settings.pool_min)
        METRICS.limit.labels(self._rung).set(limits.sessions)
        METRICS.live.labels(self._rung).set_function(lambda: self._live)
        self._threads = [
            threading.Thread(target=self._work, name=f"sandbox-starter-{number}", daemon=True) for number in range(settings.pool_starters)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def rung(self) -> Rung:
        """What isolates its sandboxes."""
        return self._launcher.rung

    @property
    def live(self) -> int:
        """Sandboxes that exist: warm, claimed, starting, or being removed."""
        return self._live

    def warm(self, template: str) -> int:
        """Sandboxes of a template that are ready to be claimed."""
        return sum(len(shelf.warm) for kind, shelf in list(self._shelves.items()) if kind.template == template)

    def check(self) -> None:
        """Raises `SandboxFailed`, saying why, while warm sandboxes can't be started again and again: for a worker's health."""
        for shelf in list(self._shelves.values()):
            if shelf.failures >= _UNHEALTHY:
                raise SandboxFailed(f"no sandbox of template {shelf.kind.template} starts on the rung {self._rung}: {shelf.problem}")

    # --- claims ------------------------------------------------------------------------------------------------------

    def claim(self, request: SessionRequest) -> Session:
        """See `Sessions.claim`. With as many sandboxes as there may be it waits up to `BUSY_S` for the end of one."""
        started = time.monotonic()
        template = request.template or self._settings.template
        request = replace(request, template=template)
        attributes = {sandboxes.RUNG: self._rung, sandboxes.TEMPLATE: template}
        with tracing.span("sandbox.claim", attributes=attributes) as span:
            session = self._take(request, started) or self._start(request)
            span.set_attribute(sandboxes.START, session.start.value)
            span.set_attribute(sandboxes.SESSION, session.id)
        METRICS.claims.labels(self._rung, template, session.start.value).inc()
        METRICS.claim_s.labels(self._rung, session.start.value).observe(time.monotonic() - started)
        return session

    def _fits(self, request: SessionRequest) -> bool:
        """Whether it may be served by a warm one, which has no way out and the operator's limits."""
        own, asked = self._limits, request.limits
        return request.egress is None and (asked.memory_bytes, asked.processes) == (own.memory_bytes, own.processes)

    def _take(self, request: SessionRequest, now: float) -> PooledSession | None:
        """A warm one that lives, if there is one that fits."""
        if not self._fits(request):
            return None
        kind = Kind.of(request)
        while True:
            with self._changed:
                shelf = self._shelves.get(kind)
                if shelf is None:
                    return None
                session = None if self._closing else shelf.take(now)
                if session is None:
                    return None
                self._claimed.add(session)
                self._changed.notify()
            if _lives(session.launched):
                return session
            self._lose(session)

    def _start(self, request: SessionRequest) -> PooledSession:
        """A cold one: launched by a starter thread, awaited by this one."""
        order = Order(request)
        with self._changed:
            if self._closing:
                raise _stopping()
            self._orders.append(order)
            self._changed.notify()
        try:
            if not order.served.wait(BUSY_S):
                self._give_up(order)
        except BaseException:
            self._abandon(order)
            raise
        if order.session is None:
            raise order.error or SandboxFailed("The sandbox was not started.")
        session = order.session
        try:
            self._launcher.ready(session)
        except BaseException:
            with contextlib.suppress(DualtrackError):
                session.close(EndReason.BROKEN)
            raise
        if self._fits(request):
            self._remember(Kind.of(request))
        return session

    def _give_up(self, order: Order) -> None:
        """Stop waiting for one that no starter has come to; wait on for one that is being launched."""
        with self._changed:
            if order in self._orders:
                self._orders.remove(order)
                raise SandboxFailed(
                    f"No sandbox could be started within {BUSY_S:g} s: {self._live} of at most {self._limits.sessions} exist "
                    "(DUALTRACK_LIMITS__SANDBOX__SESSIONS)."
                )
        order.served.wait()

    def _abandon(self, order: Order) -> None:
        """Nobody waits any more: what comes of it is removed."""
        with self._changed:
            order.abandoned = True
            if order in self._orders:
                self._orders.remove(order)
        if order.session is not None:
            order.session.close(EndReason.CANCELLED)

    def _remember(self, kind: Kind) -> None:
        """A kind that was claimed and works is kept warm from now on."""
        with self._changed:
            if self._settings.pool_max and kind not in self._shelves:
                self._shelf(kind, 0).demand.claimed(time.monotonic())

    def _shelf(self, kind: Kind, minimum: int) -> Shelf:
        shelf = self._shelves[kind] = Shelf(kind, minimum, self._settings.pool_max)
        METRICS.warm.labels(self._rung, kind.template).set_function(partial(self.warm, kind.template))
        return shelf

    def _gone(self, session: PooledSession, clean: bool) -> None:  # noqa: FBT001 - a callback's one answer
        """A claimed session was closed."""
        with self._changed:
            self._claimed.discard(session)
            if clean:
                self._live -= 1
                self._changed.notify()
            else:
                self._stuck.append(session)

    # --- starter threads ---------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                while (task := self._next()) is None:
                    if self._closing:
                        return
                    self._changed.wait(self._pause())
            try:
                task()
            except Exception:  # noqa: BLE001 - logged; without its starters a pool would be of no use
                _LOG.exception("a starter of sandboxes met a fault of ours and goes on")

    def _next(self) -> _Task | None:
        """What is to be done now; under the lock."""
        if self._closing:
            return None
        room = self._live < self._limits.sessions
        if self._orders:
            return self._serve_next() if room else self._evict()
        now = time.monotonic()
        for shelf in self._shelves.values():
            spare = shelf.spare(now)
            if shelf.warm and spare > 0:
                return partial(self._discard, shelf.take_oldest(), EndReason.EVICTED)
            if spare < 0 and room and now >= shelf.not_before:
                shelf.starting += 1
                self._live += 1
                return partial(self._refill, shelf)
            if shelf.warm and now - shelf.warm[0][1] > _CHECK_S:
                shelf.starting += 1
                return partial(self._check, shelf, shelf.take_oldest())
        return None

    def _pause(self) -> float:
        """Seconds until something may be due that nobody says."""
        now = time.monotonic()
        due = min((shelf.not_before for shelf in self._shelves.values() if shelf.not_before > now), default=now + _LOOK_S)
        return min(due - now, _LOOK_S)

    def _serve_next(self) -> _Task:
        self._live += 1
        return partial(self._serve, self._orders.popleft())

    def _evict(self) -> _Task | None:
        """Make room for an order by the end of a warm one, which is of another kind, or not what the order needs."""
        if self._evicting < len(self._orders):
            for shelf in self._shelves.values():
                if shelf.warm:
                    self._evicting += 1
                    return partial(self._discard_for_order, shelf.take_oldest())
        return None

    def _discard_for_order(self, session: PooledSession) -> None:
        try:
            self._discard(session, EndReason.EVICTED)
        finally:
            with self._changed:
                self._evicting -= 1

    def _serve(self, order: Order) -> None:
        try:
            session = self._launcher.launch(order.request, Start.COLD, self._gone)
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits for it
            order.error = error
            with self._changed:
                self._live -= 1
                self._changed.notify()
        else:
            with self._changed:
                self._claimed.add(session)
                order.session = session
            if order.abandoned:
                session.close(EndReason.CANCELLED)
        order.served.set()

    def _refill(self, shelf: Shelf) -> None:
        session = None
        try:
            session = self._launcher.launch(SessionRequest(self._limits, shelf.kind.template, shelf.kind.writable), Start.WARM, self._gone)
            self._launcher.ready(session)
        except DualtrackError as error:
            self._failed(shelf, error)
            if session is None:
                with self._changed:
                    self._live -= 1
            else:
                self._discard(session, EndReason.BROKEN)
        except BaseException:
            with self._changed:
                shelf.starting -= 1
                self._live -= 1
            raise
        else:
            shelf.failures = 0
            self._put(shelf, session)

    def _put(self, shelf: Shelf, session: PooledSession) -> None:
        with self._changed:
            shelf.put(session, time.monotonic())

    def _failed(self, shelf: Shelf, error: DualtrackError) -> None:
        with self._changed:
            pause = shelf.failed(error.message, time.monotonic())
            stopping = self._closing
        if not stopping:
            _LOG.warning("a sandbox of template %s could not be started; next try in %.1f s: %s", shelf.kind.template, pause, error.message)

    def _check(self, shelf: Shelf, session: PooledSession) -> None:
        """Put it back if it answers."""
        if session.agent.ping(_PING_S):
            self._put(shelf, session)
            return
        with self._changed:
            shelf.starting -= 1
        self._lose(session)

    def _lose(self, session: PooledSession) -> None:
        METRICS.lost.labels(self._rung).inc()
        _LOG.warning("a warm sandbox was found dead and is replaced", extra={"session": session.id, "said": session.launched.said()})
        self._discard(session, EndReason.BROKEN)

    def _discard(self, session: PooledSession, reason: EndReason) -> None:
        """End one that nobody uses."""
        clean = False
        try:
            session.dismantle(reason)
            clean = True
        except DualtrackError as error:
            _LOG.warning("a sandbox could not be removed yet: %s", error.message, extra={"session": session.id})
        finally:
            self._gone(session, clean)

    # --- the janitor's and the end -----------------------------------------------------------------------------------

    def tidy(self) -> int:
        """Try again to remove what could not be removed when it ended; how many are gone now."""
        with self._changed:
            stuck, self._stuck = self._stuck, []
        for session in stuck:
            self._discard(session, EndReason.BROKEN)
        return len(stuck) - len(self._stuck)

    def close(self) -> None:
        """See `Sessions.close`; returns when nothing is left, or what is left has been logged. May be repeated."""
        with self._changed:
            first, self._closing = not self._closing, True
            orders, self._orders = list(self._orders), deque()
            self._changed.notify_all()
        for order in orders:
            order.error = _stopping()
            order.served.set()
        if not first:
            return
        self._launcher.interrupt()
        for thread in self._threads:
            thread.join(_JOIN_S)
        for session in self._all():
            with contextlib.suppress(DualtrackError):
                session.close(EndReason.SHUTDOWN)
        self.tidy()
        for session in self._stuck:
            _LOG.error("a sandbox is left at the end of this process; the janitor of the next removes it", extra={"session": session.id})
        METRICS.live.labels(self._rung).set_function(lambda: 0)
        for kind in self._shelves:
            METRICS.warm.labels(self._rung, kind.template).set_function(lambda: 0)

    def _all(self) -> Iterator[PooledSession]:
        """Those that still exist, each once."""
        with self._changed:
            found = [*self._claimed, *(session for shelf in self._shelves.values() for session, _ in shelf.warm)]
            for shelf in self._shelves.values():
                shelf.warm.clear()
        yield from found


def _lives(launched: Launched) -> bool:
    """Whether a sandbox that should be silent is: at its end its output ends, and a stray word is as bad."""
    poll = select.poll()
    poll.register(launched.output, select.POLLIN)
    return not poll.poll(0)


def _stopping() -> SandboxFailed:
    return SandboxFailed("This executor is stopping: it starts no more sandboxes.")
