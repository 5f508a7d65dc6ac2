"""Runs `outer` in a scratch in-memory DuckDB that holds released tables only."""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import duckdb

from dpsql.answer import Answer, Row
from dpsql.bars import Shown
from dpsql.compiler.given import Moment
from dpsql.compiler.program import Plan, Program, Read
from dpsql.consistent import DISAGREE, agreed, fitting
from dpsql.errors import Refused, Unfinished, of_engine
from dpsql.kernel.accountant import Loss
from dpsql.kernel.keys import Keys, PrivateKeys, PublicKeys
from dpsql.policy.catalog import DOUBLE, MOST_DAYS, Type, quoted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CLOSED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "python_enable_replacements": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "memory_limit": "4GB",
    "threads": 1,  # else the order of groups, where none is asked for, would be up to the clock
    "lock_configuration": True,
    "allowed_configs": ["max_execution_time"],
}

LISTED = 2**24  # characters of SQL whose keys are kept
FEW = 2_000  # rows that are given to Python at once
REMEMBERED = 256  # finishing queries
FIRST, LAST = "TIMESTAMP '0001-01-01'", "TIMESTAMP '9999-12-31'"

Show = Callable[[duckdb.DuckDBPyConnection], object]  # puts a release under the name "noisy", for one connection
See = Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]]  # a cursor that sees it; no other is in use then

# A public table: its columns as CREATE TABLE has them, and its rows as an Arrow stream.
Public = tuple[str, Callable[[], Any]]


