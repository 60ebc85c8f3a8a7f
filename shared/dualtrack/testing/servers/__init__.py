"""Private real servers for tests: RabbitMQ, PostgreSQL and S3, each on free ports of 127.0.0.1, with all its files in a folder of its own.

`RabbitMQ`, `Postgres` and `S3Server` share one way of use: `start()` returns once the server answers, `stop()` leaves no process,
`kill()` is `kill -9`, `restart()` goes on with the same data at the same address, `close()` kills it and removes its folder. As context
managers they start and close. A server that does not come up raises `ServerFailed` with the end of its log.
"""

from dualtrack.testing.servers.postgres import Postgres
from dualtrack.testing.servers.process import ServerFailed
from dualtrack.testing.servers.rabbitmq import RabbitMQ, open_rabbitmq
from dualtrack.testing.servers.rabbitmq_docker import DockerRabbitMQ
from dualtrack.testing.servers.s3 import S3Server

__all__ = ["DockerRabbitMQ", "Postgres", "RabbitMQ", "S3Server", "ServerFailed", "open_rabbitmq"]
