"""Synthetic rows for a rehearsal, made from the policy and the schema alone: always the same, and about nobody."""

from __future__ import annotations

import datetime
import math
import random
import uuid
from collections.abc import Callable, Iterator
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import duckdb

from dpsql.catalog import Catalog, Column, Reference, Table, fold, quoted

PERSONS, PUBLIC, SEED = 300, 100, 1
NOTE = "a rehearsal on synthetic rows: the values mean nothing, no data was read and nothing was charged"
EXACT = Context(prec=100)  # more digits than any type has
Row = dict[str, Any]  # by folded column name


def fill(connection: duckdb.DuckDBPyConnection, catalog: Catalog) -> None:
    """Fill empty tables with a few hundred persons, whose rows lie in the declared ranges and find each other."""
    made: dict[str, list[Row]] = {}
    for table in catalog.tables.values():
        rows_of(table, catalog, made)
    for name, rows in made.items():
        table = catalog.tables[name]
        columns = list(table.columns)
        listed = ", ".join(quoted(table.columns[column].name) for column in columns)
        for start in range(0, len(rows), 200):
            some = rows[start : start + 200]
            cells = ", ".join(f"CAST(? AS {table.columns[column].type.sql})" for column in columns)
            marks = ", ".join([f"({cells})"] * len(some))
            connection.execute(
                f"INSERT INTO {'.'.join(map(quoted, table.path))} ({listed}) VALUES {marks}",
                [row[column] for row in some for column in columns],
            )


def rows_of(table: Table, catalog: Catalog, made: dict[str, list[Row]]) -> list[Row]:
    """The rows of a table, and before them those of the table that it references."""
    name = fold(table.name)
    if name not in made:
        chance = random.Random(f"{SEED} {name}")
        given = list(anchors(table, catalog, made, chance))
        values = {column: generator(known, chance) for column, known in table.columns.items()}
        key = [fold(column) for column in table.key]
        made[name] = [
            {
                column: fixed[column]
                if column in fixed
                else nth(table.columns[column], number)
                if key == [column]
                else values[column]()
                for column in table.columns
            }
            for number, fixed in enumerate(given)
        ]
    return made[name]


def anchors(table: Table, catalog: Catalog, made: dict[str, list[Row]], chance: random.Random) -> Iterator[Row]:
    """For each row to be made, the columns that say whose it is."""
    match table.person:
        case None:
            yield from ({} for _ in range(PUBLIC))
        case str(column):
            alone = [fold(c) for c in table.key] == [fold(column)] or table.max_rows_contributed == 1
            for number in range(PERSONS):
                for _ in range(1 if alone else chance.randint(1, 3)):
                    yield {fold(column): nth(table.columns[fold(column)], number)}
        case Reference(columns, target, referenced):
            for row in rows_of(catalog.tables[fold(target)], catalog, made):
                for _ in range(chance.choice((0, 1, 1, 2, 3))):
                    pairs = zip(columns, referenced, strict=True)
                    yield {fold(own): held(table.columns[fold(own)], row[fold(other)]) for own, other in pairs}


def held(column: Column, value: Any) -> Any:
    """A value of what a column references; NULL if it is a number that the column's own type cannot hold."""
    ends = column.type.range if column.type.kind == "INTEGER" and value is not None else None
    return value if ends is None or ends[0] <= Fraction(value) <= ends[1] else None


def nth(column: Column, number: int) -> Any:
    """A value that no other number has, as far as the type allows."""
    match column.type.kind:
        case "INTEGER" | "DECIMAL":
            assert column.type.range is not None
            return number % (int(column.type.range[1]) + 1)
        case "DOUBLE":
            return float(number)
        case "VARCHAR":
            return f"v{number}"
        case "DATE":
            return datetime.date(2020, 1, 1) + datetime.timedelta(number)
        case "TIMESTAMP":
            return datetime.datetime(2020, 1, 1) + datetime.timedelta(hours=number)
        case "INTERVAL":
            return datetime.timedelta(hours=number)
        case "BOOLEAN":
            return number % 2 == 0
        case "LIST":
            assert column.type.element is not None
            return [nth(Column(column.name, column.type.element), number + i) for i in range(number % 4)]
    return uuid.UUID(int=number) if column.type.sql == "UUID" else None


def generator(column: Column, chance: random.Random) -> Callable[[], Any]:
    """Values within the declared domain or range; else a hundred that other columns of the type have too, for joins."""

    def value() -> Any:
        if column.nullable and chance.random() < 0.03:
            return None
        if column.domain is not None:
            return plain(chance.choice(column.domain))
        if column.between is not None:
            return plain(between(column, chance))
        return nth(column, chance.randrange(PUBLIC))

    return value


def between(column: Column, chance: random.Random) -> Any:
    assert column.between is not None
    low, high = column.between
    match column.type.kind:
        case "DATE":
            return low + datetime.timedelta(chance.randint(0, (high - low).days))
        case "TIMESTAMP":
            return low + datetime.timedelta(seconds=chance.randint(0, int((high - low).total_seconds())))
        case "INTERVAL":
            return datetime.timedelta(microseconds=chance.randint(int(low.length), int(high.length)))
        case "DOUBLE":
            return float(low) + chance.random() * (float(high) - float(low))
    steps = 10**column.type.scale
    return Fraction(chance.randint(math.ceil(low * steps), math.floor(high * steps)), steps)


def plain(value: Any) -> Any:
    """A value that the engine's Python client can take."""
    return (
        str(EXACT.divide(Decimal(value.numerator), Decimal(value.denominator)))
        if isinstance(value, Fraction)
        else value
    )
