"""The database's own promises, on a real PostgreSQL: schema, lifecycle, claims, fencing, presence, gapless events."""

from __future__ import annotations

import re
import select as io
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from pydantic import SecretStr
from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from dualtrack.db import claims, events, idempotency, jobs, migrate, steps, tenants, usual_calls, usual_plans
from dualtrack.db.engine import Database, Transaction, assert_no_transaction
from dualtrack.db.idempotency import RequestKey
from dualtrack.db.prepared import Prepared
from dualtrack.db.presence import Presence, call
from dualtrack.db.tables import calls, metadata
from dualtrack.db.tables import events as events_table
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.errors import DatabaseUnavailable, IdempotencyMismatch, StaleAttempt
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.ids import new_id
from dualtrack.domain.job import JobSpec
from dualtrack.domain.lifecycle import TRANSITIONS, JobStatus
from dualtrack.domain.limits import PlatformLimits
from dualtrack.settings import DatabaseSettings
from dualtrack.testing.waiting import PATIENCE_S, wait_until

LIMITS = PlatformLimits()
DEAD = 1 << 60  # an owner whose session lock nobody holds


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(DatabaseSettings(url=SecretStr(database_url)))
    migrate.upgrade(opened)
    yield opened
    opened.close()


@pytest.fixture
def presence(database: Database) -> Iterator[Presence]:
    mine = Presence(database, check_s=0.5)
    mine.start()
    yield mine
    mine.close()


def new_job(tx: Transaction) -> str:
    job_id = new_id("job")
    tenant = tenants.ensure_tenant(tx)
    spec = JobSpec(instructions="do it")
    jobs.create(
        tx, job_id=job_id, tenant_id=tenant, spec=spec, workspace=None, key_id=None, traceparent="", request_traceparent="", ring_s=5
    )
    return job_id


def test_the_migrated_database_is_what_the_tables_say(database: Database) -> None:
    assert migrate.drift(database) == []
    migrate.require_current(database)
    migrate.upgrade(database)  # a second time does nothing


def test_two_processes_that_migrate_at_once_do_not_clash(database_url: str) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        opened = Database(DatabaseSettings(url=SecretStr(database_url)))
        try:
            migrate.upgrade(opened)
        except BaseException as error:
            failures.append(error)
        finally:
            opened.close()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_an_empty_database_is_told_how_to_be_made_current(database_url: str) -> None:
    opened = Database(DatabaseSettings(url=SecretStr(database_url)))
    with pytest.raises(DatabaseUnavailable, match="dualtrack migrate"):
        migrate.require_current(opened)
    opened.close()


def test_a_downgrade_leaves_nothing_behind(database: Database) -> None:
    from alembic import command

    with database.engine.connect() as connection:
        config = migrate._config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        connection.commit()
    with database.transaction() as tx:
        left = tx.connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'"))
        assert left.all() == []
        functions = text("SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace")
        assert tx.connection.execute(functions).all() == []


def test_the_trigger_allows_exactly_the_table_of_transitions(database: Database) -> None:
    allowed = {(edge.source, edge.target) for edge in TRANSITIONS}
    waiting = {"waiting_since": func.now(), "waiting_until": func.now(), "reason": "paused", "due_at": None}
    for source in JobStatus:
        for target in JobStatus:
            if source is target:
                continue
            with database.transaction() as tx:
                job_id = new_job(tx)
                finished = {"phase": "none", "due_at": None, "finished_at": func.now()}
                tx.connection.execute(text("SET LOCAL session_replication_role = replica"))  # triggers off, to get into `source`
                values = {"status": source.value} | (finished if source.value in {"succeeded", "failed", "cancelled", "expired"} else {})
                values |= waiting if source is JobStatus.WAITING else {}
                tx.connection.execute(update(jobs_table).where(jobs_table.c.id == job_id).values(values))
            values = {
                "status": target.value,
                "phase": "none",
                "due_at": None,
                "finished_at": None,
                "waiting_since": None,
                "waiting_until": None,
            }
            values |= waiting if target is JobStatus.WAITING else {}
            if target.value in {"succeeded", "failed", "cancelled", "expired"}:
                values["finished_at"] = func.now()
            change = update(jobs_table).where(jobs_table.c.id == job_id).values(values)
            if (source, target) in allowed:
                with database.transaction() as tx:
                    tx.connection.execute(change)
            else:
                with pytest.raises(DBAPIError, match="not in the lifecycle"), database.transaction() as tx:
                    tx.connection.execute(change)


def test_events_can_not_be_changed(database: Database) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
        events.append(tx, job_id, NewEvent(EventType.JOB_QUEUED, {}))
    with pytest.raises(DBAPIError, match="append-only"), database.transaction() as tx:
        tx.connection.execute(update(events_table).values(type="job.failed"))


