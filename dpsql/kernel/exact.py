"""What may run on private data. Only the kernel makes it, and a backend runs nothing else, least of all a text.

The kernel notes each object that it issues, and a backend asks whether it has (`issued`). So what a constructor, `replace`,
a copy, pickle or `object.__new__` makes is refused. This guards against mistakes in other packages. It does not guard
against hostile code in the same process, which can do whatever Python can do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakSet

from sqlglot import exp

from dpsql.kernel import algebra
from dpsql.kernel.relations import Scan, select
from dpsql.policy.catalog import Catalog, Table, Type, fold

Path = tuple[str, str, str]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ExactQuery:
    """SQL that gives exact values: rows to be limited, or integers. `rows` is how many rows it gives of empty tables."""

    sql: str
    tables: frozenset[Path]
    rows: int


@dataclass(frozen=True, eq=False)
class PublicRead:
    """SQL over one table that is public by the policy. `key` tells what is counted of it; None: its rows are read."""

    sql: str
    table: Path
    key: frozenset[str] | None = None


@dataclass(frozen=True, eq=False)
class ReleasedTable:
    """A table for rows that are made of earlier releases. Whoever loads them checks their types, their number and the key."""

    name: str
    columns: tuple[tuple[str, Type], ...]
    key: tuple[str, ...]


_issued: WeakSet[Any] = WeakSet()


def issue(made: T) -> T:
    """Note that the kernel has made something. Only the kernel calls it."""
    _issued.add(made)
    return made


def issued(made: object, kind: type[T]) -> T:
    """The same object, if it is of this very type and the kernel has made it."""
    if type(made) is not kind or made not in _issued:
        raise AssertionError("only what the kernel has made may run on private data")
    return made


def public_table(catalog: Catalog, name: str) -> Table:
    table = catalog.table(name)
    if table is None or table.person is not None:
        raise AssertionError("only a table that is public by the policy may be read")
    return table


def read_public(catalog: Catalog, name: str) -> PublicRead:
    """The rows of a public table, as they are stored. What Arrow would change goes as text."""
    table = public_table(catalog, name)
    columns = [c for c in table.columns.values() if not c.generated]
    cells = [
        exp.Cast(this=algebra.name(c.name), to=exp.DataType.build("VARCHAR"))
        if altered(c.type)
        else algebra.name(c.name)
        for c in columns
    ]
    catalog_, schema, leaf = map(algebra.identifier, table.path)
    query = exp.select(*cells).from_(exp.Table(this=leaf, db=schema, catalog=catalog_))
    return issue(PublicRead(query.sql("duckdb"), table.path))


def altered(type_: Type) -> bool:
    """Whether values are not the same on the other side of Arrow."""
    return type_.kind in ("INTERVAL", "OTHER") or "HUGEINT" in type_.sql


def count_repeats(catalog: Catalog, name: str, columns: frozenset[str]) -> PublicRead:
    """How many rows of a public table have the same values of these columns, none NULL, at the most."""
    table = public_table(catalog, name)
    scan = Scan(table, "t", tuple(sorted(columns)))
    cells = [algebra.name(f"t.{word}") for word in scan.columns]
    rows = exp.select(exp.Count(this=exp.Star()).as_("n")).from_(select(scan).subquery("s"))
    if cells:
        there = [exp.Not(this=exp.Paren(this=exp.Is(this=cell, expression=exp.Null()))) for cell in cells]
        rows = rows.where(*there).group_by(*(cell.copy() for cell in cells))
    sql = exp.select("max(n)").from_(rows.subquery("s")).sql("duckdb")
    return issue(PublicRead(sql, table.path, frozenset(map(fold, columns))))
