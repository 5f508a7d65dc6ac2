"""A copy of the policy's tables in which limits are cheap: rows lie together by person, those with few rows first.

Needs:   a DuckDB file of whose contents only the owner decides; the call is the owner's
Gives:   a second file with the same tables and rows; those about persons have three columns more: each row's person, a number
         for her and how many rows she has there. It is used in the place of the first for as long as that is unchanged
Proof:   a row's person is found by the SQL that queries use (`relations.owners`), and a file is written only if no row has
         two and all declared keys hold; so a scan of the copy is the scan of the original, in another order, which
         nothing depends on (test_lemmas). Numbers tell persons apart and are used for nothing else: they depend on who
         else there is. The copy names the policy's persons and the state of the file (size, time, header, log) that it was made
         of; both are compared when a session begins, and the state before each statement. Whether they are the same
         depends on what the owner has written and when, and not on any row
Checked: test_prepare
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import duckdb

from dpsql.backends.duckdb import CONFIG, DuckDB
from dpsql.catalog import CODE, HIDDEN, PERSON, Catalog, Policy, Schema, Table, build, fold, path_to_person, quoted
from dpsql.errors import Refused
from dpsql.relations import owners
from dpsql.verify import unique

FORMAT = 1
ENDING = ".prepared"
NOTES = '"main"."dpsql prepared"'
HEADER = 3 * 4096  # bytes: what DuckDB changes with each checkpoint


def state(database: Path) -> list[Any]:
    """What changes when the file does."""
    found = os.stat(database)
    with open(database, "rb") as file:
        header = hashlib.sha256(file.read(HEADER)).hexdigest()
    log = Path(f"{database}.wal")
    return [found.st_size, found.st_mtime_ns, header, log.stat().st_size if log.exists() else 0]


def persons_of(policy: Policy) -> dict[str, Any]:
    """What the policy says about who a row belongs to."""
    return {name: [table.get("person"), table.get("key", [])] for name, table in policy.tables.items()}


def prepare(database: Path, policy: Policy, tell: Callable[[str], None] = lambda line: None) -> Path:
    """Write the copy beside the database, whole or not at all."""
    with DuckDB(database).snapshot() as snapshot:
        schemas = snapshot.schemas(policy.tables)
        before = state(database)
    catalog = build(policy, schemas)
    target = database.with_suffix(ENDING)
    draft = Path(f"{target}.new")
    draft.unlink(missing_ok=True)
    try:
        with duckdb.connect(":memory:", config={"temp_directory": f"{draft}.tmp"}) as connection:
            for name in {schema.path[0] for schema in schemas.values()}:
                connection.execute(f"ATTACH {text(database)} AS {quoted(name)} (READ_ONLY)")
            connection.execute(f'ATTACH {text(draft)} AS "copy"')
            connection.execute('USE "copy"')
            for table in catalog.tables.values():
                tell(f"preparing {table.name}")
                copy(connection, table, catalog)
            kept = {
                word: astuple(facts(schema, catalog.tables[fold(word)], catalog)) for word, schema in schemas.items()
            }
            notes = {"format": FORMAT, "version": policy.version, "persons": persons_of(policy), "state": before}
            connection.execute(
                f"CREATE TABLE {NOTES} AS SELECT CAST(? AS VARCHAR)", [json.dumps(notes | {"schemas": kept})]
            )
        if state(database) != before:
            raise Refused("data_changed", "the database was written meanwhile", "Prepare it again.")
        os.replace(draft, target)
    except duckdb.Error as error:
        raise Refused(
            "cannot_prepare", f"the engine could not write the copy ({type(error).__name__})", "Check space and memory."
        ) from None
    finally:
        draft.unlink(missing_ok=True)
    return target


def copy(connection: duckdb.DuckDBPyConnection, table: Table, catalog: Catalog) -> None:
    """One table, with what is checked of it."""
    if hidden := [column.name for column in table.columns.values() if fold(column.name) in HIDDEN]:
        raise Refused("cannot_prepare", f"{table.name} has a column {hidden[0]!r}", "Rename it.")
    source, place = (".".join(map(quoted, path)) for path in (table.path, ("copy", *table.path[1:])))
    connection.execute(f'CREATE SCHEMA IF NOT EXISTS "copy".{quoted(table.path[1])}')
    columns = ", ".join(f"t.{quoted(column.name)}" for column in table.columns.values())
    if table.person is None:
        connection.execute(f"CREATE TABLE {place} AS SELECT {columns} FROM {source} AS t")
    else:
        # In the order of how many rows persons have: a query that needs those with few reads nothing else.
        rows = f"{with_persons(table, catalog, columns)} ORDER BY numbered.{quoted(CODE)} NULLS LAST"
        connection.execute(f"CREATE TABLE {place} AS {rows}")
    claims = [
        (f"SELECT (SELECT count(*) FROM {place}) = (SELECT count(*) FROM {source})", "a row finds more than one person")
    ]
    if table.key:
        key = ", ".join(map(quoted, table.key))
        claims.append((unique(place, key, table.key), f"{', '.join(table.key)} is not a key, or is NULL"))
    for question, otherwise in claims:
        if connection.execute(question).fetchall() != [(True,)]:
            hint = "Change the policy or the data; `dpsql policy verify` shows what holds."
            raise Refused("cannot_prepare", f"{table.name}: {otherwise}", hint)


def with_persons(table: Table, catalog: Catalog, columns: str) -> str:
    """SQL for these columns of all rows, and the hidden ones."""
    person, code, rows = map(quoted, HIDDEN)
    return (
        f"WITH owned AS (SELECT {columns}, {owner(table, catalog)}), "
        f"persons AS (SELECT {person}, count(*) AS {rows} FROM owned WHERE {person} IS NOT NULL GROUP BY {person}), "
        f"numbered AS (SELECT *, row_number() OVER (ORDER BY {rows}, {person}) - 1 AS {code} FROM persons) "
        f"SELECT owned.*, CAST(numbered.{code} AS UINTEGER) AS {code}, CAST(numbered.{rows} AS UINTEGER) AS {rows} "
        f"FROM owned LEFT JOIN numbered ON numbered.{person} = owned.{person}"
    )


def arrange(connection: duckdb.DuckDBPyConnection, catalog: Catalog) -> None:
    """Fill the hidden columns of tables that have them, in place."""
    for table in catalog.tables.values():
        if table.prepared:
            cells = ", ".join(f"{word} = found.{word}" for word in map(quoted, HIDDEN))
            found = with_persons(table, catalog, "t.rowid AS number")
            place = ".".join(map(quoted, table.path))
            connection.execute(f"UPDATE {place} AS u SET {cells} FROM ({found}) AS found WHERE u.rowid = found.number")


def owner(table: Table, catalog: Catalog) -> str:
    """SQL for a row's person and for FROM."""
    source = f"{'.'.join(map(quoted, table.path))} AS t"
    path = tuple(path_to_person(table, catalog.tables))
    if not path:
        return f"t.{quoted(str(table.person))} AS {quoted(PERSON)} FROM {source}"
    (_, link), rest = path[0], path[1:]
    root = catalog.tables[fold(path[-1][1].table)]
    found = owners(rest[0][0] if rest else root, link.referenced, rest, root).sql("duckdb")
    on = " AND ".join(f"t.{quoted(column)} = p.key_{i}" for i, column in enumerate(link.columns))
    return f"p.person AS {quoted(PERSON)} FROM {source} LEFT JOIN ({found}) AS p ON {on}"