def test_concurrent_writers_leave_no_gap_and_no_repeat_in_a_jobs_events(database: Database) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)

    def write() -> None:
        for _ in range(20):
            with database.transaction() as tx:
                events.append(tx, job_id, NewEvent(EventType.CALL_STARTED, {}), NewEvent(EventType.CALL_FINISHED, {}))

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.transaction() as tx:
        assert [event.seq for event in events.page(tx, job_id, after=0, limit=1000)] == list(range(1, 241))
        assert events.heads(tx, [job_id, "job_none"]) == {job_id: (240, False)}


def test_a_rolled_back_transaction_leaves_no_gap_and_rings_nobody(database: Database) -> None:
    rung: list[str] = []
    with database.transaction() as tx:
        job_id = new_job(tx)
    with pytest.raises(RuntimeError), database.transaction() as tx:
        events.append(tx, job_id, NewEvent(EventType.JOB_STARTED, {}))
        tx.after_commit(lambda: rung.append("lost"))
        raise RuntimeError
    with database.transaction() as tx:
        assert events.append(tx, job_id, NewEvent(EventType.JOB_STARTED, {})) == 1
        tx.after_commit(lambda: rung.append("kept"))
    assert rung == ["kept"]


def test_a_claim_is_won_once_while_its_owner_lives(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
    won: list[int] = []

    def try_it() -> None:
        with database.transaction() as tx:
            row = claims.claim(tx, "jobs", job_id, presence.key, LIMITS)
            if row is not None:
                won.append(row.attempt)

    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [1]


def test_a_dead_owners_claim_is_free_at_once_and_its_late_write_is_refused(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
        assert claims.claim(tx, "jobs", job_id, DEAD, LIMITS) is not None
    with database.transaction() as tx:
        row = claims.claim(tx, "jobs", job_id, presence.key, LIMITS)
        assert row is not None
        assert row.attempt == 2
    with pytest.raises(StaleAttempt), database.transaction() as tx:
        jobs.release(tx, job_id, 1, {"tries": 0})
    with database.transaction() as tx:
        jobs.release(tx, job_id, 2, {"tries": 0})


def test_an_expired_lease_is_free_although_its_owner_lives(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
        claims.claim(tx, "jobs", job_id, presence.key, LIMITS)
        tx.connection.execute(update(jobs_table).values(lease_until=func.now() - text("interval '1 second'")))
    with database.transaction() as tx:
        row = claims.claim(tx, "jobs", job_id, presence.key, LIMITS)
        assert row is not None
        assert row.attempt == 2


def holders(database: Database) -> list[int]:
    with database.transaction() as tx:
        here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"  # others may be ending in theirs
        found = tx.connection.execute(text(f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND {here}"))
        return list(found.scalars())


def wait_for(condition: Callable[[], bool]) -> None:
    wait_until(condition, "what the test waits for")


def test_a_presence_that_lost_its_connection_comes_back(database: Database, presence: Presence) -> None:
    (before,) = holders(database)
    with database.transaction() as tx:
        tx.connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": before})
    wait_for(lambda: holders(database) not in ([], [before]))


def test_a_presence_whose_old_session_the_server_still_keeps_takes_its_place(database: Database) -> None:
    """As after a network that broke without a word: the server holds the lock for a session that nobody uses any more."""
    presence = Presence(database, check_s=0.5)
    with database.engine.connect() as ghost:
        ghost.execute(text("SELECT pg_advisory_lock(:key)"), {"key": presence.key})
        (before,) = holders(database)
        presence.start()
        assert holders(database) != [before]
        ghost.invalidate()
    presence.close()
    wait_for(lambda: holders(database) == [])


def test_a_presence_hears_that_it_is_called_whatever_befell_its_connection(database: Database) -> None:
    heard = threading.Event()
    presence = Presence(database, check_s=1000)
    presence.on_call(heard.set)
    presence.start()
    try:
        with database.transaction() as tx:
            call(tx, [presence.key, presence.key, 17])
            assert not heard.wait(0.2)  # not before the commit
        assert heard.wait(PATIENCE_S)
        heard.clear()
        (before,) = holders(database)
        with database.transaction() as tx:
            tx.connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": before})
        wait_for(lambda: holders(database) not in ([], [before]))

        def called() -> bool:
            with database.transaction() as tx:
                call(tx, [presence.key])
            return heard.wait(0.1)

        wait_for(called)  # it listens a moment after it holds its lock
    finally:
        began = time.monotonic()
        presence.close()
        assert time.monotonic() - began < PATIENCE_S


def test_a_closed_presence_frees_its_claims_at_once(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
        claims.claim(tx, "jobs", job_id, presence.key, LIMITS)
    presence.close()
    wait_for(lambda: holders(database) == [])
    with database.transaction() as tx:
        assert [row.id for row in claims.free_orphans(tx, "jobs")] == [job_id]


def test_renewing_extends_leases_and_tells_what_is_lost_or_stopped(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        kept, stopped, lost = new_job(tx), new_job(tx), new_job(tx)
        for job_id in (kept, stopped, lost):
            claims.claim(tx, "jobs", job_id, presence.key, LIMITS)
        jobs.change(tx, stopped, {"stopping": "cancelled"})
        jobs.change(tx, lost, {"attempt": 7})
    with database.transaction() as tx:
        assert claims.renew(tx, "jobs", [(kept, 1), (stopped, 1), (lost, 1)], LIMITS) == {(kept, 1): False, (stopped, 1): True}


def test_renewing_does_not_wait_for_a_row_somebody_is_changing(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
        claims.claim(tx, "jobs", job_id, presence.key, LIMITS)
    with database.transaction() as holder:
        jobs.get(holder, job_id, lock=True)
        with database.transaction() as tx:
            tx.connection.execute(text("SET LOCAL lock_timeout = '500ms'"))
            assert claims.renew(tx, "jobs", [(job_id, 1)], LIMITS) == {(job_id, 1): False}


def test_due_rows_are_rung_once_and_again_later_and_by_one_scheduler_only(database: Database) -> None:
    with database.transaction() as tx:
        ids = {new_job(tx) for _ in range(20)}
        assert claims.ring_due(tx, "jobs", LIMITS, 500) == []  # their first ring was just sent
        tx.connection.execute(update(jobs_table).values(due_at=func.now()))
    with database.transaction() as one, database.transaction() as other:
        first = {row.id for row in claims.ring_due(one, "jobs", LIMITS, 7)}
        second = {row.id for row in claims.ring_due(other, "jobs", LIMITS, 500)}
    assert len(first) == 7
    assert first | second == ids
    assert not first & second
    with database.transaction() as tx:
        assert claims.ring_due(tx, "jobs", LIMITS, 500) == []


def test_a_dead_owners_row_is_due_before_its_lease_ends_and_however_many_others_wait(database: Database) -> None:
    with database.transaction() as tx:
        waiting = [new_job(tx) for _ in range(30)]
        tx.connection.execute(update(jobs_table).values(due_at=func.now() - text("interval '1 hour'")))
        job_id = new_job(tx)
        claims.claim(tx, "jobs", job_id, DEAD, LIMITS)
    with database.transaction() as tx:
        assert [row.id for row in claims.free_orphans(tx, "jobs")] == [job_id]
        assert claims.free_orphans(tx, "jobs") == []
        assert {row.id for row in claims.ring_due(tx, "jobs", LIMITS, 500)} == {job_id, *waiting}


def test_a_ring_during_a_pause_is_ignored(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
        jobs.change(tx, job_id, {"not_before": func.now() + text("interval '1 hour'")})
        assert claims.claim(tx, "jobs", job_id, presence.key, LIMITS) is None
        jobs.change(tx, job_id, {"not_before": func.now()})
        row = claims.claim(tx, "jobs", job_id, presence.key, LIMITS)
        assert row is not None
        assert row.not_before is None


def test_a_claim_that_waited_for_a_lock_has_its_whole_lease(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
    with database.transaction() as tx:
        tx.connection.execute(text("SELECT pg_sleep(0.3)"))  # the transaction is older than the claim
        row = claims.claim(tx, "jobs", job_id, presence.key, PlatformLimits(lease_s=0.2, heartbeat_s=0.05))
        assert row is not None
        whole = tx.connection.execute(text("SELECT lease_until >= now() + interval '0.5 seconds' FROM jobs")).scalar_one()
    assert whole  # from the claim on, not from the beginning of the transaction


def test_an_outcome_is_written_once(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
        row = {"id": new_id("call"), "job_id": job_id, "tenant_id": "t", "step": 1, "position": 0, "tool": "shell", "effect": "pure"}
        tx.connection.execute(insert(calls).values(row | {"arguments": {}, "status": "pending", "due_at": func.now()}))
        claims.claim(tx, "calls", row["id"], presence.key, LIMITS)  # type: ignore[arg-type]
        steps.settle(tx, str(row["id"]), 1, {"status": "succeeded", "ok": True})
    with pytest.raises(StaleAttempt), database.transaction() as tx:
        steps.settle(tx, str(row["id"]), 1, {"status": "failed", "ok": False})
    with pytest.raises(DBAPIError, match="its outcome is written"), database.transaction() as tx:
        tx.connection.execute(update(calls).values(preview="other"))


def test_the_same_key_gives_the_same_resource_and_another_request_a_conflict(database: Database) -> None:
    with database.transaction() as tx:
        tenant, other = tenants.ensure_tenant(tx), tenants.ensure_tenant(tx, "other")
        key = RequestKey.of(tenant, "k", "POST", b"a")
        assert idempotency.once(tx, key, lambda: "job_1") == ("job_1", True)
        assert idempotency.once(tx, key, lambda: "job_2") == ("job_1", False)
        assert idempotency.once(tx, RequestKey.of(other, "k", "POST", b"b"), lambda: "job_3") == ("job_3", True)
        assert idempotency.once(tx, None, lambda: "job_4") == ("job_4", True)
        for request in (("POST", b"b"), ("POS", b"Ta"), ("POST", b"a", b"")):
            with pytest.raises(IdempotencyMismatch):
                idempotency.once(tx, RequestKey.of(tenant, "k", *request), lambda: "job_5")


def test_of_twins_under_one_key_one_creates_and_a_failed_first_leaves_the_key_free(database: Database) -> None:
    with database.transaction() as tx:
        key = RequestKey.of(tenants.ensure_tenant(tx), "k", "POST")
    with pytest.raises(ZeroDivisionError), database.transaction() as tx:
        idempotency.once(tx, key, lambda: str(1 // 0))
    created: list[str] = []
    start = threading.Barrier(4)
    found: list[tuple[str, bool]] = []

    def create() -> str:
        created.append(f"job_{len(created)}")
        time.sleep(0.05)  # the twins come while this one is at work
        return created[-1]

    def run() -> None:
        start.wait()
        with database.transaction() as tx:
            found.append(idempotency.once(tx, key, create))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert created == ["job_0"]
    assert sorted(found) == [("job_0", False)] * 3 + [("job_0", True)]


def test_keys_are_kept_hashed_and_revoked_ones_open_nothing(database: Database) -> None:
    with database.transaction() as tx:
        key = tenants.create_key(tx, tenants.ensure_tenant(tx), "test")
        found = tenants.caller(tx, key)
        assert found is not None
        stored = " ".join(str(row) for row in tx.connection.execute(select(metadata.tables["api_keys"])))
        assert key not in stored
        tx.connection.execute(update(metadata.tables["api_keys"]).values(revoked_at=func.now()))
        assert tenants.caller(tx, key) is None
        assert tenants.caller(tx, key + "x") is None


def test_no_model_or_tool_is_called_inside_a_transaction(database: Database) -> None:
    assert_no_transaction()
    with pytest.raises(AssertionError, match="transaction is open"), database.transaction():
        assert_no_transaction()
    assert_no_transaction()


def test_a_server_that_is_away_is_one_clear_error() -> None:
    away = Database(DatabaseSettings(url=SecretStr("postgresql+psycopg://u:secret@127.0.0.1:1/x")))
    with pytest.raises(DatabaseUnavailable) as refused:
        away.check()
    assert "DUALTRACK_DATABASE__URL" in refused.value.message
    assert "secret" not in str(refused.value)
    away.close()


def test_a_job_is_not_deleted_from_under_its_events(database: Database) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
        events.append(tx, job_id, NewEvent(EventType.JOB_QUEUED, {}))
    with pytest.raises(DBAPIError, match="violates"), database.transaction() as tx:
        tx.connection.execute(delete(jobs_table))


@pytest.mark.parametrize("statement", ["DELETE FROM events", "TRUNCATE events"])
def test_events_go_only_by_a_retention_rule(database: Database, statement: str) -> None:
    with database.transaction() as tx:
        events.append(tx, new_job(tx), NewEvent(EventType.JOB_QUEUED, {}))
    with pytest.raises(DBAPIError, match="events are kept"), database.transaction() as tx:
        tx.connection.execute(text(statement))
    with database.transaction() as tx:
        tx.connection.execute(text("SET LOCAL dualtrack.retention = 'on'"))
        tx.connection.execute(text(statement))
    with database.transaction() as tx:
        assert tx.connection.execute(select(func.count()).select_from(events_table)).scalar_one() == 0


def test_a_connection_that_is_cut_inside_a_transaction_is_one_clear_error(database: Database) -> None:
    with pytest.raises(DatabaseUnavailable), database.transaction() as tx:
        tx.connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    database.check()


def test_a_session_that_was_ended_for_idling_in_a_transaction_is_one_clear_error(database: Database) -> None:
    with pytest.raises(DatabaseUnavailable), database.transaction() as tx:
        jobs.progress(tx, "no job")
        driver = tx.connection.connection.driver_connection
        assert driver is not None
        tx.connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 50"))
        wait_for(lambda: bool(io.select([driver.fileno()], [], [], 0)[0]))
        jobs.progress(tx, "no job")
    database.check()


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
