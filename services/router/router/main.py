"""The router as a process of its own."""

from __future__ import annotations

import logging
import sys
from typing import Final

from dualtrack import bootstrap
from dualtrack.domain.errors import InvalidRequest

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
    try:
        app = create_app(RouterServices(runtime, bootstrap.open_gateway(settings), settings.router))
        try:
            server = ApiServer(app, settings.router)
        except OSError as error:
            _LOG.error("can't listen on %s:%s: %s", settings.router.host, settings.router.port, error)
            return 1
        _LOG.info("serving on %s", server.url)
        server.run()
    finally:
        bootstrap.close(runtime)
        flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
