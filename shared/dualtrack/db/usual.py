"""What the usual case of a step's transactions is, each of which is one statement for as many jobs as ask for it at the same time.

Such a statement asks for all that makes the case usual and changes nothing of a job where something is not as it asks; the caller then goes
the general way, which tells the cases apart. What it writes is what the general way would.

As everywhere, a job's row is locked before those of its calls. These statements lock several jobs, which nothing else does, so
they never wait for one: a job that somebody else holds just now goes the general way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import TableValuedAlias, column, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine

from dualtrack.db.prepared import given
from dualtrack.db.tables import jobs

UNASKED: Final = (jobs.c.stopping.is_(None), jobs.c.hold.is_(None), jobs.c.finished_at.is_(None))
"""Nobody wants anything of the job but that it goes on."""
EVENT_COLUMNS: Final = ["job_id", "seq", "type", "data"]
Types = Mapping[str, type[TypeEngine[Any]]]


def rows(name: str, types: Types) -> TableValuedAlias:
    """The parameter `name`, a JSON list of objects, as rows with columns of these types; what an object leaves out is null."""
    columns = [column(each, kind()) for each, kind in types.items()]
    return func.jsonb_to_recordset(given(name, JSONB())).table_valued(*columns, name=name).render_derived(with_types=True)
