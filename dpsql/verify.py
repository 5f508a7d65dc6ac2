"""The owner's check of a policy on the data: exact, hence not private, and for the owner alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpsql.catalog import Catalog, Column, Reference, Table, fold, quoted
from dpsql.relations import typed

FORMAT = 1


@dataclass(frozen=True)
class Finding:
    """Whether a declaration holds on the data."""

    place: str  # in the policy
    claim: str
    holds: bool
    fact: tuple[str, str] | None = None  # what may be recorded: "keys" or "references", and the table


def verify(catalog: Catalog, ask: Callable[[str], bool]) -> Iterator[Finding]:
    """Each declaration of the policy, and whether it holds. `ask` runs a query that gives one truth value."""
    for table in catalog.tables.values():
        name, place, rows = table.name, f"tables.{table.name}", path(table)
        if table.key:
            key = ", ".join(map(quoted, table.key))
            claim = f"{', '.join(table.key)} is unique and never NULL"
            yield Finding(f"{place}.key", claim, ask(unique(rows, key, table.key)), ("keys", name))
        match table.person:
            case None:
                pass
            case str(column):
                missing = f"SELECT 1 FROM {rows} WHERE {quoted(column)} IS NULL"
                yield Finding(f"{place}.person", f"{column} is never NULL", ask(none(missing)))
            case Reference(columns, target, referenced):
                goal = catalog.tables[fold(target)]
                met = " AND ".join(f"u.{quoted(o)} = t.{quoted(c)}" for c, o in zip(columns, referenced, strict=True))
                lost = f"SELECT 1 FROM {rows} AS t WHERE NOT EXISTS (SELECT 1 FROM {path(goal)} AS u WHERE {met})"
                own = ", ".join(columns)
                yield Finding(
                    f"{place}.person",
                    f"{own} finds a row of {goal.name} in every row",
                    ask(none(lost)),
                    ("references", name),
                )
                others = ", ".join(map(quoted, referenced))
                known = " AND ".join(f"{quoted(other)} IS NOT NULL" for other in referenced)
                twice = f"SELECT 1 FROM {path(goal)} WHERE {known} GROUP BY {others} HAVING count(*) > 1"
                yield Finding(
                    f"{place}.person",
                    f"{own} finds no more than one row of {goal.name}",
                    ask(none(twice)),
                    ("references", name),
                )
        for declared in table.columns.values():
            if (outside := stray(declared)) is not None:
                how, claim = (
                    ("between", "lies in its range") if declared.between else ("in", "has only its listed values")
                )
                holds = ask(none(f"SELECT 1 FROM {rows} WHERE {outside}"))
                yield Finding(f"{place}.columns.{declared.name}.{how}", f"{declared.name} {claim}, or is NULL", holds)


def stray(column: Column) -> str | None:
    """A condition on the rows whose value is not as declared."""

    def shown(value: object) -> str:
        return typed(value, column.type).sql("duckdb")  # type: ignore[arg-type]

    cell = quoted(column.name)
    if column.between is not None:
        return f"NOT ({cell} BETWEEN {shown(column.between[0])} AND {shown(column.between[1])})"
    if column.domain is not None:
        return f"{cell} NOT IN ({', '.join(map(shown, column.domain))})"
    return None


def record(file: Path, dataset: str, version: str, catalog: Catalog, findings: list[Finding]) -> None:
    """Keep the keys and references that hold for a version of the data. Nothing relies on them yet."""
    facts = {finding.fact for finding in findings if finding.fact is not None}
    sound = {fact for fact in facts if all(f.holds for f in findings if f.fact == fact)}
    kept: dict[str, dict[str, object]] = {"keys": {}, "references": {}}
    for kind, name in sorted(sound):
        table = catalog.tables[fold(name)]
        link = table.person
        kept[kind][name] = (
            list(table.key)
            if kind == "keys" or not isinstance(link, Reference)
            else {"columns": list(link.columns), "table": link.table, "referenced": list(link.referenced)}
        )
    text = json.dumps({"format": FORMAT, "dataset": dataset, "version": version, **kept}, indent=2, ensure_ascii=False)
    draft = file.with_name(file.name + ".new")
    draft.write_text(text + "\n", encoding="utf-8")
    os.replace(draft, file)


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