class Scratch:
    """The scratch database of a session. Each answer keeps its tables there for as long as it lives."""

    def __init__(self, seconds: float = 60.0) -> None:
        """`seconds` is what one query over releases may take, where its statement has no end (`until`)."""
        self._seconds, self._end = seconds, threading.local()
        self.connection = duckdb.connect(":memory:", config={**CLOSED, "max_execution_time": milliseconds(seconds)})
        self._numbers = itertools.count()
        self._keys: dict[str, str] = {}  # the table of each list of public keys
        self._desks: dict[tuple[str, ...], tuple[duckdb.DuckDBPyConnection, Seen]] = {}
        self.lock = threading.RLock()  # an answer may be dropped by the garbage collector at any point
        self._parsed: dict[str, duckdb.Statement] = {}

    @contextmanager
    def until(self, end: float) -> Iterator[None]:
        """What this thread asks meanwhile is ended when the monotonic clock reaches `end`."""
        self._end.at = end
        try:
            yield
        finally:
            del self._end.at

    def timed(self, cursor: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
        """Tell a cursor, which another thread may have used before, when its next queries are to end."""
        end = getattr(self._end, "at", None)
        seconds = self._seconds if end is None else end - time.monotonic()
        cursor.execute(f"SET max_execution_time = {milliseconds(seconds)}")
        return cursor

    def finish(self, plan: Plan, noisy: Any, loss: Loss) -> Answer:
        """The answer that the finishing query gives on what was released. It runs once the answer is computed or read.

        Needs:   noisy columns, one row for each key; a charge for them
        Gives:   the answer
        Proof:   the scratch database holds only released and public tables and has no way to files, network or other databases, so
                 whatever `outer` computes is post-processing
        Checked: test_record_play
        """
        if isinstance(plan.release.keys, PublicKeys) and hasattr(noisy, "__arrow_c_stream__"):
            return self._answer(plan, partial(self._desk, tuple(plan.release.noise), noisy), loss)
        show = show_range(plan) if noisy is None else lambda cursor: cursor.register("noisy", noisy)
        return self._answer(plan, self._shown(show), loss)

    def again(self, plan: Plan, stored: str, loss: Loss) -> Answer:
        """The answer whose released table was `stored`."""
        types = (
            [(key, type_.sql) for key, type_, *_ in plan.release.keys.columns]
            if isinstance(plan.release.keys, PrivateKeys)
            else []
        )
        types += [(column, "DECIMAL(38, 0)") for column in plan.release.noise]
        cells = ", ".join(f'CAST("row" ->> {i} AS {type_}) AS "{name}"' for i, (name, type_) in enumerate(types))
        rows = f'SELECT {cells} FROM (SELECT unnest(CAST(? AS JSON[])) AS "row")'
        show = (
            (lambda cursor: cursor.execute(f'CREATE TEMP TABLE "noisy" AS {rows}', [stored]))
            if plan.release.noise
            else None
        )
        return self._answer(plan, self._shown(show or show_range(plan)), loss)

    def _answer(self, plan: Plan, see: See, loss: Loss) -> Answer:
        names = tuple(output.name for output in plan.outputs)
        return Answer(names, loss, Tables(self, next(self._numbers), plan, see), plan)

    def _shown(self, show: Show) -> See:
        """A cursor of the answer's own."""
        cursor = self.connection.cursor()
        show(cursor)

        @contextmanager
        def see() -> Iterator[duckdb.DuckDBPyConnection]:
            with self.lock:
                yield self.timed(cursor)

        return see

    @contextmanager
    def _desk(self, columns: tuple[str, ...], noisy: Any) -> Iterator[duckdb.DuckDBPyConnection]:
        """One cursor for all releases that are integers in these columns, of which it sees one at a time: to show a release to
        another takes half as long as to finish it."""
        with self.lock:
            if columns not in self._desks:
                if len(self._desks) == REMEMBERED:
                    self._desks.clear()
                cursor, seen = self.connection.cursor(), Seen(noisy)
                cursor.register("noisy", seen)
                self._desks[columns] = cursor, seen
            cursor, seen = self._desks[columns]
            seen.rows = noisy
            try:
                yield self.timed(cursor)
            finally:
                seen.rows = None

    def parsed(self, text: str) -> duckdb.Statement:
        """Over few rows parsing takes as long as all the rest."""
        if text not in self._parsed:
            if len(self._parsed) == REMEMBERED:
                self._parsed.clear()
            (self._parsed[text],) = self.connection.extract_statements(text)
        return self._parsed[text]

    def listed(self, text: str) -> str:
        """The table of public keys and their numbers. The last ones are kept: to read many from their text takes long."""
        if text not in self._keys:
            while self._keys and sum(map(len, self._keys)) + len(text) > LISTED:
                self.connection.execute(f"DROP TABLE {self._keys.pop(next(iter(self._keys)))}")
            self.connection.execute(f'CREATE TABLE keys_{(number := next(self._numbers))} AS {text} ORDER BY "row"')
            self._keys[text] = f"keys_{number}"
        return self._keys[text]

    def combine(self, program: Program, answers: list[Answer], tables: Mapping[str, Public], loss: Loss) -> Answer:
        """Run a program's own query on the answers of its releases and on public tables: post-processing."""
        number = next(self._numbers)
        with self.lock, self.connection.cursor() as cursor:
            show(self.timed(cursor), program.outer, answers, tables)
            try:
                self.timed(cursor).execute(f"CREATE TABLE answer_{number} AS {program.outer}")
            except duckdb.Error as error:
                raise Unfinished(str(error).partition("\n")[0]) from None
            names = tuple(row[0] for row in cursor.execute(f"DESCRIBE answer_{number}").fetchall())
            renamed = ", ".join(f'{quoted(name)} AS "c{i}"' for i, name in enumerate(names))
            cursor.execute(f"CREATE OR REPLACE TABLE answer_{number} AS SELECT {renamed} FROM answer_{number}")
        answer = Answer(names, loss, Tables(self, number), program)
        # Of limits that were chosen, or made from earlier answers, only the releases themselves know which were used.
        notes = dict.fromkeys(note for one in answers for note in one.notes)
        for family in program.families:
            plans = [program.parts[number] for number, _ in family]
            if len(family) > 1 and not fitting(plans, [axes for _, axes in family]):
                notes[f"totals {DISAGREE}"] = None
        answer.notes = tuple(notes)
        return answer

    def agree(self, program: Plan | Program, answers: list[Answer]) -> None:
        """Where the last answer completes the levels of one query, make totals equal the sums of their parts: before anyone
        has read them, so that all see the same."""
        for family in program.families if isinstance(program, Program) else ():
            if max(number for number, _ in family) != len(answers) - 1:
                continue
            plans = [plan for number, _ in family if isinstance(plan := answers[number].plan, Plan)]
            fit = fitting(plans, [axes for _, axes in family])
            if not fit:
                continue
            plans, levels = [plans[i] for i in fit], [family[i] for i in fit]
            made = agreed(plans, [axes for _, axes in levels], [dict(answers[number].noisy) for number, _ in levels])
            for (number, _), plan, table in zip(levels, plans, made, strict=True):
                answers[number] = self.finish(plan, table, answers[number].loss)

    def values(self, read: Read, answers: list[Answer], tables: Mapping[str, Public]) -> tuple[Any, ...]:
        """The column that a query over answers gives."""
        rows, kind = self.rows(read, answers, tables), read.columns[0][1].kind
        if kind == "DOUBLE":  # which it was planned with, whatever kind of number the engine made
            rows = rows.project("CAST(#1 AS DOUBLE)")
        if kind in ("DATE", "TIMESTAMP"):  # years that Python has not are texts
            usual = f"{FIRST} <= #1 AND #1 < {LAST}"
            rows = rows.project(f"CASE WHEN {usual} THEN #1 END, CASE WHEN NOT ({usual}) THEN CAST(#1 AS VARCHAR) END")
            return tuple(Moment(text, kind) if text is not None else value for value, text in rows.fetchall())
        if kind == "INTERVAL":
            rows = rows.project(f"CASE WHEN #1 BETWEEN to_days(-{MOST_DAYS}) AND to_days({MOST_DAYS}) THEN #1 END")
        return tuple(row[0] for row in rows.fetchall())

    def rows(self, read: Read, answers: list[Answer], tables: Mapping[str, Public]) -> duckdb.DuckDBPyRelation:
        """What a query over answers gives."""
        with self.lock:
            cursor = self.connection.cursor()
            show(self.timed(cursor), read.query, answers, tables)
            return self.timed(cursor).sql(read.query)

    def confirm(self, plan: Plan | Program, schemas: Mapping[str, str] = MappingProxyType({})) -> None:
        """Let the engine bind the finishing query, so that one which cannot run is refused before anything is charged."""
        with self.lock, self.connection.cursor() as cursor:
            try:
                if isinstance(plan, Plan):
                    cursor.execute(f"EXPLAIN {unfilled(plan)}").fetchall()
                    return
                for name in plan.tables:
                    cursor.execute(f"CREATE TEMP TABLE {quoted(f'public {name}')} ({schemas[name]})")
                for index, part in enumerate(plan.parts):
                    for read in (*part.waits, *part.reads):
                        found = cursor.execute(f"DESCRIBE {read.query}").fetchall()
                        fits(read, [Type(row[1]) for row in found])
                    cursor.execute(view(index, tuple(output.name for output in part.outputs), unfilled(part)))
                cursor.execute(f"EXPLAIN {plan.outer}").fetchall()
            except duckdb.Error as error:
                raise of_engine(str(error)) from None

    def tell(self, names: tuple[str, ...], rows: list[Row], loss: Loss, types: tuple[str, ...] | None = None) -> Answer:
        """An answer that is not about persons, in the shape of the others. Without `types` they are those of the values."""
        number = next(self._numbers)
        if types is not None:
            with self.lock, self.connection.cursor() as cursor:
                listed = ", ".join(f'"c{i}" {type_}' for i, type_ in enumerate(types))
                cursor.execute(f"CREATE TABLE answer_{number} ({listed})")
                for row in rows:
                    cursor.execute(f"INSERT INTO answer_{number} VALUES ({', '.join('?' * len(types))})", row)
            return Answer(names, loss, Tables(self, number))
        cells = ", ".join(f"({', '.join('?' * len(names))})" for _ in rows)
        columns = ", ".join(f'"c{i}"' for i in range(len(names)))
        with self.lock, self.connection.cursor() as cursor:
            everything = [cell for row in rows for cell in row]
            cursor.execute(
                f"CREATE TABLE answer_{number} AS SELECT * FROM (VALUES {cells}) AS t({columns})", everything
            )
        return Answer(names, loss, Tables(self, number))


def milliseconds(seconds: float) -> int:
    """As the engine takes them: not less, since a statement that is ended must have had its time; and 0 would be no end."""
    return max(1, math.ceil(1000 * seconds) + 1)


def unfilled(plan: Plan) -> str:
    """The finishing query of a release, on a row that nobody has released."""
    columns = [f'CAST(NULL AS {type_.sql}) AS "{key}"' for key, type_, *_ in plan.release.keys.columns]
    columns += [f'CAST(0 AS DECIMAL(38, 0)) AS "{column}"' for column in plan.release.noise]
    return f'WITH "released" AS (SELECT {", ".join(["CAST(0 AS BIGINT) AS row", *columns])}) {plan.outer}'


def fits(read: Read, types: list[Type]) -> None:
    """What is computed from releases for a later one has the kinds that it was planned with."""
    planned = [type_ for _, type_ in read.columns]
    if len(types) != len(planned):
        raise Refused("not_supported", "a subquery that is a value has more than one column", "Select one.")
    for type_, plan in zip(types, planned, strict=True):
        same = type_ == plan or (plan == DOUBLE and type_.numeric)
        if not same or type_.kind in ("LIST", "OTHER", "NULL"):
            raise Refused(
                "not_supported",
                f"a value of type {type_.sql} is computed from what was released, and used where persons are counted",
                "Select a released column as it is, or a number.",
            )


def show(cursor: duckdb.DuckDBPyConnection, query: str, answers: list[Answer], tables: Mapping[str, Public]) -> None:
    """The answers and public tables that a query reads, under the names that it has for them. Only this cursor sees them."""
    for index, answer in enumerate(answers):
        cursor.execute(view(index, answer.columns, f"SELECT * FROM {answer.kept}"))
    for name, (columns, rows) in tables.items():
        if (called := quoted(f"public {name}")) in query:
            cursor.execute(f"CREATE TEMP TABLE {called} ({columns})")
            cursor.register("incoming", rows())
            cursor.execute(f'INSERT INTO {called} SELECT * FROM "incoming"')
            cursor.unregister("incoming")


def view(index: int, names: tuple[str, ...], query: str) -> str:
    """One answer under the name that a program knows it by. Only this connection sees it."""
    columns = ", ".join(f'"c{i}" AS {quoted(name)}' for i, name in enumerate(names))
    return f'CREATE TEMP VIEW "release {index}" AS SELECT {columns} FROM ({query})'


def show_range(plan: Plan) -> Show:
    """Where nothing was asked about anyone the keys are all there is."""
    assert isinstance(plan.release.keys, PublicKeys)
    made = f'CREATE TEMP TABLE "noisy" AS SELECT range AS "number" FROM range({plan.release.keys.count})'
    return lambda cursor: cursor.execute(made)


def numbered(keys: Keys) -> str:
    """A release with the number of each key, in their order. Private ones come in the engine's, which other people's rows decide."""
    rows = 'SELECT * FROM "noisy"'
    if isinstance(keys, PrivateKeys) and keys.columns:
        casts = ", ".join(f'CAST("{key}" AS {type_.sql}) AS "{key}"' for key, type_ in keys.columns)
        order = ", ".join(f'"{key}" ASC NULLS LAST' for key, _ in keys.columns)
        rows = f'SELECT * REPLACE ({casts}) FROM "noisy" ORDER BY {order}'
    return f'SELECT (row_number() OVER () - 1) AS "row", * FROM ({rows})'


def drop(scratch: Scratch, table: str) -> None:
    try:
        with scratch.lock, scratch.connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {table}")
    except duckdb.Error:  # the interpreter is going down, and the scratch database with it
        pass


class Seen:
    """What a cursor sees, for now."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)


class Tables:
    """One answer and what was released for it. Its tables are in the scratch database for as long as this lives."""

    def __init__(self, scratch: Scratch, number: int, plan: Plan | None = None, see: See | None = None) -> None:
        """Of an answer that has a table; or of a plan and what was released by it. Then it has one when somebody asks for it."""
        self._scratch, self._plan, self._name = scratch, plan, f"answer_{number}"
        self._see, self._made, self._size = see or scratch.connection.cursor, plan is None, 0
        if plan is None:
            weakref.finalize(self, drop, scratch, self._name)
        elif isinstance(plan.release.keys, PublicKeys):
            self._size = plan.release.keys.count
        else:  # the order in which they came is not kept
            with self._see() as cursor:
                made = cursor.execute(scratch.parsed(f'CREATE TEMP TABLE "sorted" AS {numbered(plan.release.keys)}'))
                ((self._size,),) = made.fetchall()
                cursor.unregister("noisy")

    def _released(self, plan: Plan) -> str:
        """A query for what was released, with the number of each key."""
        return numbered(plan.release.keys) if isinstance(plan.release.keys, PublicKeys) else 'SELECT * FROM "sorted"'

    def _finished(self, plan: Plan) -> str:
        released = self._released(plan)
        if (
            isinstance(plan.release.keys, PublicKeys) and plan.release.keys.columns
        ):  # of each it has a row, in their order
            released = f'SELECT * FROM {self._scratch.listed(plan.release.keys.text)} POSITIONAL JOIN "noisy"'
        return f'WITH "released" AS ({released}) {plan.outer}'

    @property
    def kept(self) -> str:
        """The answer's table."""
        with self._see() as cursor:
            if self._plan and not self._made:
                cursor.execute(f"CREATE OR REPLACE TABLE {self._name} AS {self._finished(self._plan)}")
                weakref.finalize(self, drop, self._scratch, self._name)
                self._made = True
        return self._name

    def compute(self) -> list[Row] | None:
        """The rows, if they are few: they are read sooner than a table of them is made. Else there is a table now."""
        if self._plan is None or self._size > FEW:
            _ = self.kept
            return None
        with self._see() as cursor:
            query = f'SELECT * EXCLUDE "row" FROM ({self._finished(self._plan)})'
            return cursor.execute(self._scratch.parsed(query)).fetchall()

    def answer(self, names: tuple[str, ...]) -> duckdb.DuckDBPyRelation:
        columns = ", ".join(f'"c{i}" AS {quoted(name)}' for i, name in enumerate(names))
        return self._scratch.connection.cursor().sql(f"SELECT {columns} FROM {self.kept}")

    def beside(
        self, shown: Sequence[Shown], ends: Mapping[tuple[int, str], list[float | None]]
    ) -> duckdb.DuckDBPyRelation:
        """The answer with the ends of error bars as columns."""
        cursor, order = self._scratch.connection.cursor(), list(ends)
        listed = ", ".join(f'unnest(CAST(? AS DOUBLE[])) AS "e{i}"' for i in range(len(order)))
        cursor.execute(f'CREATE TEMP TABLE "ends" AS SELECT {listed}', [ends[key] for key in order])
        cells = (f'"e{order.index((one.column, one.end))}"' if one.end else f'"c{one.column}"' for one in shown)
        columns = ", ".join(f"{cell} AS {quoted(one.name)}" for cell, one in zip(cells, shown, strict=True))
        return cursor.sql(f'SELECT {columns} FROM {self.kept} POSITIONAL JOIN "ends"')

    def rows(self) -> NDArray[np.int64]:
        with self._scratch.connection.cursor() as cursor:
            found = cursor.execute(f'SELECT "row" FROM {self.kept}').fetchnumpy()
        rows: NDArray[np.int64] = found["row"].astype("int64")
        return rows

    def stored(self) -> str:
        """The released table as JSON, from which `Scratch.again` makes the same answer."""
        if self._plan is None:
            return "[]"
        cells = f"SELECT CAST(COLUMNS(* EXCLUDE row) AS VARCHAR) FROM ({self._released(self._plan)}) ORDER BY row"
        with self._see() as cursor:
            return json.dumps(cursor.execute(cells).fetchall())

    def columns(self) -> Mapping[str, NDArray[np.float64]]:
        if self._plan is None or not self._plan.release.noise:
            return {}
        columns = ", ".join(f'CAST("{name}" AS DOUBLE) AS "{name}"' for name in self._plan.release.noise)
        with self._see() as cursor:
            cells = f"SELECT {columns} FROM ({self._released(self._plan)}) ORDER BY row"
            return dict(cursor.execute(cells).fetchnumpy())
