"""The router as a process of its own."""

from __future__ import annotations

import logging
import signal
import sys
from typing import Final

from dualtrack import bootstrap
from dualtrack.domain.errors import InvalidRequest
from dualtrack.models.factory import open_models
from router.app import create_app
from router.server import ApiServer
from router.services import RouterServices

_SERVICE: Final = "router"
_LOG: Final = logging.getLogger(__name__)


def main() -> int:
    """Serve until SIGTERM or SIGINT; the exit status."""
    try:
        settings = bootstrap.load_settings()
    except InvalidRequest as error:
        print(error.message, file=sys.stderr)  # noqa: T201 - there is no log yet
        return 2
    flush = bootstrap.telemetry(settings, _SERVICE)
    runtime = bootstrap.open_runtime(settings, _SERVICE)
    models = open_models(settings.models)
    models.warm_up()
    try:
        app = create_app(RouterServices(runtime, models.gateway, settings.router))
        try:
            server = ApiServer(app, settings.router)
        except OSError as error:
            _LOG.error("can't listen on %s:%s: %s", settings.router.host, settings.router.port, error)
            return 1

        def stop(*_: object) -> None:
            server.should_exit = True

        # uvicorn raises the signal again once it has shut down: with the default handlers that would kill the process
        # before the last spans are flushed.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        _LOG.info("serving on %s", server.url)
        server.run()
    finally:
        models.close()
        bootstrap.close(runtime)
        flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