def facts(schema: Schema, table: Table, catalog: Catalog) -> Schema:
    """The schema of the copy: a declared key has been seen to hold."""
    path = tuple(path_to_person(table, catalog.tables))
    root = catalog.tables[fold(path[-1][1].table)] if path else table
    type_ = "" if table.person is None else root.columns[fold(str(root.person))].type.sql
    return replace(schema, unique=(*schema.unique, *(table.key if len(table.key) == 1 else ())), person=type_)


def prepared(database: Path, policy: Policy) -> DuckDB | None:
    """The copy of a database, if there is one and it is of what the database and the policy are now."""
    target = database.with_suffix(ENDING)
    if database.suffix == ENDING or not target.exists():
        return None
    try:
        with duckdb.connect(str(target), read_only=True, config=CONFIG) as connection:
            ((notes,),) = connection.execute(f"SELECT * FROM {NOTES}").fetchall()
        known = json.loads(notes)
        wanted = {"format": FORMAT, "version": policy.version, "persons": persons_of(policy), "state": state(database)}
        if any(known[word] != value for word, value in json.loads(json.dumps(wanted)).items()):
            return None
        schemas = {
            name: Schema(tuple(path), tuple(map(tuple, columns)), collated, tuple(unique), person)
            for name, (path, columns, collated, unique, person) in known["schemas"].items()
        }
    except (duckdb.Error, OSError, ValueError, KeyError):
        return None

    def check() -> None:
        try:
            same = state(database) == known["state"]
        except OSError:
            same = False
        if not same:
            raise Refused("data_changed", "the data has changed since the session began", "Connect again.")

    return DuckDB(target, ours=True, schemas=schemas, check=check)


def text(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
