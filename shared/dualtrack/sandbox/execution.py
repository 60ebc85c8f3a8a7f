"""One command inside a sandbox, from its request to its end: its output passed on, its input fed, its limits watched."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.inside import protocol
from dualtrack.sandbox.port import Ended
from dualtrack.sandbox.sessions import Channel, Sink
from dualtrack.sandbox.streams import FLOOD_FACTOR, Stream
from dualtrack.sandbox.wire import AgentWire, Frame

_TICK_S: Final = 0.05


class Execution:
    """Runs in the calling thread; what it has seen stays readable after a failure."""

    def __init__(self, wire: AgentWire, channel: int, limits: SandboxLimits, stdin: bytes, sink: Sink | None) -> None:
        self._wire = wire
        self._channel = channel
        self._limits = limits
        self._stdin = memoryview(stdin)
        self._credit = protocol.STDIN_WINDOW
        self._sink = sink
        self._started = time.monotonic()
        self.stdout = Stream(limits.output_bytes)
        self.stderr = Stream(limits.output_bytes)
        self.stopped: Ended | None = None
        """The limit that is the reason to end it; None: it ended by itself."""
        self.report: protocol.Fields | None = None
        """Of the EXIT frame."""
        self.refusal: protocol.Fields | None = None
        """Why the agent could not start it."""

    @property
    def wall_s(self) -> float:
        """Since the request."""
        return time.monotonic() - self._started

    def run(self, request: bytes, cancel: threading.Event, watch: Callable[[], Ended | None]) -> None:
        """Until it has ended or there is a reason to end it, which is then for the caller to do.

        Raises:
            ProtocolError: the agent has gone (`AgentLost`), or does not speak the protocol.
        """
        self._wire.send(request)
        self._feed()
        while self.report is None and self.refusal is None:
            for frame in self._wire.turn(min(_TICK_S, max(0.0, self._limits.wall_time_s - self.wall_s))):
                self._take(frame)
            if self.report is None and self.refusal is None:
                self.stopped = self._reason(cancel) or watch()
                if self.stopped is not None:
                    return

    def _reason(self, cancel: threading.Event) -> Ended | None:
        if cancel.is_set():
            return Ended.CANCELLED
        if self.wall_s >= self._limits.wall_time_s:
            return Ended.WALL_TIME
        if self.stdout.total + self.stderr.total > FLOOD_FACTOR * self._limits.output_bytes:
            return Ended.OUTPUT
        return None

    def _take(self, frame: Frame) -> None:
        kind, channel, payload = frame
        if channel != self._channel or self.report is not None:
            return  # what an earlier request has left
        if kind == protocol.STDOUT:
            self._output(Channel.STDOUT, self.stdout, payload)
        elif kind == protocol.STDERR:
            self._output(Channel.STDERR, self.stderr, payload)
        elif kind not in {protocol.TAKEN, protocol.EXIT, protocol.REFUSED}:
            raise protocol.ProtocolError(f"the agent sent a frame of kind {kind} out of place")
        else:
            fields = protocol.Fields(payload)
            if kind == protocol.TAKEN:
                self._credit += fields.number("bytes", 0, protocol.STDIN_WINDOW - self._credit)
                self._feed()
            elif kind == protocol.EXIT:
                self.report = fields
            else:
                self.refusal = fields

    def _output(self, channel: Channel, stream: Stream, payload: bytes) -> None:
        stream.add(payload)
        if self._sink is not None:
            self._sink(channel, payload)

    def _feed(self) -> None:
        """Send as much of stdin as the agent may have at once."""
        while self._stdin and self._credit:
            count = min(len(self._stdin), self._credit, protocol.MAX_PAYLOAD)
            self._wire.send(protocol.frame(protocol.STDIN, self._channel, bytes(self._stdin[:count])))
            self._stdin = self._stdin[count:]
            self._credit -= count
            if not self._stdin:
                self._wire.send(protocol.frame(protocol.STDIN_END, self._channel))
