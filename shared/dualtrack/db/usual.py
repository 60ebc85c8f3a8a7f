"""What the usual case of a step's transactions is, each of which is one statement for as many jobs as ask for it at the same time.

Such a statement asks for all that makes the case usual and changes nothing of a job where something is not as it asks; the caller then goes
the general way, which tells the cases apart. What it writes is what the general way would.

As everywhere, a job's row is locked before those of its calls. These statements lock several jobs at once, so
they never wait for one: a job that somebody else holds just now goes the general way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Float, Interval, TableValuedAlias, Text, and_, column, func
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.types import TypeEngine

from dualtrack.db.prepared import given
from dualtrack.db.tables import jobs

UNASKED: Final = (jobs.c.stopping.is_(None), jobs.c.hold.is_(None), jobs.c.finished_at.is_(None))
"""Nobody wants anything of the job but that it goes on."""

EVENT_COLUMNS: Final = ["job_id", "seq", "type", "data"]
Types = Mapping[str, type[TypeEngine[Any]]]


def fits(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """All of the conditions, in a form that no index is chosen for.

    Rows are found by their key. An index of what is live or due looks smaller to the planner than that of the key whenever the statistics
    were taken while little was, and is then read from end to end for each row.
    """
    return func.coalesce(and_(*conditions), False)


_BETWEEN: Final = ","


def ids(name: str) -> ColumnElement[Sequence[str]]:
    """The parameter `name`, made by `joined`, as an array: an array itself takes the driver longer than the rest of the statement."""
    return func.string_to_array(given(name, Text()), _BETWEEN, type_=ARRAY(Text()))


def joined(names: Iterable[str]) -> str:
    """Ids as one text, without those that can be none of any row."""
    return _BETWEEN.join(name for name in names if _BETWEEN not in name)


def seconds(name: str) -> ColumnElement[timedelta]:
    """The parameter `name`, a number of seconds, as a span of time."""
    return func.make_interval(0, 0, 0, 0, 0, 0, given(name, Float()), type_=Interval())


def rows(name: str, types: Types) -> TableValuedAlias:
    """The parameter `name`, a JSON list of objects, as rows with columns of these types; what an object leaves out is null."""
    columns = [column(each, kind()) for each, kind in types.items()]
    return func.jsonb_to_recordset(given(name, JSONB())).table_valued(*columns, name=name).render_derived(with_types=True)
