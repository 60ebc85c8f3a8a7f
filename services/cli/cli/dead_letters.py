"""`dualtrack dead-letters`: the messages that no worker could take."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli import backend
from cli.outcome import CliError, UsageProblem
from cli.session import Session, command

if TYPE_CHECKING:
    from dualtrack.queues.dead_letters import DeadLetter, DeadLetters, Handled

_MOST: Final = 1000

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids as `dead-letters list` shows them.")]
All = Annotated[bool, typer.Option("--all", help="All that are there now.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Messages that no worker could take (needs the broker: DUALTRACK_BROKER__URL).",
    )
    command(group, "list")(list_letters)
    command(group, "requeue")(requeue)
    command(group, "drop")(drop)
    app.add_typer(group, name="dead-letters")


def list_letters(
    session: Session,
    limit: Annotated[int, typer.Option("--limit", min=1, max=_MOST, help="Most of them to show, oldest first.")] = 50,
) -> None:
    """Show dead letters: why each died, when, and how it begins."""
    with backend.failures():
        found, total = _queue(session).page(limit)
    if session.as_json:
        data = [_as_json(letter) for letter in found]
        session.out.document({"object": "list", "data": data, "has_more": total > len(found), "total": total})
        return
    rows = [(letter.id, letter.reason, letter.queue, _age(letter.died_at), letter.preview) for letter in found]
    session.out.table(("ID", "REASON", "QUEUE", "AGE", "MESSAGE"), rows)
    if total > len(found):
        session.out.say(f"{total - len(found)} more: --limit {min(total, _MOST)}", "dim")


def requeue(session: Session, ids: Ids = None, every: All = False) -> None:
    """Put dead letters back into the queue they died in, once the reason is gone. Interrupted, it may double one, which does no harm."""
    _handle(session, ids, every, lambda queue, chosen: queue.requeue(chosen), "requeued")


def drop(session: Session, ids: Ids = None, every: All = False) -> None:
    """Forget dead letters. That loses no work: a message only says that a row of the database is due, and the scheduler says so as well."""
    _handle(session, ids, every, lambda queue, chosen: queue.drop(chosen), "dropped")


def _handle(
    session: Session, ids: list[str] | None, every: bool, act: Callable[[DeadLetters, frozenset[str] | None], Handled], word: str
) -> None:
    if bool(ids) == every:
        raise UsageProblem("Name the ids of dead letters, or give --all.")
    with backend.failures():
        handled = act(_queue(session), None if every else frozenset(ids or ()))
    if session.as_json:
        session.out.document({"object": "dead_letters", word: handled.done, "left": handled.left, "unknown": handled.unknown})
    else:
        session.out.text(f"{len(handled.done)} {word}.")
    if handled.left:
        session.out.say(f"Left, because the queue they came from is none of this platform's: {', '.join(handled.left)}")
    if handled.unknown:
        raise CliError(f"There is no dead letter {', '.join(handled.unknown)}.")


def _queue(session: Session) -> DeadLetters:
    from dualtrack.queues.dead_letters import DeadLetters

    return DeadLetters(backend.broker(session))


def _as_json(letter: DeadLetter) -> dict[str, object]:
    return {
        "id": letter.id,
        "object": "dead_letter",
        "queue": letter.queue,
        "reason": letter.reason,
        "died_at": None if letter.died_at is None else letter.died_at.isoformat(),
        "size": letter.size,
        "preview": letter.preview,
    }


def _age(died_at: datetime | None) -> str:
    if died_at is None:
        return ""
    seconds = max(0, int((datetime.now(UTC) - died_at).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
