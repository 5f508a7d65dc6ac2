"""Synthetic rows for a rehearsal, made from the policy and the schema alone: always the same, and about nobody.

There are enough of them that answers look like answers. Values come from a hash of the row's number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction

import duckdb

from dpsql.kernel.charged import Ticket, sell
from dpsql.kernel.noise import Release
from dpsql.kernel.relations import typed
from dpsql.policy.catalog import Catalog, Column, Reference, Table, Type, Value, fold, quoted

PERSONS, PUBLIC, OTHERS = 20_000, 100, 100  # persons, rows of a public table, values of a column that declares none
PARTS = 1_000_003  # of a hash
NOTE = "a rehearsal on synthetic rows: the values mean nothing, no data was read and nothing was charged"


def fill(connection: duckdb.DuckDBPyConnection, catalog: Catalog) -> None:
    """Fill empty tables with persons, whose rows lie in the declared ranges and find each other."""
    for table in in_order(catalog):
        columns = ", ".join(quoted(column.name) for column in table.columns.values())
        cells = ", ".join(cell(table, column) for column in table.columns.values())
        connection.execute(
            f"INSERT INTO {path(table)} ({columns}) SELECT {cells} FROM ({anchors(table, catalog)}) AS a"
        )


def in_order(catalog: Catalog) -> Iterator[Table]:
    """All tables, each behind the one that it references."""
    done: set[str] = set()

    def made(table: Table) -> Iterator[Table]:
        if isinstance(table.person, Reference) and fold(table.person.table) not in done:
            yield from made(catalog.tables[fold(table.person.table)])
        if fold(table.name) not in done:
            done.add(fold(table.name))
            yield table

    for table in catalog.tables.values():
        yield from made(table)


def anchors(table: Table, catalog: Catalog) -> str:
    """SQL for the numbers n of the rows to be made, and for the columns that say whose they are."""
    match table.person:
        case None:
            return f"SELECT range AS n FROM range({PUBLIC})"
        case str(column):
            known = table.columns[fold(column)]
            alone = [fold(c) for c in table.key] == [fold(column)] or table.max_rows_contributed == 1
            many = "1" if alone else "1 + hash(range) % 3"
            number = (
                f"SELECT range AS person, unnest(range(({many})::BIGINT)) AS again FROM range({persons(known.type)})"
            )
            own = f"{nth(known.type, 'person')} AS {quoted(known.name)}"
            return f"SELECT row_number() OVER () - 1 AS n, {own} FROM ({number})"
        case Reference(columns, target, referenced):
            other = catalog.tables[fold(target)]
            own = ", ".join(
                f"TRY_CAST({quoted(theirs)} AS {table.columns[fold(ours)].type.sql}) AS {quoted(ours)}"
                for ours, theirs in zip(columns, referenced, strict=True)
            )
            number = f"SELECT *, row_number() OVER () AS number FROM {path(other)}"
            each = f"SELECT *, unnest(range([0, 1, 1, 2, 3][1 + (hash(number) % 5)::BIGINT])) AS again FROM ({number})"
            return f"SELECT row_number() OVER () - 1 AS n, {own} FROM ({each})"


def persons(type_: Type) -> int:
    """How many persons a column can tell apart."""
    return min(PERSONS, int(type_.range[1]) + 1) if type_.range is not None else PERSONS


def cell(table: Table, column: Column) -> str:
    """SQL for a value of a column in row n."""
    link = table.person
    if isinstance(link, str) and fold(link) == fold(column.name):
        return quoted(column.name)
    if isinstance(link, Reference) and fold(column.name) in map(fold, link.columns):
        return quoted(column.name)
    if [fold(word) for word in table.key] == [fold(column.name)]:
        return nth(column.type, "n")
    salt = "'" + f"{table.name}.{column.name}".replace("'", "''") + "'"
    value = chosen(column, f"(hash(n, {salt}) % {PARTS})::BIGINT")
    return f"CASE WHEN hash(n, {salt}, 0) % 100 < 97 THEN {value} END" if column.nullable else value


def chosen(column: Column, hashed: str) -> str:
    """A value within the declared domain or range; else one of a hundred that other columns of the type have too, for joins.

    Of these the first come more often, so that some groups are large enough to be shown.
    """
    if column.domain is not None:
        listed = ", ".join(sql(value, column.type) for value in column.domain)
        return f"[{listed}][1 + {hashed} % {len(column.domain)}]"
    if column.between is None:
        return nth(column.type, f"floor({OTHERS} * ({hashed} / {PARTS}.0) ** 3)::BIGINT")
    low, high = (sql(end, column.type) for end in column.between)
    part = f"({hashed} / {PARTS}.0)"
    match column.type.kind:
        case "DATE":
            return f"{low} + CAST({part} * ({high} - {low}) AS INTEGER)"
        case "TIMESTAMP":
            return f"{low} + to_microseconds(CAST({part} * epoch_us({high} - {low}) AS BIGINT))"
        case "INTERVAL":
            return f"to_microseconds(CAST(epoch_us({low}) + {part} * (epoch_us({high}) - epoch_us({low})) AS BIGINT))"
        case "DOUBLE":
            return f"CAST(CAST({low} AS DOUBLE) * (1 - {part}) + CAST({high} AS DOUBLE) * {part} AS {column.type.sql})"
    at = f"TRY_CAST(CAST({low} AS DOUBLE) * (1 - {part}) + CAST({high} AS DOUBLE) * {part} AS {column.type.sql})"
    return f"coalesce(least(greatest({at}, {low}), {high}), {low})"


def nth(type_: Type, number: str) -> str:
    """SQL for a value that no other number has, as far as the type allows."""
    match type_.kind:
        case "INTEGER" | "DECIMAL":
            assert type_.range is not None
            most = min(int(type_.range[1]), 2**62) + 1
            return f"CAST(({number}) % {most} AS {type_.sql})"
        case "DOUBLE":
            return f"CAST({number} AS {type_.sql})"
        case "VARCHAR":
            return f"'v' || ({number})"
        case "DATE":
            return f"DATE '2020-01-01' + ({number})::INTEGER"
        case "TIMESTAMP":
            return f"TIMESTAMP '2020-01-01' + to_hours({number})"
        case "INTERVAL":
            return f"to_hours({number})"
        case "BOOLEAN":
            return f"({number}) % 2 = 0"
        case "LIST":
            assert type_.element is not None
            cells = ", ".join(nth(type_.element, f"({number}) + {i}") for i in range(3))
            return f"CAST(list_slice([{cells}], 1, ({number}) % 4) AS {type_.sql})"
    return f"CAST(printf('%032x', {number}) AS UUID)" if type_.sql == "UUID" else f"CAST(NULL AS {type_.sql})"


def sql(value: Value | Fraction, type_: Type) -> str:
    """A declared value as a literal."""
    return str(typed(value, type_).sql("duckdb"))


def path(table: Table) -> str:
    return ".".join(map(quoted, table.path))


def free_tickets(releases: Iterable[Release]) -> tuple[Ticket, ...]:
    """For synthetic rows alone: a backend with real ones refuses them."""
    return sell(releases, synthetic=True)
