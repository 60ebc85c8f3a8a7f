"""Serving the app: a socket that is bound at once, and an end that cuts nobody off."""

from __future__ import annotations

import socket
from typing import Final

import uvicorn
from fastapi import FastAPI

from dualtrack.settings import RouterSettings
from router.connection import Connection

GRACE_S: Final = 20
"""Seconds that requests under way get to finish once the server is told to stop."""
_BACKLOG: Final = 2048


class ApiServer(uvicorn.Server):
    """The app on an address of its own. `run()` blocks, in any thread; set `should_exit` to end it.

    The socket listens from construction on, so `url` is known (and connections wait) before `run`.
    """

    def __init__(self, app: FastAPI, settings: RouterSettings) -> None:
        """Raises OSError when the address can't be bound."""
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                access_log=False,  # spans and metrics say more
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=GRACE_S,
                ws="none",
            )
        )
        self._app = app
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        self._socket = socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
        self.port: Final[int] = self._socket.getsockname()[1]
        host = "127.0.0.1" if settings.host in {"0.0.0.0", "::"} else settings.host  # noqa: S104 - compared, not bound
        self.url: Final = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop."""
        super().run(sockets or [self._socket])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Event streams would never end by themselves: end them, then let every other request finish."""
        self._app.state.feed.close()
        await super().shutdown(sockets)
