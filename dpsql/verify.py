"""The owner's check of a policy on the data: exact, hence not private, and for the owner alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dpsql.kernel.relations import owners, referring, typed
from dpsql.policy.catalog import PERSON, Catalog, Column, Reference, Table, fold, path_to_person, quoted

Ask = Callable[[str], tuple[Any, ...]]  # runs a query that gives one row


@dataclass(frozen=True)
class Finding:
    """Whether a declaration holds on the data."""

    place: str  # in the policy
    claim: str
    holds: bool
    more: str = ""  # by how much it does not
    grave: bool = False  # rows have no person, or several, or a key does not tell rows apart
    unique: tuple[str, tuple[str, ...]] | None = None  # a table and columns: what holds then, and is recorded


def line(finding: Finding) -> str:
    """One finding in words."""
    verdict = "holds" if finding.holds else "fails"
    return f"{verdict:<6} {finding.place}: {finding.claim}" + (f": {finding.more}" if finding.more else "")


def verify(catalog: Catalog, ask: Ask) -> Iterator[Finding]:
    """Each declaration of the policy, and whether it holds."""
    for table in catalog.tables.values():
        name, place, rows = table.name, f"tables.{table.name}", path(table)
        if table.key:
            key = ", ".join(map(quoted, table.key))
            claim = f"{', '.join(table.key)} is unique and never NULL"
            (holds,) = ask(unique(rows, key, table.key))
            yield Finding(f"{place}.key", claim, holds, "", True, (name, table.key))
        match table.person:
            case None:
                pass
            case str(column):
                missing = f"SELECT 1 FROM {rows} WHERE {quoted(column)} IS NULL"
                yield Finding(f"{place}.person", f"{column} is never NULL", ask(none(missing))[0], grave=True)
            case Reference():
                yield from references(table, table.person, catalog, ask)
        for declared in table.columns.values():
            if (outside := stray(declared)) is not None:
                how, claim = (
                    ("between", "lies in its range") if declared.between else ("in", "has only its listed values")
                )
                where = f"{place}.columns.{declared.name}.{how}"
                more = beyond(table, catalog, f"coalesce({outside}, false)", ask)
                yield Finding(where, f"{declared.name} {claim}, or is NULL", not more, more)
        limit = table.max_rows_contributed or catalog.policy.defaults.max_rows_contributed
        if table.person is not None and limit is not None:
            own = table.max_rows_contributed is not None
            where = f"{place if own else 'defaults'}.max_rows_contributed"
            more = many(table, catalog, limit, ask)
            yield Finding(where, f"nobody has more than {limit} row{'s' * (limit > 1)} of {name}", not more, more)


def references(table: Table, link: Reference, catalog: Catalog, ask: Ask) -> Iterator[Finding]:
    """That each row finds a row of the table that it refers to, and no two."""
    goal, place, own = catalog.tables[fold(link.table)], f"tables.{table.name}.person", ", ".join(link.columns)
    met = " AND ".join(f"u.{quoted(o)} = t.{quoted(c)}" for c, o in zip(link.columns, link.referenced, strict=True))
    lost = f"SELECT 1 FROM {path(table)} AS t WHERE NOT EXISTS (SELECT 1 FROM {path(goal)} AS u WHERE {met})"
    yield Finding(place, f"{own} finds a row of {goal.name} in every row", ask(none(lost))[0], grave=True)
    one = ask(once(goal, link.referenced))[0]
    fact = (goal.name, link.referenced)
    yield Finding(place, f"{own} finds no more than one row of {goal.name}", one, "", not table.shared, fact)


def once(table: Table, columns: tuple[str, ...]) -> str:
    """SQL for whether no two rows of a table agree on these columns, none of them NULL."""
    known = " AND ".join(f"{quoted(column)} IS NOT NULL" for column in columns)
    keys = ", ".join(map(quoted, columns))
    return none(f"SELECT 1 FROM {path(table)} WHERE {known} GROUP BY {keys} HAVING count(*) > 1")


def beyond(table: Table, catalog: Catalog, outside: str, ask: Ask) -> str:
    """The shares of rows, and of persons, for which a condition holds; nothing if there is none."""
    if table.person is None:
        rows, found = ask(f"SELECT count(*), count_if({outside}) FROM {path(table)} AS t")
        return f"{part(found, rows)} of the rows are outside" if found else ""
    person = quoted(PERSON)
    rows, found, persons, of = ask(
        f"SELECT count(*), count_if(stray), count(DISTINCT {person}), count(DISTINCT {person}) FILTER (stray) "
        f"FROM (SELECT {outside} AS stray, {owner(table, catalog)})"
    )
    return f"{part(found, rows)} of the rows, of {part(of, persons)} of the persons, are outside" if found else ""


def many(table: Table, catalog: Catalog, limit: int, ask: Ask) -> str:
    """The shares of persons with more rows than the limit, and of the rows that they have beyond it."""
    person = quoted(PERSON)
    persons, over, rows, more = ask(
        f"SELECT count(*), count_if(n > {limit}), sum(n), sum(greatest(n - {limit}, 0)) FROM (SELECT count(*) AS n "
        f"FROM (SELECT {owner(table, catalog)}) WHERE {person} IS NOT NULL GROUP BY {person})"
    )
    return (
        f"{part(over, persons)} of the persons have more, and {part(more, rows)} of the rows are beyond it"
        if over
        else ""
    )


def part(some: int, all_: int) -> str:
    """
    >>> part(1, 3), part(1, 950_000), part(0, 0)
    ('33.3 %', '0.000105 %', '0 %')
    """
    return f"{100 * some / max(all_, 1):.3g} %"


def owner(table: Table, catalog: Catalog) -> str:
    """SQL for a row's person and for FROM."""
    source = f"{path(table)} AS t"
    steps = tuple(path_to_person(table, catalog.tables))
    if not steps:
        return f"t.{quoted(str(table.person))} AS {quoted(PERSON)} FROM {source}"
    (_, link), rest = steps[0], steps[1:]
    root = catalog.tables[fold(steps[-1][1].table)]
    target = rest[0][0] if rest else root
    found = owners(target, link.referenced, rest, root).sql("duckdb")
    cells = (
        referring(table, own, target, other).sql("duckdb")
        for own, other in zip(link.columns, link.referenced, strict=True)
    )
    on = " AND ".join(f"{cell} = p.key_{i}" for i, cell in enumerate(cells))
    return f"p.person AS {quoted(PERSON)} FROM {source} LEFT JOIN ({found}) AS p ON {on}"


def stray(column: Column) -> str | None:
    """A condition on the rows whose value is not as declared."""

    def shown(value: object) -> str:
        return typed(value, column.type).sql("duckdb")  # type: ignore[arg-type]

    cell = f"t.{quoted(column.name)}"
    if column.between is not None:
        return f"NOT ({cell} BETWEEN {shown(column.between[0])} AND {shown(column.between[1])})"
    if column.domain is not None:
        return f"{cell} NOT IN ({', '.join(map(shown, column.domain))})"
    return None


def unique(rows: str, key: str, columns: tuple[str, ...]) -> str:
    empty = " OR ".join(f"{quoted(column)} IS NULL" for column in columns)
    return (
        f"SELECT NOT EXISTS (SELECT 1 FROM {rows} WHERE {empty}) "
        f"AND NOT EXISTS (SELECT 1 FROM {rows} GROUP BY {key} HAVING count(*) > 1)"
    )


def none(query: str) -> str:
    return f"SELECT NOT EXISTS ({query})"


def path(table: Table) -> str:
    return ".".join(map(quoted, table.path))
