"""What the databases of the specs and of the lemma tests have in common: a policy, clean rows, and wild ones."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import duckdb

Row = tuple[Any, ...]
Rows = dict[str, list[Row]]

# What may stand in a cell of a hostile or careless world.
NUMBERS = [None, 0.0, -0.0, 1.0, 7.25, -3.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"), 99.999]
FAR = ["infinity", "-infinity", "0044-03-15 (BC)"]
DATES = [
    *[None, datetime.date(1, 1, 1), datetime.date(2020, 5, 17), datetime.date(9999, 12, 31), *FAR],
    *["5877642-06-25 (BC)", "5881580-07-10"],
]
TIMES = [
    *[None, datetime.datetime(1970, 1, 1), datetime.datetime(2021, 6, 1, 12)],
    *[datetime.datetime(9999, 12, 31, 23, 59, 59, 999999), *FAR],
    *["290309-12-22 (BC) 00:00:00", "294247-01-10 04:00:54.775806"],
]
INTERVALS = [
    *[None, "0 days", "1 month", "30 days", "29 days 24:00:00", "1 month -30 days", "-3 hours", "90 minutes"],
    *[
        "2147483647 months",
        "-2147483648 days",
        "9223372036854775807 microseconds",
        "2147483647 months -2147483648 days",
    ],
]
TEXTS = ["", "de", "DE ", "xx", "12", "-7.5", "2020-02-29", "e\u0301", "%_", "x" * 3000]
INTEGERS = {"SMALLINT": 2**15, "INTEGER": 2**31, "BIGINT": 2**63}
BUDGET = {"epsilon": 1e15, "delta": 1e-6, "accounting": "gdp"}


def odd(column: str) -> list[Any]:
    """Cells that a column of a kind world does not have."""
    kinds: dict[str, list[Any]] = {
        "VARCHAR": TEXTS,
        "DATE": DATES,
        "TIMESTAMP": TIMES,
        "INTERVAL": INTERVALS,
        "DOUBLE": NUMBERS,
        "BOOLEAN": [True],
    }
    type_ = column.split()[1]
    cells = kinds.get(type_) or [0, -INTEGERS[type_], INTEGERS[type_] - 1]
    return [cell for cell in cells if cell is not None] + [None] * ("NOT NULL" not in column)


def shaken(columns: dict[str, str], clean: Callable[..., Rows], seed: int, persons: int = 6) -> Rows:
    """Clean rows twice, with every fourth cell replaced: by an odd one, the first row's, or another row's.

    So keys are met twice or nowhere, and the person of the first row has most of them.
    """
    r = random.Random(seed)
    result: Rows = {}
    for table, rows in clean(persons, seed, same=1).items():
        places = enumerate(columns[table].split(", "))
        others = [[*odd(column), *(row[i] for row in rows), *[rows[0][i]] * len(rows)] for i, column in places]
        result[table] = [
            tuple(cell if r.random() < 0.75 else r.choice(others[i]) for i, cell in enumerate(row)) for row in rows * 2
        ]
    return result


@dataclass(frozen=True)
class Database:
    """Tables, the referenced ones first, with their columns as CREATE TABLE has them; public rows; what the policy says."""

    name: str
    columns: dict[str, str]
    public: Rows
    tables: dict[str, Any]
    clean: Callable[
        ..., Rows
    ]  # in range, within the limits, no group of one person: a huge epsilon gives plain answers
    wild: Callable[..., Rows]
    most: int = 8  # rows of one person that count

    def policy(self, **budget: Any) -> dict[str, Any]:
        defaults = {"epsilon": 1.0, "max_rows_contributed": self.most, "max_groups_contributed": 5}
        return {
            "dataset": {"id": self.name},
            "budget": {**BUDGET, **budget},
            "defaults": defaults,
            "tables": self.tables,
        }

    def pure(self) -> dict[str, Any]:
        return self.policy(accounting="pure")

    def undeclared(self) -> dict[str, Any]:
        """No limit and no range."""
        tables = {
            name: {k: v for k, v in table.items() if k not in ("max_rows_contributed", "columns")}
            | {"columns": {c: v for c, v in table.get("columns", {}).items() if "in" in v}}
            for name, table in self.tables.items()
        }
        return {**self.policy(), "defaults": {"epsilon": 1.0}, "tables": tables}

    def pure_undeclared(self) -> dict[str, Any]:
        return {**self.undeclared(), "budget": self.pure()["budget"]}

    def connect(self, rows: Rows, to: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyConnection:
        connection = to or duckdb.connect()
        for table, columns in self.columns.items():
            connection.execute(f"CREATE TABLE {table} ({columns})")
        self.fill(connection, rows)
        return connection

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """The columns of each table that rows have cells for."""
        return {
            table: [column.split()[0] for column in columns.split(", ") if "GENERATED" not in column]
            for table, columns in self.columns.items()
        }

    def fill(self, connection: duckdb.DuckDBPyConnection, rows: Rows) -> None:
        """Replace all private rows. Values travel as Python objects, so that NaN, infinities and -0.0 arrive as they are."""
        for table, names in self.names.items():
            connection.execute(f"DELETE FROM {table}")
            found = rows.get(table) or self.public.get(table) or []
            if found:
                marks = ", ".join([f"({', '.join('?' * len(names))})"] * len(found))
                cells = [cell for row in found for cell in row]
                connection.execute(f"INSERT INTO {table} ({', '.join(names)}) VALUES {marks}", cells)

    # --- who owns what, written again and in another way than the rewriter does it ------------------------------------

    def owners(self, rows: Rows) -> dict[str, list[set[Any]]]:
        """For each row the persons that it belongs to."""
        result: dict[str, list[set[Any]]] = {}
        for table, names in self.names.items():
            match self.tables[table].get("person"):
                case None:
                    continue
                case str(column):
                    place = names.index(column)
                    result[table] = [{row[place]} - {None} for row in rows[table]]
                case {"column": column, "references": reference}:
                    other, key = reference.split(".")
                    found: dict[Any, set[Any]] = {}
                    for row, own in zip(rows[other], result[other], strict=True):
                        found.setdefault(row[self.names[other].index(key)], set()).update(own)
                    found[None] = set()
                    result[table] = [set(found.get(row[names.index(column)], ())) for row in rows[table]]
        return result

    def persons(self, rows: Rows) -> list[Any]:
        return sorted({person for table in self.owners(rows).values() for own in table for person in own})

    def only(self, rows: Rows, persons: Iterable[Any]) -> Rows:
        """D|p for one person, or for some: the rows that belong to them."""
        wanted, owned = set(persons), self.owners(rows)
        return {t: [row for row, own in zip(rows[t], owned[t], strict=True) if own & wanted] for t in owned}

    def without(self, rows: Rows, person: Any) -> Rows:
        """D': the database without one person's rows. A row that belongs to others too stays theirs."""
        owned = self.owners(rows)
        return {t: [row for row, own in zip(rows[t], owned[t], strict=True) if own != {person}] for t in owned}
