"""Statements that are built once and then run by the driver itself.

To build a SQLAlchemy expression and its result costs many times what PostgreSQL needs to run it, and a step of a job has some fifteen
statements. So those of a step are SQLAlchemy expressions over the tables, like all others, with `given`s for what changes,
but compiled once for the life of the process.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from psycopg import Cursor
from psycopg.types.json import Jsonb
from sqlalchemy import JSON, BindParameter, ColumnElement, Interval, Table, bindparam, func, insert, update
from sqlalchemy import Update as UpdateStatement
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.types import TypeEngine

if TYPE_CHECKING:
    from dualtrack.db.swift import Runs

_DIALECT: Final = psycopg.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call] # SQLAlchemy's dialects have no annotations
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Later:
    """A time of the database's clock, `seconds` from the beginning of the transaction: a value for a column."""

    seconds: float = 0.0


NOW: Final = Later()


@dataclass(frozen=True, slots=True)
class Plus:
    """What a column has plus `amount`: a value for a numeric column."""

    amount: Any


_SUPPLIED: Final = object()


def given(name: str, type_: TypeEngine[Any] | None = None) -> BindParameter[Any]:
    """A parameter that every run supplies; its type is that of the column it meets where none is given."""
    return bindparam(name, _SUPPLIED, type_=type_)


class Prepared:
    """One statement. `build` gives it, with a `given` for everything that a run supplies. Thread-safe."""

    __slots__ = ("_build", "_compiled")

    def __init__(self, build: Callable[[], Executable]) -> None:
        self._build = build
        self._compiled: _Compiled | None = None

    def run(self, tx: Runs, values: Values) -> Cursor[Any]:
        """Run it; its rows are those of `tx`."""
        sql, names, fixed, documents = self._compiled or self._compile()
        parameters = {**fixed, **values}
        for name in documents:
            parameters[name] = Jsonb(parameters[name])
        return tx.execute(sql, [parameters[name] for name in names])

    def _compile(self) -> _Compiled:
        compiled = cast("ClauseElement", self._build()).compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
        assert isinstance(compiled, SQLCompiler)  # noqa: S101 - what SQLAlchemy makes of every statement that is no DDL
        documents = frozenset(name for name, bind in compiled.binds.items() if isinstance(bind.type, JSON))
        plain = {name: value for name, value in compiled.params.items() if name not in documents}
        sql, names = _inlined(str(compiled), compiled.positiontup or (), plain)
        fixed = {name: compiled.params[name] for name in names if compiled.params[name] is not _SUPPLIED}
        self._compiled = _Compiled(sql.encode(), names, fixed, documents.intersection(names))
        return self._compiled


def _inlined(sql: str, names: Sequence[str], values: Values) -> tuple[str, tuple[str, ...]]:
    """A statement with those of `values` written out that are plain: SQL, and the names of the parameters that are left."""
    left: dict[str, int] = {}

    def written(match: re.Match[str]) -> str:
        name = names[int(match[1]) - 1]
        plain = _written(values.get(name, _SUPPLIED))
        return plain if plain is not None else f"${left.setdefault(name, len(left) + 1)}"

    text = _PARAMETER.sub(written, sql)
    return text, tuple(left)


def _written(value: object) -> str | None:
    """A value as SQL: the planner sees what it is, and nobody has to send it. None where it is better passed on."""
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "true", False: "false"}[value]
    if isinstance(value, int) and not isinstance(value, enum.Enum):
        return str(value) if value >= 0 else None
    return f"'{value}'" if isinstance(value, str) and _WORD.fullmatch(str(value)) else None


_PARAMETER: Final = re.compile(r"\$([0-9]+)")
_WORD: Final = re.compile(r"[A-Za-z0-9_. -]*")


class _Compiled(NamedTuple):
    sql: bytes
    """With `$1`, `$2` …, so that nobody has to look for parameters in it again."""
    names: tuple[str, ...]
    """Of the parameters, in order."""
    fixed: dict[str, Any]
    documents: frozenset[str]
    """Names of those that are JSON."""


class Update:
    """`UPDATE table SET … WHERE where RETURNING returning`, compiled once for each set of columns.

    A new value is a plain one, `Later`, `Plus`, or any other SQL expression (which is then compiled at every run). `around` makes the
    statement that is run out of the update.
    """

    def __init__(
        self,
        table: Table,
        where: ColumnElement[bool],
        *returning: ColumnElement[Any],
        around: Callable[[UpdateStatement], Executable] | None = None,
    ) -> None:
        self._table = table
        self._where = where
        self._returning = returning
        self._around = around
        self._kinds: dict[tuple[tuple[str, type | None], ...], Prepared] = {}

    def run(self, tx: Runs, values: Values, **keys: Any) -> Cursor[Any]:  # noqa: ANN401 - parameters of `where`
        """Write `values`; `keys` are the parameters of `where`."""
        kind = tuple((name, _kind(value)) for name, value in values.items())
        prepared = self._kinds.get(kind)
        if prepared is None:
            prepared = Prepared(lambda: self._statement(values))
            if not any(isinstance(value, ColumnElement) for value in values.values()):
                self._kinds[kind] = prepared
        return prepared.run(tx, keys | parameters(values))

    def _statement(self, values: Values) -> Executable:
        statement = update(self._table).where(self._where).values(_assigned(self._table, values))
        if self._returning:
            statement = statement.returning(*self._returning)
        return statement if self._around is None else self._around(statement)


class Insert:
    """`INSERT INTO table`, compiled once for each set of columns; values as in `Update`."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._kinds: dict[tuple[tuple[str, type | None], ...], Prepared] = {}

    def run(self, tx: Runs, values: Values) -> None:
        """Insert one row."""
        kind = tuple((name, _kind(value)) for name, value in values.items())
        prepared = self._kinds.get(kind)
        if prepared is None:
            prepared = Prepared(lambda: insert(self._table).values(_assigned(self._table, values)))
            if not any(isinstance(value, ColumnElement) for value in values.values()):
                self._kinds[kind] = prepared
        prepared.run(tx, parameters(values))


def _kind(value: object) -> type | None:
    return type(value) if isinstance(value, Later | Plus | ColumnElement) else None


def _assigned(table: Table, values: Values) -> dict[str, Any]:
    return {name: _expression(table, name, value) for name, value in values.items()}


def _expression(table: Table, name: str, value: object) -> ColumnElement[Any]:
    if isinstance(value, ColumnElement):
        return value
    column = table.c[name]
    if isinstance(value, Later):
        return func.now() + given(_PREFIX + name, Interval())
    new = given(_PREFIX + name, column.type)
    return column + new if isinstance(value, Plus) else new


_PREFIX: Final = "new_"


def parameters(values: Values) -> dict[str, Any]:
    """The parameters that `values` add to a statement."""
    return {_PREFIX + name: _parameter(value) for name, value in values.items() if not isinstance(value, ColumnElement)}


def _parameter(value: object) -> Any:  # noqa: ANN401 - whatever the column takes
    if isinstance(value, Later):
        return timedelta(seconds=value.seconds)
    return value.amount if isinstance(value, Plus) else value
