"""The composition root: settings in, adapters put together. The only place that picks them."""

from __future__ import annotations

import difflib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, get_args

from pydantic import ValidationError
from pydantic_settings import SettingsError
from yaml import YAMLError

from dualtrack import faults
from dualtrack.db import migrate
from dualtrack.db.engine import Database
from dualtrack.db.presence import Presence
from dualtrack.domain.errors import DualtrackError, InvalidRequest
from dualtrack.engine.leases import Leases
from dualtrack.engine.quarantine import Quarantine
from dualtrack.engine.runtime import Runtime, WorkerRuntime
from dualtrack.net.addresses import AllowList
from dualtrack.objects.factory import open_store
from dualtrack.queues.port import Doorbell
from dualtrack.queues.publisher import Publisher
from dualtrack.settings import ENV_PREFIX, OTHER_VARIABLES, Settings
from dualtrack.telemetry import logs, tracing
from dualtrack.tools.factory import open_registry

_LOG: Final = logging.getLogger(__name__)


def load_settings() -> Settings:
    """Settings from the environment and the file `DUALTRACK_CONFIG` names.

    Raises:
        InvalidRequest: naming the first variable that is wrong and why, never its value.
    """
    _refuse_unknown(os.environ)
    path = os.environ.get(f"{ENV_PREFIX}CONFIG")
    if path and not Path(path).is_file():
        raise InvalidRequest(f"{ENV_PREFIX}CONFIG: there is no file {path}.", param=f"{ENV_PREFIX}CONFIG")
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ENV_PREFIX + "__".join(str(part) for part in first["loc"]).upper()
        raise InvalidRequest(f"{name}: {first['msg']} (docs/settings.md lists all settings).", param=name) from None
    except SettingsError as error:
        raise InvalidRequest(
            f"{error} as JSON: write it as in docs/settings.md.".replace("error parsing value for", "Can't read")
        ) from None
    except (YAMLError, ValueError, TypeError) as error:
        raise InvalidRequest(f"{ENV_PREFIX}CONFIG: {path} is no YAML file of settings: {error}", param=f"{ENV_PREFIX}CONFIG") from None


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    """A mistyped variable must not be ignored: it is a setting that somebody believes in."""
    sections = tuple(f"{ENV_PREFIX}{name.upper()}__" for name in Settings.model_fields)
    for name in environment:
        if name.startswith(ENV_PREFIX) and name not in OTHER_VARIABLES and not name.startswith(sections) and not _is_section(name):
            close = difflib.get_close_matches(name, _all_names(), n=1)
            hint = f"; did you mean {close[0]}?" if close else " (docs/settings.md lists all settings)."
            raise InvalidRequest(f"There is no setting {name}{hint}", param=name)


def _is_section(name: str) -> bool:
    """A whole section as JSON, such as DUALTRACK_MODELS."""
    return name.removeprefix(ENV_PREFIX).lower() in Settings.model_fields


def _all_names() -> list[str]:
    kinds = [
        (section, kind) for section, field in Settings.model_fields.items() for kind in (field.annotation, *get_args(field.annotation))
    ]
    return [f"{ENV_PREFIX}{section}__{name}".upper() for section, kind in kinds for name in getattr(kind, "model_fields", {})]


def open_runtime(settings: Settings, service: str, doorbell: Doorbell | None = None) -> Runtime:
    """What every service works with; the doorbell is RabbitMQ unless one is given. Nothing is connected before its first use."""
    faults.arm(os.environ)
    allow = AllowList.parse(settings.net.allow)
    return Runtime(
        database=Database(settings.database, application=f"dualtrack-{service}"),
        doorbell=doorbell if doorbell is not None else Publisher(settings.broker),
        store=open_store(settings.objects),
        registry=open_registry(settings.tools, allow),
        limits=settings.limits,
        allow=allow,
        policies=tuple(settings.policies.rules),
        egress=settings.egress.ceiling,
        sealer=settings.webhooks.sealer,
        templates=settings.sandbox.known_templates,
    )


@contextmanager
def worker(runtime: Runtime, *, alone: str | None = None) -> Iterator[WorkerRuntime]:
    """A claiming process's heartbeat, for the time of the block.

    `alone`: the entry point of a process that works on suspect rows; None: this one does.
    """
    presence = Presence(runtime.database, check_s=runtime.limits.heartbeat_s)
    leases = Leases(runtime.database, presence, runtime.limits)
    leases.start()
    try:
        yield WorkerRuntime(runtime, presence, leases, None if alone is None else Quarantine(runtime.database, alone))
    finally:
        leases.stop()


@contextmanager
def service(name: str) -> Iterator[tuple[Settings, Runtime]]:
    """What a worker's `main` runs in: settings, telemetry, a current database schema; everything closed and flushed at the end.

    Whatever is wrong and can be named (settings, schema, sandbox) is one line of log and exit status 1.
    """
    try:
        settings = load_settings()
    except InvalidRequest as error:
        sys.exit(f"{name}: {error.message}")
    flush = telemetry(settings, name)
    runtime = open_runtime(settings, name)
    try:
        migrate.require_current(runtime.database)
        yield settings, runtime
    except DualtrackError as error:
        _LOG.critical("%s", error.message, extra={"code": error.code})
        sys.exit(1)
    finally:
        close(runtime)
        flush()


def close(runtime: Runtime) -> None:
    """Give connections back."""
    if isinstance(runtime.doorbell, Publisher):
        runtime.doorbell.close()
    runtime.database.close()


def telemetry(settings: Settings, service: str) -> Callable[[], None]:
    """Logs and spans from now on; call what comes back to flush the spans at the end."""
    logs.setup(service, settings.telemetry)
    return tracing.setup(service, settings.telemetry)


def stop_event() -> threading.Event:
    """An event set by the first SIGTERM or SIGINT, a second one ends the process at once; for processes whose main thread only waits."""
    stop = threading.Event()

    def first(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, first)
    return stop
