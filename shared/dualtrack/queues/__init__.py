"""RabbitMQ: topology, messages, Celery."""
