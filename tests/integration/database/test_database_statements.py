"""Statements outside of transactions: committed by themselves, and planned to find rows by their key."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import text

from dualtrack.db import usual_calls, usual_plans
from dualtrack.db.engine import Database
from dualtrack.db.prepared import Prepared
from dualtrack.domain.errors import DatabaseUnavailable

_PID = b"SELECT pg_backend_pid()"


def test_a_statement_is_committed_by_itself_and_a_cut_connection_replaced(database: Database) -> None:
    with database.statements() as tx:
        tx.execute(b"CREATE TABLE kept (n int)", [])
        tx.execute(b"INSERT INTO kept VALUES ($1)", [1])
        (pid,) = tx.execute(_PID, []).fetchone() or (0,)
    with database.transaction() as other:
        assert other.connection.execute(text("SELECT n FROM kept")).scalar_one() == 1
        other.connection.execute(text("SELECT pg_terminate_backend(:pid, 60000)"), {"pid": pid})
    with database.statements() as tx:  # it was idle: nobody notices
        assert tx.execute(_PID, []).fetchone() != (pid,)
    with pytest.raises(DatabaseUnavailable), database.statements() as tx:
        tx.execute(b"SELECT pg_terminate_backend(pg_backend_pid())", [])
        tx.execute(b"SELECT 1", [])
    with database.statements() as tx:
        assert tx.execute(b"SELECT 1", []).fetchone() == (1,)


@pytest.mark.parametrize(
    "statement",
    [usual_plans._CLAIM, usual_plans._RECORD, usual_plans._RECORD_KEYED, usual_plans._END, usual_calls._BEGIN, usual_calls._FINISH],
    ids=["claim", "record", "record_keyed", "end", "begin", "finish"],
)
def test_usual_statements_find_rows_by_their_key_even_in_empty_tables(database: Database, statement: Prepared) -> None:
    compiled = statement._compile()
    with database.statements() as tx:
        tx.execute(b"PREPARE usual AS " + compiled.sql, [])
        nothing = ", ".join(["NULL"] * len(compiled.names))
        plan = "\n".join(row[0] for row in tx.execute(f"EXPLAIN (COSTS OFF) EXECUTE usual({nothing})".encode(), []))
        tx.execute(b"DEALLOCATE usual", [])
    assert "Seq Scan" not in plan
    used = set(re.findall(r"(?:using|Bitmap Index Scan on) (\w+)", plan))
    end = {"ix_approvals_job", "ix_webhooks_tenant_page", "ix_webhooks_job"} if statement is usual_plans._END else set()
    assert used <= {"pk_jobs", "pk_calls", "pk_steps", "pk_api_keys", "uq_calls_job_id_step_position"} | end
    assert used >= {"pk_jobs"}
    of_job = re.findall(r" on (?:calls|steps)[^\n]*\n *Index Cond: \(\(?job_id =.*", plan)
    assert all("step" in line or "number" in line for line in of_job), of_job  # never all calls or steps of a job
