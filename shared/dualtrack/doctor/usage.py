"""Promises about usage: what a job cost is the sum of what its events say."""

from __future__ import annotations

from typing import Final

from dualtrack.doctor.check import Check, Subject
from dualtrack.doctor.sql import JOB_ENDS

_COUNTS: Final = ("input_tokens", "output_tokens", "cached_tokens")
_SUMS: Final = ", ".join(f"sum((data->'usage'->>'{name}')::numeric) AS {name}" for name in _COUNTS)
_DIFFERS: Final = " OR ".join(f"j.{name} <> coalesce(e.{name}, 0)" for name in (*_COUNTS, "cost_usd"))

CHECKS: Final = (
    Check(
        name="usage.job",
        subject=Subject.JOBS,
        promise="a job's usage is the sum of the usages in its events",
        sql=f"""
            SELECT j.id AS job_id, j.id AS subject, format('the job says %s in, %s out, %s cached, $%s; its events %s, %s, %s, $%s',
                j.input_tokens, j.output_tokens, j.cached_tokens, j.cost_usd,
                coalesce(e.input_tokens, 0), coalesce(e.output_tokens, 0), coalesce(e.cached_tokens, 0), coalesce(e.cost_usd, 0)) AS detail
            FROM jobs j LEFT JOIN (
                SELECT job_id, {_SUMS}, sum((data->'usage'->>'cost_usd')::numeric(18, 9)) AS cost_usd
                FROM events WHERE data ? 'usage' AND type NOT IN ({JOB_ENDS}) GROUP BY job_id
            ) e ON e.job_id = j.id
            WHERE {_DIFFERS}
        """,
        advice="Budgets and bills of this job are wrong: trust its events, and report it.",
    ),
    Check(
        name="usage.end",
        subject=Subject.JOBS,
        promise="the usage in a job's end event is the job's",
        sql=f"""
            SELECT j.id AS job_id, j.id AS subject, format('the job says %s in, %s out; its end event %s', j.input_tokens, j.output_tokens,
                e.data->'usage') AS detail
            FROM jobs j JOIN events e ON e.job_id = j.id AND e.seq = j.last_seq AND e.type IN ({JOB_ENDS}) AND e.data ? 'usage'
            WHERE (e.data->'usage'->>'input_tokens')::numeric <> j.input_tokens
                OR (e.data->'usage'->>'output_tokens')::numeric <> j.output_tokens
                OR (e.data->'usage'->>'cost_usd')::numeric(18, 9) <> j.cost_usd
        """,
        advice="What the job's end told webhooks and readers is wrong: report it.",
    ),
)
