"""A copy of the policy's tables in which limits are cheap: rows lie together by person, those with few rows first.

Needs:   a DuckDB file of whose contents only the owner decides; the call is the owner's
Gives:   a second file with the same tables and rows; those about persons have three columns more: each row's person, a number
         for her and how many rows she has there. It is used in the place of the first for as long as that is unchanged
Proof:   a row's person is found by the SQL that queries use (`relations.owners`), and a file is written only if no row has
         two; so a scan of the copy is the scan of the original, in another order, which nothing depends on (test_lemmas).
         Numbers tell persons apart and are used for nothing else: they depend on who else there is. What a query costs and
         how much noise it gets is the same with and without a copy; that there is one tells that the owner has made it, and
         that each row finds one person. The copy names the policy's persons and the state of the file (size, time, header,
         log) that it was made of; both are compared when a session begins, through the connection that is used from then on,
         and the state before each statement
Checked: test_prepare
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import duckdb

from dpsql.backends.duckdb import CONFIG, DuckDB
from dpsql.errors import Refused
from dpsql.policy.catalog import CODE, HIDDEN, Catalog, Policy, Schema, Table, build, fold, path_to_person, quoted
from dpsql.verify import owner

FORMAT = 2
ENDING = ".prepared"
COPY = "dpsql copy"
NOTES = '"main"."dpsql prepared"'
HEADER = 3 * 4096  # bytes: what DuckDB changes with each checkpoint


def state(database: Path) -> list[Any]:
    """What changes when the file does."""
    found, log = os.stat(database), Path(f"{database}.wal")
    with open(database, "rb") as file:
        header = hashlib.sha256(file.read(HEADER)).hexdigest()
    logged = os.stat(log) if log.exists() else None
    return [found.st_size, found.st_mtime_ns, header, logged and [logged.st_size, logged.st_mtime_ns, logged.st_ino]]


def target_of(database: Path) -> Path:
    if database.suffix == ENDING:
        raise Refused("database_is_a_copy", f"{str(database)!r} is itself a copy", "Pass the database's own path.")
    return Path(f"{database}{ENDING}")


def persons_of(policy: Policy) -> dict[str, Any]:
    """What the policy says about who a row belongs to. A declared key is taken at its word there."""
    return {name: [table.get("person"), table.get("key", [])] for name, table in policy.tables.items()}


def prepare(database: Path, policy: Policy, tell: Callable[[str], None] = lambda line: None) -> Path:
    """Write the copy beside the database, whole or not at all, and for nobody who may not read the database."""
    database = database.resolve()  # the engine follows links too
    target = target_of(database)
    with DuckDB(database).snapshot() as snapshot:
        schemas = snapshot.schemas(policy.tables)
        before = state(database)
    catalog = build(policy, schemas)
    if target.exists() and notes_of(target) is None:
        raise Refused("cannot_prepare", f"{str(target)!r} is in the way, and is no copy", "Move it.")
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))  # only its owner can look into it
    except OSError as error:
        why = f"the copy cannot be written beside {str(database)!r}: {error.strerror}"
        raise Refused("cannot_prepare", why, "It lies in the database's directory: make that writable.") from None
    draft = folder / target.name
    try:
        with duckdb.connect(":memory:", config={"temp_directory": str(folder / "spilled")}) as connection:
            for name in {schema.path[0] for schema in schemas.values()}:
                connection.execute(f"ATTACH {text(database)} AS {quoted(name)} (READ_ONLY)")
            connection.execute(f"ATTACH {text(draft)} AS {quoted(COPY)}")
            connection.execute(f"USE {quoted(COPY)}")
            for table in catalog.tables.values():
                tell(f"preparing {table.name}")
                copy(connection, table, catalog)
            kept = {
                word: astuple(facts(schema, catalog.tables[fold(word)], catalog)) for word, schema in schemas.items()
            }
            notes = {"format": FORMAT, "version": policy.version, "persons": persons_of(policy), "state": before}
            made = json.dumps(notes | {"schemas": kept})
            connection.execute(f"CREATE TABLE {NOTES} AS SELECT CAST(? AS VARCHAR)", [made])
        if state(database) != before:
            raise Refused("data_changed", "the database was written meanwhile", "Prepare it again.")
        draft.chmod(os.stat(database).st_mode & 0o777)
        os.replace(draft, target)
    except OSError as error:
        why = f"the copy {str(target)!r} cannot be written: {error.strerror}"
        raise Refused("cannot_prepare", why, "Check space and permissions.") from None
    except duckdb.Error as error:
        raise Refused(
            "cannot_prepare", f"the engine could not write the copy ({type(error).__name__})", "Check space and memory."
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return target


def copy(connection: duckdb.DuckDBPyConnection, table: Table, catalog: Catalog) -> None:
    """One table, with what is checked of it."""
    if hidden := [column.name for column in table.columns.values() if fold(column.name) in HIDDEN]:
        raise Refused("cannot_prepare", f"{table.name} has a column {hidden[0]!r}", "Rename it.")
    source, place = (".".join(map(quoted, path)) for path in (table.path, (COPY, *table.path[1:])))
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(COPY)}.{quoted(table.path[1])}")
    columns = ", ".join(f"t.{quoted(column.name)}" for column in table.columns.values())
    if table.person is None:
        connection.execute(f"CREATE TABLE {place} AS SELECT {columns} FROM {source} AS t")
    else:
        # In the order of how many rows persons have: a query that needs those with few reads nothing else.
        rows = f"{with_persons(table, catalog, columns)} ORDER BY numbered.{quoted(CODE)} NULLS LAST"
        connection.execute(f"CREATE TABLE {place} AS {rows}")
    question = f"SELECT (SELECT count(*) FROM {place}) = (SELECT count(*) FROM {source})"
    if connection.execute(question).fetchall() != [(True,)]:
        hint = "Correct the data or the policy; `dpsql policy verify` shows what holds."
        raise Refused("cannot_prepare", f"{table.name}: a row finds more than one person", hint)


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


def facts(schema: Schema, table: Table, catalog: Catalog) -> Schema:
    """The schema of the copy. What the engine enforces in the database holds in it too."""
    path = tuple(path_to_person(table, catalog.tables))
    root = catalog.tables[fold(path[-1][1].table)] if path else table
    return replace(schema, person="" if table.person is None else root.columns[fold(str(root.person))].type.sql)


def notes_of(target: Path | duckdb.DuckDBPyConnection) -> dict[str, Any] | None:
    """What a copy says of itself; None if it is none."""
    try:
        if isinstance(target, Path):
            with duckdb.connect(str(target), read_only=True, config=CONFIG) as connection:
                return notes_of(connection)
        ((found,),) = target.execute(f"SELECT * FROM {NOTES}").fetchall()
        notes = json.loads(found)
    except (duckdb.Error, ValueError):
        return None
    return notes if isinstance(notes, dict) and notes.get("format") == FORMAT else None


def prepared(database: Path, policy: Policy) -> DuckDB | None:
    """The copy of a database, if there is one and it is of what the database and the policy are now."""
    database = database.resolve()
    target = target_of(database)
    if not target.exists():
        return None
    try:
        connection = duckdb.connect(str(target), read_only=True, config=CONFIG)
    except duckdb.Error:
        return None
    known = notes_of(connection)
    if known is None or not current(known, connection, database, policy):
        connection.close()
        return None
    schemas = {
        name: Schema(tuple(path), tuple(map(tuple, columns)), collated, tuple(map(tuple, unique)), person)
        for name, (path, columns, collated, unique, person) in known["schemas"].items()
    }

    def check() -> None:
        if not unchanged(database, known):
            raise Refused("data_changed", "the data has changed since the session began", "Connect again.")

    return DuckDB(connection, ours=True, schemas=schemas, check=check)


def current(known: Mapping[str, Any], connection: duckdb.DuckDBPyConnection, database: Path, policy: Policy) -> bool:
    """Whether notes are about this database, as it is and as the policy has it; and the engine calls the copy as it calls that."""
    wanted = {"version": policy.version, "persons": persons_of(policy)}
    ((name,),) = connection.execute("SELECT current_database()").fetchall()
    return (
        all(known[word] == value for word, value in json.loads(json.dumps(wanted)).items())
        and all(path[0] == name for path, *_ in known["schemas"].values())
        and unchanged(database, known)
    )


def unchanged(database: Path, known: Mapping[str, Any]) -> bool:
    try:
        return bool(state(database) == known["state"])
    except OSError:
        return False


def text(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
