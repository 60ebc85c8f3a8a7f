"""Real servers for the tests that ask for them, one of each for the entire run, and no sockets for unit tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from dualtrack.testing.servers import Postgres, S3Server
    from dualtrack.testing.servers.rabbitmq import RabbitBroker

# A run fails for what was changed, never by chance: the same examples each time, and none fails for the time it took on a busy machine.
# `--hypothesis-profile=search` looks for new ones.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dualtrack", settings.get_profile("search"), derandomize=True)
settings.load_profile("dualtrack")
pytest.register_assert_rewrite("dualtrack.testing.contracts")

_UNIT = Path(__file__).parent / "unit"
_SOCKET_EVENTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"})
_guarded = False


def _deny_sockets(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook sees every socket call of the interpreter, asyncio's and those of other libraries alike."""
    if not _guarded:
        return
    if event in _SOCKET_EVENTS:
        raise RuntimeError(f"A unit test must not use sockets ({event} {arguments[1:]!r}): move it to tests/integration or use a fake.")
    if event == "socket.getaddrinfo":
        raise RuntimeError(f"A unit test must not look up names ({arguments[:2]!r}): move it to tests/integration or use a fake.")


sys.addaudithook(_deny_sockets)


@pytest.fixture(autouse=True)
def _no_sockets_in_unit_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    global _guarded  # noqa: PLW0603 - an audit hook can't be removed, only told to look away
    _guarded = request.path.is_relative_to(_UNIT)
    yield
    _guarded = False


@pytest.fixture
def one_day() -> None:
    """What is counted by the day is counted for one: shortly before midnight (UTC) the next day is waited for."""
    from dualtrack.testing.waiting import wait_until

    last_minute = time(23, 59)
    wait_until(lambda: datetime.now(UTC).time() < last_minute, "midnight, UTC", within_s=120)


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitBroker]:
    """A running RabbitMQ for the whole run: `url` is its AMQP address, `new_vhost()` gives an empty broker."""
    from dualtrack.testing.servers import open_rabbitmq

    with open_rabbitmq() as server:
        yield server


@pytest.fixture
def broker_url(rabbitmq: RabbitBroker) -> Iterator[str]:
    """The AMQP address of a virtual host that only this test uses."""
    url = rabbitmq.new_vhost()
    yield url
    rabbitmq.delete_vhost(url)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running PostgreSQL for the whole run: `create_database()` gives an empty database, or a copy of another one.

    A dead owner is believed dead at once, however young the server is.
    """
    from dualtrack.db.presence import RETURN_SETTING
    from dualtrack.testing.servers import Postgres

    with Postgres(settings=[f"{RETURN_SETTING}=0"]) as server:
        yield server


@pytest.fixture
def database_url(postgres: Postgres) -> Iterator[str]:
    """The SQLAlchemy address of an empty database that only this test uses."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A running S3 server for the whole run, which checks signatures."""
    from dualtrack.testing.servers import S3Server

    with S3Server() as server:
        yield server
