"""Statements built once: what they become, and how often."""

from types import SimpleNamespace
from typing import Any, cast

from psycopg.types.json import Jsonb
from sqlalchemy import func, select

from dualtrack.db.engine import Transaction
from dualtrack.db.prepared import NOW, Insert, Later, Plus, Prepared, Update, given
from dualtrack.db.tables import calls, jobs


class Recorder:
    def __init__(self) -> None:
        self.ran: list[tuple[str, dict[str, Any]]] = []

    def execute(self, sql: str, parameters: dict[str, Any]) -> SimpleNamespace:
        self.ran.append((" ".join(sql.split()), parameters))
        return SimpleNamespace(rowcount=1)

    @property
    def tx(self) -> Transaction:
        return cast("Transaction", self)


def test_a_statement_is_built_once_and_takes_its_parameters_at_each_run() -> None:
    built: list[int] = []

    def build() -> Any:
        built.append(1)
        return select(jobs.c.id).where(jobs.c.id == given("job"), jobs.c.status.in_(["queued", "running"]))

    prepared, recorder = Prepared(build), Recorder()
    for job in ("a", "b"):
        prepared.run(recorder.tx, {"job": job})
    assert built == [1]
    (first, one), (second, other) = recorder.ran
    assert first == second
    assert (one["job"], other["job"]) == ("a", "b")
    assert {"queued", "running"} <= set(one.values())


def test_an_update_takes_plain_values_times_sums_and_documents() -> None:
    change, recorder = Update(jobs, jobs.c.id == given("job"), jobs.c.stopping), Recorder()
    change.run(recorder.tx, {"due_at": Later(5), "input_tokens": Plus(7), "reason": None, "plan": [{"title": "x"}]}, job="a")
    (sql, parameters) = recorder.ran[0]
    assert sql == (
        "UPDATE jobs SET reason=%(new_reason)s::VARCHAR, plan=%(new_plan)s::JSONB, "
        "input_tokens=(jobs.input_tokens + %(new_input_tokens)s::BIGINT), due_at=(now() + %(new_due_at)s) "
        "WHERE jobs.id = %(job)s::VARCHAR RETURNING jobs.stopping"
    )
    assert parameters["new_due_at"].total_seconds() == 5
    assert (parameters["new_input_tokens"], parameters["new_reason"], parameters["job"]) == (7, None, "a")
    assert isinstance(parameters["new_plan"], Jsonb)


def test_the_same_columns_with_other_kinds_of_values_are_another_statement() -> None:
    change, recorder = Update(jobs, jobs.c.id == given("job")), Recorder()
    change.run(recorder.tx, {"due_at": NOW}, job="a")
    change.run(recorder.tx, {"due_at": None}, job="a")
    change.run(recorder.tx, {"due_at": func.clock_timestamp()}, job="a")
    assert len({sql for sql, _ in recorder.ran}) == 3
    assert "clock_timestamp()" in recorder.ran[2][0]


def test_an_insert_leaves_defaults_to_the_database() -> None:
    insert, recorder = Insert(calls), Recorder()
    insert.run(recorder.tx, {"id": "call_1", "finished_at": NOW})
    assert recorder.ran[0][0] == "INSERT INTO calls (id, finished_at) VALUES (%(new_id)s::VARCHAR, (now() + %(new_finished_at)s))"
