"""A TCP proxy that can be told to be slow, to fall silent, to refuse, to hang up, or to answer HTTP writes with an error."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Final, Self

from dualtrack.testing.servers.process import free_ports

_CHUNK: Final = 262_144
_WRITES: Final = (b"PUT ", b"POST ", b"DELETE ")
_LINGER_S: Final = 10.0
_LOOK_S: Final = 0.02
_FULL: Final = (
    b"HTTP/1.1 507 Insufficient Storage\r\nContent-Type: application/xml\r\nConnection: close\r\n\r\n"
    b"<Error><Code>StorageFull</Code><Message>The disk is full.</Message></Error>"
)


class TcpProxy:
    """Listens on a port of 127.0.0.1 in a thread of its own and passes everything to another port.

    Attributes:
        port: where it listens.
        delay_s: seconds that every chunk is kept, in both directions.
        silent: nothing is passed on, in either direction, and nobody is refused, as where a network drops packets; what was sent meanwhile
            is passed on afterwards, as it is sent again then.
        refuse_writes: HTTP requests that write are answered by 507 (for servers that speak HTTP without TLS).
    """

    def __init__(self, target: int) -> None:
        """`target`: the port behind it, on 127.0.0.1."""
        self.target = target
        (self.port,) = free_ports(1)  # so that nobody else has it while connections are refused
        self.delay_s = 0.0
        self.silent = False
        self.refuse_writes = False
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.allow()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def allow(self) -> None:
        """Listen (again), at the same port as before."""
        self._do(self._listen())

    def refuse(self) -> None:
        """Listen no more and hang up every connection: clients are refused."""
        self._do(self._close(hard=True))

    def cut(self) -> None:
        """Hang up every connection; new ones are welcome."""
        self._do(self._close(hard=False))

    def _do(self, action: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(action, self._loop).result(10)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._link, "127.0.0.1", self.port, backlog=512)

    async def _close(self, *, hard: bool) -> None:
        if hard and self._server is not None:
            self._server.close()
            self._server = None
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._links.add(task)
        try:
            if self._server is None:  # refused since it was accepted
                return
            with contextlib.suppress(OSError, asyncio.CancelledError):
                there, out = await asyncio.open_connection("127.0.0.1", self.target)
                try:
                    await self._both(reader, writer, there, out)
                finally:
                    out.transport.abort()
        finally:
            self._links.discard(task)
            writer.transport.abort()

    async def _both(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, there: asyncio.StreamReader, out: asyncio.StreamWriter
    ) -> None:
        """Until either side has ended."""
        ways = [asyncio.ensure_future(self._pass(reader, out, writer)), asyncio.ensure_future(self._pass(there, writer, None))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            writer.transport.set_write_buffer_limits(high=0)  # `drain` then waits until all was sent
            with contextlib.suppress(OSError):
                await writer.drain()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, back: asyncio.StreamWriter | None) -> None:
        while data := await source.read(_CHUNK):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            while self.silent:  # noqa: ASYNC110 - set by other threads, which know no loop
                await asyncio.sleep(_LOOK_S)
            # A client sends its next request when it has the last answer, so each begins a chunk.
            if self.refuse_writes and back is not None and data.startswith(_WRITES):
                back.write(_FULL)
                back.write_eof()
                await _drop_the_rest(source)
                return
            sink.write(data)
            await sink.drain()


async def _drop_the_rest(source: asyncio.StreamReader) -> None:
    """Read what the client still sends until it hangs up: closing a socket with unread bytes resets it, and the answer would be lost."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while await source.read(_CHUNK):
                pass
