"""A client's connection: closed when it keeps half a request for too long, which nobody would ever answer."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

INCOMPLETE_S: Final = 30.0
"""Seconds from a request's first byte (of the first one: from the connection's start) to the end of its headers. Also how long the
rest of a body is read and thrown away once its request is answered: a client that is still sending would otherwise see a cut
connection instead of the answer."""


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with one deadline for what no route looks after. While a route is at work, `body` limits its wait."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what came; this ends uvicorn's own wait between two requests (`timeout_keep_alive`), so that ours goes on."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        super().connection_lost(exc)
        self._disarm()

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._disarm()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(INCOMPLETE_S, self.transport.close)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
