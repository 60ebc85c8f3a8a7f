"""What a command prints while it runs: shown as events within about a second, and kept beyond what an observation holds.

The events are a view for whoever watches; the outcome is in `call.finished`. They are bounded in number and size, tell what they leave
out, and are dropped when the database is away.
"""

from __future__ import annotations

import codecs
import logging
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, Self

from dualtrack.db import events, jobs, steps
from dualtrack.db.engine import Database
from dualtrack.domain.errors import DualtrackError
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.lifecycle import CallStatus
from dualtrack.domain.limits import KIB, SandboxLimits
from dualtrack.domain.step import Call
from dualtrack.domain.text import storable
from dualtrack.sandbox.sessions import Channel

_LOG: Final = logging.getLogger(__name__)
FLUSH_S: Final = 1.0
"""How often what was printed meanwhile becomes an event."""
EVENT_BYTES: Final = 4 * KIB
"""Bytes of one channel that an event shows; of more, the last ones."""
EVENTS: Final = 200
"""Output events of one call; a command that goes on printing is seen in its outcome only."""


@dataclass(slots=True)
class _Stream:
    """One channel of one call."""

    total: int = 0
    fresh: bytearray = field(default_factory=bytearray)
    """The last bytes that no event has shown."""
    skipped: int = 0
    """Bytes before those that no event will show."""
    spool: BinaryIO | None = None
    """What comes after the bytes that the outcome keeps."""
    spooled: int = 0


class CallOutput:
    """Takes the output of one call as it comes. Thread-safe; a context manager that gives its files back."""

    def __init__(self, call: Call, limits: SandboxLimits, changed: Callable[[CallOutput], None]) -> None:
        """Takes the call.

        Args:
            call: whose output it is.
            limits: `output_bytes` of each channel are in the outcome; up to `spool_bytes` of both together are kept beyond.
            changed: told when there is something to show.
        """
        self.call = call
        self._limits = limits
        self._changed = changed
        self._lock = threading.Lock()
        self._streams: dict[Channel, _Stream] = {}
        self._shown = 0
        self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over = True
            for stream in self._streams.values():
                if stream.spool is not None:
                    stream.spool.close()
        self._changed(self)

    def take(self, channel: Channel, data: bytes) -> None:
        """A `sandbox.sessions.Sink`."""
        with self._lock:
            stream = self._streams.setdefault(channel, _Stream())
            self._spool(stream, data)
            stream.total += len(data)
            if self._shown >= EVENTS:
                return
            stream.fresh += data[-EVENT_BYTES:]
            surplus = max(0, len(data) - EVENT_BYTES) + max(0, len(stream.fresh) - EVENT_BYTES)
            del stream.fresh[: max(0, len(stream.fresh) - EVENT_BYTES)]
            stream.skipped += surplus
        self._changed(self)

    def total(self, channel: Channel) -> int:
        """Bytes printed so far."""
        stream = self._streams.get(channel)
        return 0 if stream is None else stream.total

    def beyond(self, channel: Channel) -> BinaryIO | None:
        """The bytes that followed those of the outcome, from their beginning; None where there are none. Once the command has ended."""
        stream = self._streams.get(channel)
        if stream is None or stream.spool is None:
            return None
        stream.spool.seek(0)
        return stream.spool

    def fresh_events(self) -> list[NewEvent]:
        """What was printed since the last time; empty once the call is over."""
        with self._lock:
            new = [] if self._over else [self._event(channel, stream) for channel, stream in self._streams.items() if stream.fresh]
            new = [event for event in new if event.data["text"]]
            self._shown += len(new)
            return new

    def write_events(self, database: Database) -> None:
        """Write what is new as events, unless the call is no longer this attempt's."""
        new = self.fresh_events()
        if not new:
            return
        with database.transaction() as tx:
            jobs.get(tx, self.call.job_id, lock=True)
            now = steps.call(tx, self.call.id)
            if now.attempt == self.call.attempt and now.status is CallStatus.RUNNING:
                events.append(tx, self.call.job_id, *new)

    def _event(self, channel: Channel, stream: _Stream) -> NewEvent:
        whole = whole_characters(bytes(stream.fresh))
        data: dict[str, Any] = {
            "call_id": self.call.id,
            "step": self.call.step,
            "tool": self.call.tool,
            "attempt": self.call.attempt,
            "channel": channel.value,
            "offset": stream.total - len(stream.fresh),
            "skipped": stream.skipped,
            "text": storable(bytes(stream.fresh[:whole]).decode(errors="replace")),
        }
        del stream.fresh[:whole]
        stream.skipped = 0
        return NewEvent(EventType.CALL_OUTPUT, data)

    def _spool(self, stream: _Stream, data: bytes) -> None:
        beyond = data[max(0, self._limits.output_bytes - stream.total) :]
        room = self._limits.spool_bytes - sum(other.spooled for other in self._streams.values())
        kept = beyond[: max(0, room)]
        if kept:
            if stream.spool is None:
                stream.spool = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
            stream.spool.write(kept)
            stream.spooled += len(kept)


def whole_characters(data: bytes) -> int:
    """How many of these bytes to take so that no UTF-8 character is cut at their end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(data) - len(decoder.getstate()[0])


class OutputEvents:
    """Writes the events of all calls at work in one process; a context manager. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._waiting: dict[str, CallOutput] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write_often, name="output", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def of(self, call: Call, limits: SandboxLimits) -> CallOutput:
        """Where a call's output goes."""
        return CallOutput(call, limits, self._note)

    def flush(self) -> None:
        """Write what is new now."""
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        for output in waiting:
            try:
                output.write_events(self._database)
            except DualtrackError as error:
                _LOG.info("output of a call is not shown: %s", error, extra={"job_id": output.call.job_id, "call_id": output.call.id})

    def _note(self, output: CallOutput) -> None:
        with self._lock:
            self._waiting[output.call.id] = output

    def _write_often(self) -> None:
        while not self._stop.wait(FLUSH_S):
            try:
                self.flush()
            except Exception:  # noqa: BLE001 - it must outlive whatever happens
                _LOG.exception("output of calls could not be shown, trying again")
