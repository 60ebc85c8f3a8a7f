"""Messages to running jobs. All of this under the job's row lock, but for `page`."""

from __future__ import annotations

from sqlalchemy import case, func, insert, literal, select, update

from dualtrack.db.engine import Transaction
from dualtrack.db.rows import message_of
from dualtrack.db.tables import jobs, messages
from dualtrack.domain.message import Message


def add(tx: Transaction, job_id: str, *, content: str, by: str) -> Message:
    """Add a job's next message."""
    counted = update(jobs).where(jobs.c.id == job_id).values(messages=jobs.c.messages + 1).returning(jobs.c.messages)
    number = tx.connection.execute(counted).scalar_one()
    values = {"job_id": job_id, "number": number, "content": content, "added_by": by}
    return message_of(tx.connection.execute(insert(messages).values(values).returning(*messages.c)).one())


def get(tx: Transaction, job_id: str, number: int) -> Message:
    """A message that is there."""
    return message_of(tx.connection.execute(select(messages).where(messages.c.job_id == job_id, messages.c.number == number)).one())


def page(tx: Transaction, job_id: str, *, after: int = 0, limit: int | None = None) -> list[Message]:
    """A job's messages with a number above `after`, in order."""
    statement = select(messages).where(messages.c.job_id == job_id, messages.c.number > after).order_by(messages.c.number)
    return [message_of(row) for row in tx.connection.execute(statement if limit is None else statement.limit(limit))]


def unanswered(tx: Transaction, job_id: str, step: int) -> bool:
    """Whether something was written to a job since the decision of that step, its last, was begun."""
    since = messages.c.after_step.is_(None) | (messages.c.after_step == step)
    return bool(tx.connection.execute(select(select(messages.c.number).where(messages.c.job_id == job_id, since).exists())).scalar_one())


def take(tx: Transaction, job_id: str, after_step: int) -> None:
    """Give all messages that were not taken yet their place, after that step."""
    new = update(messages).where(messages.c.job_id == job_id, messages.c.after_step.is_(None))
    tx.connection.execute(new.values(after_step=after_step))


def copy(tx: Transaction, source_id: str, job_id: str, *, through_step: int, rest: bool) -> int:
    """Give a new job the messages that another one had taken up to a step; where `rest`, all others too, to be taken anew; how many."""
    taken = messages.c.after_step <= through_step
    number = func.row_number().over(order_by=messages.c.number)
    after = case((taken, messages.c.after_step))
    columns = {"number": number, "content": messages.c.content, "added_by": messages.c.added_by, "after_step": after}
    columns["created_at"] = messages.c.created_at
    rows = select(literal(job_id), *columns.values()).where(messages.c.job_id == source_id)
    copied = insert(messages).from_select(["job_id", *columns], rows if rest else rows.where(taken)).returning(messages.c.number)
    count = len(tx.connection.execute(copied).all())
    tx.connection.execute(update(jobs).where(jobs.c.id == job_id).values(messages=count))
    return count
