"""Statements built once: what they become, and how often."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

from psycopg.types.json import Jsonb
from sqlalchemy import func, select, update

from dualtrack.db.engine import Transaction
from dualtrack.db.prepared import NOW, Insert, Later, Plus, Prepared, Update, given
from dualtrack.db.tables import calls, jobs
from dualtrack.domain.lifecycle import Phase


class Recorder:
    def __init__(self) -> None:
        self.ran: list[tuple[str, list[Any]]] = []

    def execute(self, sql: bytes, parameters: list[Any]) -> SimpleNamespace:
        self.ran.append((" ".join(sql.decode().split()), parameters))
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
    assert "jobs.id = $1" in first
    assert "jobs.status IN ('queued'::VARCHAR, 'running'::VARCHAR)" in first
    assert (one, other) == (["a"], ["b"])


def test_an_update_takes_plain_values_times_sums_and_documents() -> None:
    change, recorder = Update(jobs, jobs.c.id == given("job"), jobs.c.stopping), Recorder()
    change.run(recorder.tx, {"due_at": Later(5), "input_tokens": Plus(7), "reason": None, "plan": [{"title": "x"}]}, job="a")
    (sql, parameters) = recorder.ran[0]
    assert sql == (
        "UPDATE jobs SET reason=$1::VARCHAR, plan=$2::JSONB, input_tokens=(jobs.input_tokens + $3::BIGINT), due_at=(now() + $4) "
        "WHERE jobs.id = $5::VARCHAR RETURNING jobs.stopping"
    )
    assert (parameters[0], parameters[2], parameters[3].total_seconds(), parameters[4]) == (None, 7, 5, "a")
    assert isinstance(parameters[1], Jsonb)


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
    assert recorder.ran[0][0] == "INSERT INTO calls (id, finished_at) VALUES ($1::VARCHAR, (now() + $2))"


def test_fixed_values_are_written_out_where_they_are_plain() -> None:
    late = timedelta(seconds=1)
    values: dict[str, Any] = {
        "tries": 0,
        "owner": None,
        "phase": Phase.PLAN,
        "message": "it's",
        "malformed": -1,
        "due_at": func.now() + late,
        "plan": [],
    }
    prepared, recorder = Prepared(lambda: update(jobs).values(**values).where(jobs.c.id == given("job"))), Recorder()
    prepared.run(recorder.tx, {"job": "a"})
    ((sql, parameters),) = recorder.ran
    assert "tries=0::INTEGER" in sql
    assert "owner=NULL::BIGINT" in sql
    assert "phase='plan'::VARCHAR" in sql
    assert sql.count("$") == 5
    assert [value for value in parameters if not isinstance(value, Jsonb)] == ["it's", -1, late, "a"]
