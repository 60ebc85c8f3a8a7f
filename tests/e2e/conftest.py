"""The platform in separate processes, and a receiver for what they export: one for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dualtrack.testing.otlp import OtlpReceiver
from dualtrack.testing.stack import Stack


@pytest.fixture(scope="module")
def otlp() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def stack(postgres: Any, rabbitmq: Any, s3_server: Any, otlp: OtlpReceiver) -> Iterator[Stack]:
    url = postgres.create_database()
    broker = rabbitmq.new_vhost()
    # Slow heartbeats and a long lease prove that cancels and takeovers do not wait for them.
    environment = {
        "DUALTRACK_TELEMETRY__OTLP_ENDPOINT": otlp.endpoint,
        "DUALTRACK_LIMITS__HEARTBEAT_S": "10",
        "DUALTRACK_LIMITS__LEASE_S": "120",
        "DUALTRACK_WORKERS__SCHEDULER_TICK_S": "0.5",
    }
    with Stack(database_url=url, broker_url=broker, s3=s3_server, environment=environment) as running:
        yield running
    postgres.drop_database(url)
    rabbitmq.delete_vhost(broker)
