"""The host's end of the descriptors to an agent: frames out and in, without ever blocking, in bounded memory."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from typing import Final, TypeAlias

from dualtrack.sandbox.inside import protocol

_CHUNK: Final = 256 * 1024

Frame: TypeAlias = tuple[int, int, bytes]
"""Kind, channel, payload."""


class AgentLost(protocol.ProtocolError):
    """The agent has gone, or does not answer."""


class AgentWire:
    """Frames to and from one agent. One thread at a time."""

    def __init__(self, source: int, target: int) -> None:
        """Takes the descriptor that is read and the one that is written; both stay their owner's."""
        os.set_blocking(source, False)
        os.set_blocking(target, False)
        self._source = source
        self._target = target
        self._decoder = protocol.Decoder(protocol.FROM_AGENT)
        self._waiting: deque[memoryview] = deque()
        self._poll = select.poll()
        self._poll.register(source, select.POLLIN)
        self._writes = False

    @property
    def backlog(self) -> int:
        """Bytes that the agent has not taken yet."""
        return sum(len(data) for data in self._waiting)

    def send(self, data: bytes) -> None:
        """Send encoded frames: at once as far as the agent takes them, the rest in later turns.

        Raises:
            AgentLost: it has gone.
        """
        if data:
            self._waiting.append(memoryview(data))
            self._write()

    def turn(self, timeout_s: float) -> list[Frame]:
        """Wait for frames, at most `timeout_s`; none came if the list is empty.

        Raises:
            AgentLost: it has gone.
            ProtocolError: it sent what is no frame.
        """
        frames: list[Frame] = []
        for descriptor, _ in self._poll.poll(max(0.0, timeout_s) * 1000):
            if descriptor == self._target and self._waiting:
                self._write()
            if descriptor == self._source:
                frames = self._read()
        return frames

    def answer(self, channel: int, kinds: frozenset[int], timeout_s: float) -> Frame:
        """The next frame of a channel; frames of others are dropped.

        Raises:
            AgentLost: it has gone, or did not answer in time.
            ProtocolError: it answered with another kind, or sent what is no frame.
        """
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            for frame in self.turn(left):
                if frame[1] == channel:
                    if frame[0] not in kinds:
                        raise protocol.ProtocolError(f"the agent answered with a frame of kind {frame[0]}")
                    return frame
        raise AgentLost(f"the agent did not answer within {timeout_s:g} s")

    def _read(self) -> list[Frame]:
        try:
            data = os.read(self._source, _CHUNK)
        except BlockingIOError:
            return []
        except OSError as error:
            raise AgentLost(f"the agent can't be read: {error}") from error
        if not data:
            raise AgentLost("the agent has ended")
        return self._decoder.feed(data)

    def _write(self) -> None:
        try:
            while self._waiting:
                first = self._waiting[0]
                count = os.write(self._target, first)
                if count == len(first):
                    self._waiting.popleft()
                else:
                    self._waiting[0] = first[count:]
        except BlockingIOError:
            pass
        except OSError as error:
            raise AgentLost("the agent has ended") from error
        if bool(self._waiting) != self._writes:
            self._writes = bool(self._waiting)
            if self._target == self._source:
                self._poll.modify(self._source, select.POLLIN | (select.POLLOUT if self._writes else 0))
            elif self._writes:
                self._poll.register(self._target, select.POLLOUT)
            else:
                self._poll.unregister(self._target)
