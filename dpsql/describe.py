"""What is public about the tables: DESCRIBE, SHOW TABLES, SUMMARIZE, information_schema and `db.tables`.

Everything here is read off the policy and the schema, and no row is looked at: it is the same whatever the data is, so it
is free. A query on information_schema runs in an empty instance of its own, over two tables that hold these facts.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Any

import duckdb
import sqlglot
from sqlglot import exp

from dpsql.backends.duckdb import CONFIG, finishes, second_opinion
from dpsql.errors import Refused, of_engine
from dpsql.policy.catalog import Catalog, Column, Interval, Reference, Table, Type, fold, quoted

NAME = r'(?:"(?:[^"]|"")+"|\w+)'
COMMAND = re.compile(
    rf"\s*(?:(?P<list>SHOW\s+(?:ALL\s+)?TABLES|DESCRIBE)"
    rf"|(?P<verb>DESCRIBE|DESC|SHOW|SUMMARIZE)\s+(?:TABLE\s+)?(?P<name>{NAME}(?:\s*\.\s*{NAME})*))\s*;?\s*$",
    re.IGNORECASE,
)
SCHEMA = "information_schema"
SECONDS = 10  # that a query over the catalogue may take
NOTE = "declared in the policy and the schema; no row was looked at"
MOST = 20  # values of a domain that are written out
Rows = list[tuple[Any, ...]]
Told = tuple[tuple[str, ...], tuple[str, ...], Rows]  # names, types and rows of an answer

DESCRIBED = dict.fromkeys(("column_name", "column_type", "null", "key", "default", "extra"), "VARCHAR")
LISTED = {"name": "VARCHAR", "rows_of": "VARCHAR", "person": "VARCHAR", "columns": "BIGINT"}
SUMMARY = {
    "column_name": "VARCHAR",
    "column_type": "VARCHAR",
    "min": "VARCHAR",
    "max": "VARCHAR",
    "values": "VARCHAR",
    "person": "VARCHAR",
}
CATALOGUE = {
    "tables": {
        "table_catalog": "VARCHAR",
        "table_schema": "VARCHAR",
        "table_name": "VARCHAR",
        "table_type": "VARCHAR",
        "is_insertable_into": "VARCHAR",
        "table_comment": "VARCHAR",
    },
    "columns": {
        "table_catalog": "VARCHAR",
        "table_schema": "VARCHAR",
        "table_name": "VARCHAR",
        "column_name": "VARCHAR",
        "ordinal_position": "INTEGER",
        "column_default": "VARCHAR",
        "is_nullable": "VARCHAR",
        "data_type": "VARCHAR",
        "column_comment": "VARCHAR",
    },
}


@dataclass(frozen=True)
class ColumnFacts:
    """A column: its type, and the range or the values that the policy declares."""

    name: str
    type: str
    nullable: bool = True
    between: tuple[Any, Any] | None = None
    values: tuple[Any, ...] | None = None
    person: str = ""  # how it leads to the person, if it does

    @property
    def low(self) -> str | None:
        return shown(self.between[0]) if self.between else None

    @property
    def high(self) -> str | None:
        return shown(self.between[1]) if self.between else None

    @property
    def listed(self) -> str | None:
        if self.values is None:
            return None
        more = f", … ({len(self.values):,} values)" if len(self.values) > MOST else ""
        return ", ".join(shown(value) for value in self.values[:MOST]) + more

    def __str__(self) -> str:
        """What the policy says of it, in words."""
        parts = [self.person, f"between {self.low} and {self.high}" if self.between else ""]
        return "; ".join([part for part in parts if part] + ([f"in {self.listed}"] if self.values is not None else []))


@dataclass(frozen=True)
class TableFacts:
    """A table or a view of the policy, with its columns. Of a view that only a query can tell they are not known: none."""

    name: str
    path: tuple[str, str, str]
    rows_of: str  # persons, the public, a view
    person: str
    columns: tuple[ColumnFacts, ...]
    key: tuple[str, ...] = ()
    max_rows_contributed: int | None = None
    references: tuple[tuple[str, ...], str, tuple[str, ...]] | None = (
        None  # columns, and the table and columns they lead to
    )

    def __str__(self) -> str:
        whose = {"persons": f"person: {self.person}"}.get(self.rows_of, self.rows_of)
        rows = self.max_rows_contributed
        most = f", {rows:,} row{'s' * (rows > 1)} of one person" if rows else ""
        width = max((len(column.name) for column in self.columns), default=0)
        wide = max((len(column.type) for column in self.columns), default=0)
        lines = (f"  {c.name:<{width}}  {c.type:<{wide}}  {c}".rstrip() for c in self.columns)
        return "\n".join([f"{self.name} ({whose}{most})", *lines])


class Tables(tuple[TableFacts, ...]):
    """All tables and views, by position or by name."""

    def named(self, name: str) -> TableFacts:
        """The table of this name, which may be qualified; else a refusal with the nearest name."""
        wanted = fold(name)
        for table in self:
            ends = (".".join(table.path[start:]) for start in range(3))
            if wanted == fold(table.name) or wanted in map(fold, ends):
                return table
        near = get_close_matches(wanted, [fold(table.name) for table in self], 1)
        written = {fold(table.name): table.name for table in self}
        hint = f"Did you mean {written[near[0]]}?" if near else f"It has: {', '.join(written.values())}."
        refusal = Refused("table_unknown", f"the policy has no table {name!r}", hint)
        refusal.word = name
        raise refusal

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self))


def shown(value: Any) -> str:
    """A declared value as text.

    >>> shown(Fraction(3)), shown(Fraction(1, 4)), shown(None), shown(datetime.date(2020, 1, 31))
    ('3', '0.25', 'NULL', '2020-01-31')
    """
    match value:
        case None:
            return "NULL"
        case Fraction():
            return str(value.numerator) if value.denominator == 1 else f"{float(value):.15g}"
        case Interval():
            return value.text
        case datetime.datetime():
            return value.isoformat(" ")
    return str(value)


def type_name(type_: Type) -> str:
    """A type without what stands in brackets where that may have been taken from data: the values of an ENUM."""
    return type_.family if type_.kind == "OTHER" and re.search(r"[('\"]", type_.sql) else type_.sql


# --- the facts --------------------------------------------------------------------------------------------------------


def tables_of(catalog: Catalog, views: Mapping[str, Sequence[tuple[str, str]]]) -> Tables:
    """All tables and views of a policy. `views` are the columns of those views of which they are known."""
    found = [table_facts(table) for table in catalog.tables.values()]
    home = found[0].path[0] if found else "memory"
    for name in catalog.policy.views:
        columns = tuple(ColumnFacts(column, type_name(Type(type_))) for column, type_ in views.get(name, ()))
        found.append(TableFacts(name, (home, "main", name), "a view", "", columns))
    return Tables(found)


def table_facts(table: Table) -> TableFacts:
    columns = tuple(column_facts(table, column) for column in table.columns.values())
    rows_of = "public" if table.person is None else "persons"
    link = table.person if isinstance(table.person, Reference) else None
    references = (link.columns, link.table, link.referenced) if link else None
    return TableFacts(
        table.name, table.path, rows_of, whose(table), columns, table.key, table.max_rows_contributed, references
    )


def column_facts(table: Table, column: Column) -> ColumnFacts:
    person = ""
    if isinstance(table.person, str) and fold(table.person) == fold(column.name):
        person = "the person"
    elif isinstance(table.person, Reference) and fold(column.name) in map(fold, table.person.columns):
        person = f"leads to the person: {target(table.person)}"
    values = tuple(column.domain) if column.domain is not None else None
    return ColumnFacts(column.name, type_name(column.type), column.nullable, column.between, values, person)


def whose(table: Table) -> str:
    match table.person:
        case None:
            return ""
        case str(column):
            return column
        case Reference(columns):
            return f"{', '.join(columns)} -> {target(table.person)}"


def target(link: Reference) -> str:
    return (
        f"{link.table}.{link.referenced[0]}"
        if len(link.referenced) == 1
        else f"{link.table}({', '.join(link.referenced)})"
    )


def view_columns(views: Mapping[str, str], empty: duckdb.DuckDBPyConnection) -> dict[str, list[tuple[str, str]]]:
    """The columns of the policy's views, from an instance with the schema and no rows. A view may read others."""
    found: dict[str, list[tuple[str, str]]] = {}
    for _ in views:
        for name, text in views.items():
            if name not in found:
                try:
                    empty.execute(f"CREATE VIEW {quoted(name)} AS {text}")
                    listed = empty.execute(f"DESCRIBE {quoted(name)}").fetchall()
                except duckdb.Error:  # of a view that comes later, or in words that the engine does not know
                    continue
                found[name] = [(column, type_) for column, type_, *_ in listed]
    return found


# --- the commands -----------------------------------------------------------------------------------------------------


def told(command: re.Match[str], tables: Tables) -> Told:
    """The answer to a command."""
    if command["list"]:
        rows: Rows = [(t.name, t.rows_of, t.person, len(t.columns)) for t in sorted(tables, key=lambda t: t.name)]
        return tuple(LISTED), tuple(LISTED.values()), rows
    table = tables.named(unquoted(command["name"]))
    if command["verb"].upper() == "SUMMARIZE":
        return (
            tuple(SUMMARY),
            tuple(SUMMARY.values()),
            [(c.name, c.type, c.low, c.high, c.listed, c.person or None) for c in table.columns],
        )
    keys = {*map(fold, table.key)}
    return (
        tuple(DESCRIBED),
        tuple(DESCRIBED.values()),
        [
            (
                c.name,
                c.type,
                "YES" if c.nullable else "NO",
                "PRI" if fold(c.name) in keys else None,
                None,
                str(c) or None,
            )
            for c in table.columns
        ],
    )


def unquoted(name: str) -> str:
    """A name as it is written in SQL, without quotes.

    >>> unquoted('crm . "a b"')
    'crm.a b'
    """
    parts = re.findall(NAME, name)
    return ".".join(part[1:-1].replace('""', '"') if part.startswith('"') else part for part in parts)


# --- information_schema -----------------------------------------------------------------------------------------------


def about_the_catalogue(query: str) -> exp.Expr | None:
    """The query, if it reads information_schema; it may then read nothing else. None if it does not."""
    if SCHEMA not in query.lower():
        return None
    try:
        tree = sqlglot.parse_one(query, dialect="duckdb")
    except sqlglot.errors.SqlglotError:
        return None
    named = {fold(cte.alias) for cte in tree.find_all(exp.CTE)}
    read = [node for node in tree.find_all(exp.Table) if isinstance(node.this, exp.Identifier)]
    of_schema = [node for node in read if fold(node.db) == SCHEMA]
    if not of_schema:
        return None
    for node in read:
        if fold(node.db) == SCHEMA and fold(node.name) not in CATALOGUE:
            near = get_close_matches(fold(node.name), CATALOGUE, 1)
            hint = f"Did you mean {SCHEMA}.{near[0]}?" if near else f"Use {SCHEMA}.tables or {SCHEMA}.columns."
            raise Refused("table_unknown", f"there is no {SCHEMA}.{node.name}", hint)
        if fold(node.db) != SCHEMA and (node.db or fold(node.name) not in named):
            what = f"{SCHEMA} is read together with {node.name!r}"
            raise Refused("not_supported", what, "Ask about the tables and about their rows in two queries.")
    return tree


def catalogue(tree: exp.Expr, query: str, tables: Tables) -> Told:
    """The answer to a query on information_schema: it runs where there is nothing but these facts."""
    second_opinion(query)
    for node in list(tree.find_all(exp.Table)):
        if fold(node.db) == SCHEMA:
            node.set("alias", node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(node.name)))
            node.set("db", exp.to_identifier("main"))
            node.set("catalog", None)
    text = tree.sql("duckdb")
    finishes(text, aggregating=True)
    with duckdb.connect(":memory:", config={**CONFIG, "max_execution_time": 1_000 * SECONDS}) as connection:
        for name, rows in (("tables", table_rows(tables)), ("columns", column_rows(tables))):
            columns = CATALOGUE[name]
            connection.execute(f"CREATE TABLE {name} ({', '.join(f'{c} {type_}' for c, type_ in columns.items())})")
            for row in rows:
                connection.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", row)
        try:
            found = connection.sql(text)
            return tuple(found.columns), tuple(map(str, found.types)), found.fetchall()
        except duckdb.Error as error:  # about names, types and facts that are public
            raise of_engine(str(error)) from None


def table_rows(tables: Tables) -> Iterator[tuple[Any, ...]]:
    for table in tables:
        kind = "VIEW" if table.rows_of == "a view" else "BASE TABLE"
        yield (*table.path, kind, "NO", f"person: {table.person}" if table.person else table.rows_of)


def column_rows(tables: Tables) -> Iterator[tuple[Any, ...]]:
    for table in tables:
        for number, column in enumerate(table.columns, 1):
            yield (
                *table.path,
                column.name,
                number,
                None,
                "YES" if column.nullable else "NO",
                column.type,
                str(column) or None,
            )
