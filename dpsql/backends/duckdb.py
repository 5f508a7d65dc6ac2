"""DuckDB: a file opened read-only in an instance of our own, or the owner's open connection, which is left as it is."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import duckdb

from dpsql.compiler.free import GROWING
from dpsql.errors import Error, Refused, Unfinished, spelling
from dpsql.kernel.charged import Ticket
from dpsql.kernel.exact import ExactQuery, PublicRead, ReleasedTable, issued
from dpsql.kernel.fan_out import RELEASED
from dpsql.kernel.functions import NAMES
from dpsql.kernel.keys import PublicKeys
from dpsql.kernel.noise import Release
from dpsql.kernel.release import Totals, limited
from dpsql.policy.catalog import HIDDEN, Described, Reference, Schema, Table, Type, fold, quoted

CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "python_enable_replacements": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
}
# Settings that change what the generated SQL means, with the value that the proofs are for.
SETTINGS = {
    "default_collation": "",
    "integer_division": False,
    "ieee_floating_point_ops": True,
    "error_on_division_by_zero": True,
    "scalar_subquery_error_on_multiple_rows": True,
    "old_implicit_casting": False,
    "default_order": "ASCENDING",
    "arrow_lossless_conversion": False,
    "arrow_output_version": "1.0",
    "max_expression_depth": 1000,
}
# Every function and every operator that the generated SQL may call, as DuckDB's own parser names them.
OPERATORS = "+ - * / // % & | || << >> ~ ~~ ~~* like_escape ilike_escape list_sort list_aggregate array_extract array_slice".split()  # noqa: SIM905
AGGREGATION = "count_star count sum min max sqrt isnan hash row_number strlen unnest range list_value log2 pow bool_and bool_or rank dense_rank lag lead first_value last_value first last nth_value ntile percent_rank cume_dist".split()  # noqa: SIM905
CALLS = frozenset([*OPERATORS, *AGGREGATION, *(row.name for row in NAMES.values())])
STEPS = frozenset(  # some have the number of their block behind them
    "rows grid pairs ranked kept norms guesses roots limited claims placed claimed values added persons "  # noqa: SIM905
    "distances powers places tallies rungs".split()
)


SIGNS = frozenset([*OPERATORS, "!~~", "!~~*", "~~~", "**", "^"])  # above the noise, as signs and not by their names
TABLES = ("range", "generate_series", "unnest")  # functions in FROM that may stand above the noise
CLOCKS = frozenset(  # columns that the engine takes for functions if there are no such columns
    (word,)
    for word in "current_catalog current_date current_role current_schema current_time current_timestamp current_user localtime "  # noqa: SIM905
    "localtimestamp session_user user".split()
)
SET = (f"system.main.current_setting('{name}')" for name in SETTINGS)
HERE = f"SELECT system.main.current_database(), system.main.current_schema(), {', '.join(SET)}"
CREATED = f"{HERE}, database_name, schema_name, table_name, sql FROM system.main.duckdb_tables()"


# The C library gives pieces as large as a stream's batches back to the system after each, and clears them again for the next:
# a fifth of a query's time. It keeps those up to the largest that was ever given back, so one is, which is never touched.
bytes(31 * 2**20)


class DuckDB:
    dialect = "duckdb"

    def __init__(
        self,
        database: str | Path | duckdb.DuckDBPyConnection,
        *,
        ours: bool = False,
        schemas: Mapping[str, Schema] | None = None,
        check: Callable[[], None] = lambda: None,
        loaded: bool = False,
        synthetic: bool = False,
    ) -> None:
        """`ours`: a connection that nobody else uses; its `schemas`, if nobody can change them. `check` refuses a statement
        before any row is read. `loaded`: from files and frames, and nobody changes it. `synthetic`: its rows are of nobody."""
        self._owner = database if isinstance(database, duckdb.DuckDBPyConnection) else None
        self._path = None if self._owner is not None else Path(str(database))
        self._ours, self._schemas, self._check, self.loaded = ours, schemas, check, loaded
        self._synthetic = synthetic
        self._repeats: dict[tuple[tuple[str, str, str], frozenset[str]], int] = {}
        # What was counted, and what the file was then.
        self._counts: dict[tuple[tuple[str, str, str], frozenset[str]], tuple[PublicRead, object]] = {}

    def close(self) -> None:
        """Let go of an instance of our own, and of the rows in it. An owner's connection stays open."""
        if self._ours and self._owner is not None:
            self._owner.close()

    @contextmanager
    def _connect(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for one statement. A file is released afterwards, so that its owner can write."""
        try:
            connection = self._owner.cursor() if self._owner is not None else read_only(str(self._path))
        except duckdb.Error as error:
            raise cannot_open(self._path, error) from None
        try:
            yield connection
        finally:
            with suppress(duckdb.Error):
                connection.close()

    def repeats(self, table: Table, columns: frozenset[str], make: Callable[[], PublicRead]) -> int:
        """How many rows of a public table have the same values of these columns, none NULL, at the most.

        It is counted when a query first asks, and anew before each statement that relies on it (`grown`).
        """
        if (known := self._repeats.get((table.path, columns))) is not None:
            return known
        read = issued(make(), PublicRead)
        with self.snapshot() as snapshot:
            self._repeats[table.path, columns] = found = self._counted(snapshot, columns, read)
        return found

    def _counted(self, snapshot: Snapshot, columns: frozenset[str], read: PublicRead) -> int:
        self._counts[read.table, columns] = read, stamp(self._path)
        return snapshot.most(read)

    def grown(self, snapshot: Snapshot, tables: Iterable[tuple[str, str, str]]) -> bool:
        """Whether more rows of one of these tables have the same values than were counted; then all counts are forgotten.

        What nobody can have written since is not counted again: a copy of our own, and a file that is as it was.
        """
        if self.loaded or self._schemas is not None:
            return False
        wanted, now = set(tables), stamp(self._path)
        for (path, columns), (read, before) in list(self._counts.items()):
            if path not in wanted or (now is not None and now == before):
                continue
            if self._counted(snapshot, columns, read) > self._repeats.get((path, columns), 0):
                self._repeats.clear()
                self._counts.clear()
                return True
        return False

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """One read-only transaction, in which no name that the generated SQL uses means something else.

        Needs:   a database of whose contents only the owner decides
        Gives:   a snapshot on which generated SQL means what the proofs take it to mean; nothing of it outlives the block
        Proof:   the transaction is read-only and sees one version of data and catalogue. Functions, operators and types
                 are looked up in the connection's own temporary schema, which has none, and among the built-ins, which
                 the engine lets nobody replace; not among an owner's macros. Tables have three-part names, so views and
                 temporary tables cannot shadow them; settings that change meanings are compared
        Checked: test_backends
        """
        with self._connect() as connection:
            try:
                connection.execute(parsed("BEGIN TRANSACTION READ ONLY"))
                found = connection.execute(parsed(CREATED)).fetchall() if self._schemas is None else []
                here = found[0] if found else connection.execute(parsed(HERE)).fetchall()[0]
                connection.execute(parsed("SET search_path = 'system.main'"))
            except duckdb.Error as error:
                raise cannot_open(self._path, error) from None
            refuse_settings(here[2 : 2 + len(SETTINGS)])
            self._check()
            created = {(database, schema, table): text for *_, database, schema, table, text in found}
            snapshot = Snapshot(connection, here[:2], created, self._schemas, self._synthetic)
            try:
                yield snapshot
            finally:
                # An interrupted or invalidated connection has no transaction left; it is closed next.
                with suppress(duckdb.Error):
                    connection.execute(parsed("ROLLBACK"))


class Snapshot:
    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        here: tuple[str, str],
        created: Mapping[tuple[str, str, str], str],
        schemas: Mapping[str, Schema] | None = None,
        synthetic: bool = False,
    ) -> None:
        self._synthetic = synthetic
        self._connection, self._here, self._created, self._schemas = connection, here, created, schemas

    def schemas(self, names: Iterable[str]) -> dict[str, Schema]:
        """The schemas of the tables with these names, which may be qualified. Views are not tables."""
        if self._schemas is not None:
            return {name: self._schemas[name] for name in names if name in self._schemas}
        found: dict[tuple[str, str, str], list[tuple[str, str, bool, bool]]] = {}
        # Tables of other engines that are attached might raise while they are scanned.
        own = {
            name
            for name, kind in self._connection.execute(
                "SELECT database_name, type FROM system.main.duckdb_databases()"
            ).fetchall()
            if kind == "duckdb"
        }
        tables = {path: "COLLATE" in text.upper() for path, text in self._created.items() if path[0] in own}
        for database, schema, table, column, type_, nullable, generated in self._connection.execute(
            "SELECT database_name, schema_name, table_name, column_name, data_type, is_nullable, is_generated "
            "FROM system.main.duckdb_columns() ORDER BY database_name, schema_name, table_name, column_index"
        ).fetchall():
            if (database, schema, table) in tables:
                found.setdefault((database, schema, table), []).append((column, type_, bool(nullable), bool(generated)))
        unique: dict[tuple[str, str, str], list[tuple[str, ...]]] = {}
        for database, schema, table, constrained in self._connection.execute(
            "SELECT database_name, schema_name, table_name, constraint_column_names FROM system.main.duckdb_constraints() "
            "WHERE constraint_type IN ('PRIMARY KEY', 'UNIQUE')"
        ).fetchall():
            unique.setdefault((database, schema, table), []).append(tuple(constrained))
        result: dict[str, Schema] = {}
        for name in names:
            parts = tuple(fold(name).split("."))
            wanted = tuple(map(fold, self._here))[: max(3 - len(parts), 0)] + parts
            for path, columns in found.items():
                if tuple(fold(part) for part in path) == wanted:
                    result[name] = Schema(path, tuple(columns), tables[path], tuple(unique.get(path, ())))
        return result

    def texts(self, schemas: Mapping[str, Schema]) -> object:
        """What changes when one of these schemas does: CREATE TABLE as the engine writes it, which is quicker than `schemas`.

        It names a type that a user has made, and does not say what it is; then all of the schemas are compared.
        """
        if self._schemas is not None:
            return None
        written = {schema.path: self._created.get(schema.path) for schema in schemas.values()}
        types = {type_ for schema in schemas.values() for _, type_, _, _ in schema.columns}
        made = any(Type(type_).kind == "OTHER" for type_ in types)
        return self._here, written, self.schemas(schemas) if made else None

    def everything(self) -> tuple[Described, ...]:
        """All tables of the current database with their keys and references, for the owner."""
        listed = self._connection.execute(
            "SELECT schema_name, table_name FROM system.main.duckdb_tables() WHERE database_name = ? AND NOT internal",
            [self._here[0]],
        ).fetchall()
        names = {(schema, table): table if schema == self._here[1] else f"{schema}.{table}" for schema, table in listed}
        keys: dict[str, tuple[str, ...]] = {}
        references: dict[str, list[Reference]] = {}
        for schema, table, kind, columns, target, referenced in self._connection.execute(
            "SELECT schema_name, table_name, constraint_type, constraint_column_names, referenced_table, "
            "referenced_column_names FROM system.main.duckdb_constraints() WHERE database_name = ? ORDER BY constraint_index",
            [self._here[0]],
        ).fetchall():
            if kind == "PRIMARY KEY":
                keys[names[schema, table]] = tuple(columns)
            elif kind == "FOREIGN KEY" and (schema, target) in names:
                link = Reference(tuple(columns), names[schema, target], tuple(referenced))
                references.setdefault(names[schema, table], []).append(link)
        return tuple(
            Described(
                name,
                tuple((column, type_) for column, type_, _, generated in schema.columns if not generated),
                keys.get(name, ()),
                tuple(references.get(name, ())),
            )
            for name, schema in self.schemas(names.values()).items()
        )

    def ask(self, question: str) -> tuple[Any, ...]:
        """The exact row that a query gives, for the owner."""
        try:
            (row,) = self._connection.execute(question).fetchall()
        except duckdb.Error:
            raise Refused("database_unreadable", "the engine could not check the data", "Check the file.") from None
        return tuple(row)

    def holds(self, question: str) -> bool:
        """The exact truth value of a query, for the owner."""
        return bool(self.ask(question)[0])

    def most(self, read: PublicRead) -> int:
        """The number that a query over a public table gives."""
        try:
            ((found,),) = self._connection.execute(parsed(issued(read, PublicRead).sql)).fetchall()
        except duckdb.Error:
            raise Refused(
                "schema_changed", "a public table cannot be read as it was before", "Connect again."
            ) from None
        return found or 0

    def totals(self, release: Release, ticket: Ticket) -> Totals:
        """The exact integers of a release, which only `kernel.release` can read; to be made before the snapshot ends."""
        ticket.use("run", release, self._synthetic)
        return limited(release, self._run)

    def _run(self, query: ExactQuery) -> duckdb.DuckDBPyRelation:
        return self._connection.sql(parsed(issued(query, ExactQuery).sql))

    def public(self, read: PublicRead) -> Stream:
        """A public table as an Arrow stream; to be read before the snapshot ends."""
        return Stream(self._connection.sql(issued(read, PublicRead).sql))

    def load(self, table: ReleasedTable, rows: duckdb.DuckDBPyRelation) -> None:
        """What has been released, as a table that only this snapshot has: of this size at the most, and with this key."""
        word = quoted(issued(table, ReleasedTable).name)
        self._connection.register("incoming", Stream(rows))
        cells = ", ".join(f"CAST({quoted(word)} AS {type_.sql}) AS {quoted(word)}" for word, type_ in table.columns)
        made = f'CREATE OR REPLACE TEMP TABLE {word} AS SELECT {cells} FROM temp.main."incoming"'
        self._connection.execute(parsed(made))
        self._connection.unregister("incoming")
        key, known = ", ".join(map(quoted, table.key)), " AND ".join(f"{quoted(c)} IS NOT NULL" for c in table.key)
        told_apart = (
            f"count(DISTINCT ({key})) FILTER (WHERE {known}) = count(*) FILTER (WHERE {known})" if key else "true"
        )
        question = f"SELECT count(*), {told_apart} FROM temp.main.{word}"
        ((size, apart),) = self._connection.execute(question).fetchall()
        if size > RELEASED:  # they would multiply a person's rows, and a clock would tell
            raise Unfinished(
                f"a table of more than {RELEASED:,} rows is made from releases and joined with rows of persons"
            )
        if not apart:
            raise AssertionError("the key of a released table stands twice")

    def interrupt(self) -> None:
        """End the query that runs now, from another thread."""
        with suppress(duckdb.Error):
            self._connection.interrupt()


def stamp(path: Path | None) -> object:
    """What changes when somebody writes to a file; None where there is none to look at. Only the time for counting shows it."""
    if path is None:
        return None
    try:
        found, log = path.stat(), path.with_name(f"{path.name}.wal")
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, log.exists()


def read_only(path: str) -> duckdb.DuckDBPyConnection:
    """A file in an instance of our own; or, where this process has it open read-only already, in that instance.

    A process has one instance of a file, with one configuration. In that of somebody else we are as with an owner's open
    connection: CONFIG only shuts doors that the generated SQL has no words for, and `snapshot` rests on none of it.
    """
    try:
        return duckdb.connect(path, read_only=True, config=CONFIG)
    except duckdb.ConnectionException as error:
        if "different configuration" not in str(error):
            raise
    return duckdb.connect(path, read_only=True)


def file_of(connection: duckdb.DuckDBPyConnection) -> str | None:
    """The file of the database that a connection uses; None if it is in memory, or cannot be asked."""
    question = "SELECT path FROM system.main.duckdb_databases() WHERE database_name = system.main.current_database()"
    try:
        with connection.cursor() as cursor:
            found = cursor.execute(question).fetchone()
    except duckdb.Error:
        return None
    return found[0] if found else None


class Stream:
    """Rows of one instance for another: a relation itself could be read only where it is."""

    def __init__(self, relation: duckdb.DuckDBPyRelation) -> None:
        self._relation = relation

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._relation.__arrow_c_stream__(requested_schema)


def refuse_settings(found: Iterable[object]) -> None:
    for (name, meant), value in zip(SETTINGS.items(), found, strict=True):
        if str(value).lower() != str(meant).lower():
            raise Refused(
                "setting_not_supported",
                f"the connection has {name} = {value}, which changes what queries mean",
                f"RESET {name}, or pass the database's path.",
            )


_parser_lock = threading.Lock()


@cache
def parser() -> duckdb.DuckDBPyConnection:
    """An empty instance of our own, for questions about DuckDB itself."""
    return duckdb.connect(":memory:", config=CONFIG)


@lru_cache(maxsize=256)
def parsed(text: str) -> duckdb.Statement:
    """One statement, parsed but not bound to any name: over few rows parsing takes as long as all the rest."""
    with _parser_lock:
        (statement,) = parser().extract_statements(text)
    return statement


def reads(text: str) -> dict[str, Any]:
    """What DuckDB's own parser makes of a text. It is parsed and not run."""
    with _parser_lock:
        row = parser().execute("SELECT json_serialize_sql(?)", [text]).fetchone()
    tree: dict[str, Any] = json.loads(row[0]) if row else {"error": True}
    return tree


def second_opinion(text: str, known: int | None = None) -> None:
    """Refuse what DuckDB would not read as one SELECT: then our parser has read something else into it."""
    tree = reads(text)
    if "expression depth" in str(tree.get("error_message")):  # its own limit, and a constant text
        raise Refused("too_deep", "the query is nested too deep for the engine", "Use fewer operators in one place.")
    if tree.get("error") or len(tree["statements"]) != 1:
        what = tree.get("error_message", "DuckDB would not accept this query")
        place = str(tree.get("position", ""))
        refusal = Refused("syntax", f"not valid SQL: {what}", spelling(text), known)
        if place.isdigit():  # in bytes
            refusal.position = len(text.encode()[: int(place)].decode(errors="ignore"))
        refusal.locate(text)
        raise refusal
    if any(node.get("export_state") for node in nodes(tree)):
        raise Refused("not_supported", "EXPORT_STATE is not supported", "Leave it out.")


class Shadow:
    """An instance of our own with the schema and no rows: what fails here fails on account of its text."""

    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        self._schemas = schemas
        self._empty: duckdb.DuckDBPyConnection | None = None
        self._lock = threading.Lock()

    def columns(self) -> dict[str, str]:
        """For each table its columns, as CREATE TABLE has them."""
        return {
            name: ", ".join(f"{quoted(column)} {type_}" for column, type_, _, _ in schema.columns)
            for name, schema in self._schemas.items()
        }

    def types(self, name: str) -> list[tuple[str, str]]:
        return [(column, type_) for column, type_, _, _ in self._schemas[name].columns]

    def twin(self, within: bool = False) -> duckdb.DuckDBPyConnection:
        """A new one. Its tables have the names and the types of the real ones, and no rows. `within`: it is used from among them."""
        connection = duckdb.connect(":memory:", config=CONFIG)
        for catalog in {schema.path[0] for schema in self._schemas.values()} - {"memory"}:
            connection.execute(f"ATTACH ':memory:' AS {quoted(catalog)}")
        for schema in self._schemas.values():
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema.path[0])}.{quoted(schema.path[1])}")
            columns = [(name, type_) for name, type_, _, _ in schema.columns]
            if schema.person:
                columns += zip(HIDDEN, (schema.person, "UINTEGER", "UINTEGER"), strict=True)
            listed = ", ".join(f"{quoted(name)} {type_}" for name, type_ in columns)
            connection.execute(f"CREATE TABLE {'.'.join(map(quoted, schema.path))} ({listed})")
        if within and self._schemas:
            paths = {name: schema.path for name, schema in self._schemas.items()}
            path = next((path for name, path in paths.items() if "." not in name), next(iter(paths.values())))
            connection.execute(f"USE {quoted(path[0])}.{quoted(path[1])}")
        return connection

    def _distinct(self, keys: PublicKeys) -> None:
        """No public key may stand twice: each copy would count a person again."""
        for column in keys.columns:
            word, text = quoted(column[0]), PublicKeys((column,)).text
            with _parser_lock:
                found = (
                    parser()
                    .execute(f"SELECT count({word}) = count(DISTINCT {word}), count(*) - count({word}) FROM ({text})")
                    .fetchall()
                )
            if found not in ([(True, 0)], [(True, 1)]):
                raise AssertionError("a public key stands twice")

    def confirm(self, release: Release) -> None:
        """Let DuckDB read the generated SQL and run it on empty tables, and check that it is made of what was planned.

        Needs:   the SQL that was generated from the algebra, and the schema that it is for
        Gives:   it is one SELECT that reads the plan's tables by their three-part names, calls only the listed functions,
                 has no table function and no other statement in it; and it does not fail on account of its text
        Proof:   every node of the engine's parse tree is visited; a generator that wrote something else is found out
                 here. The empty tables know nothing about anyone, so a failure there is a refusal and costs nothing
        Checked: test_backends
        """
        if isinstance(release.keys, PublicKeys):
            self._distinct(release.keys)
        for query in release.exact.all:
            sql, size = query.sql, query.rows
            tree = reads(sql)
            if tree.get("error"):
                raise Refused(
                    "too_deep", "the query is nested too deep for the engine", "Use fewer operators in one place."
                )
            check(tree, query)
            constants_are_read(sql, tree)
            with self._lock:
                try:
                    if self._empty is None:
                        self._empty = self.twin()
                    for read in release.loads:
                        columns = ", ".join(f"{quoted(word)} {type_.sql}" for word, type_ in read.columns)
                        self._empty.execute(f"CREATE OR REPLACE TEMP TABLE {quoted(read.name)} ({columns})")
                    rows = self._empty.execute(sql).fetchall()
                except duckdb.Error:
                    raise Refused(
                        "engine_cannot", "the engine cannot run this query, whatever the data", "Simplify it."
                    ) from None
            if len(rows) != size:
                raise AssertionError("the generated SQL does not give one row for each key")


OUTSIDE = "^version$|^current_|_sql$|_plan$|^finalize$|^combine$|aggregate_state|^alias$|^index_key$|log_message"


@cache
def repeatable() -> Mapping[str, str]:
    """The functions of which the same arguments always give the same result, and of what kind each is."""
    with _parser_lock:
        found = parser().execute(
            "SELECT function_name, function_type FROM duckdb_functions() "
            "WHERE stability = 'CONSISTENT' OR (function_type = 'macro' AND regexp_matches(function_name, '^(list|array)_'))"
        )
        kinds: dict[str, str] = dict(found.fetchall())
    return {name: kind for name, kind in kinds.items() if re.match("[a-z]", name) and not re.search(OUTSIDE, name)}


def finishes(outer: str, aggregating: bool = False) -> None:
    """Refuse functions above the noise that are not the engine's, or that would tell more than their arguments do."""
    tree = reads(outer)
    if tree.get("error") or len(tree["statements"]) != 1:
        raise Refused("engine_cannot", "the engine cannot read what would finish this query", "Simplify it.")
    for node in nodes(tree):
        if node.get("type") == "TABLE_FUNCTION" and (
            not aggregating or fold(node["function"]["function_name"]) not in TABLES
        ):
            raise Refused("not_supported", "a function in FROM that is not supported", "Use range or unnest.")
        if not aggregating and (
            node.get("class") == "SUBQUERY" or (node.get("type") == "BASE_TABLE" and node["table_name"] != "released")
        ):
            raise AssertionError("what finishes a release reads something else than it")
        word = fold(node.get("function_name") or "")
        clock = node.get("class") == "COLUMN_REF" and tuple(map(fold, node["column_names"])) in CLOCKS
        if clock or (word == "age" and len(node["arguments"]) == 1):
            raise Refused("function_unknown", "clocks and users are not asked above the noise", "Choose another name.")
        if node.get("class") in ("FUNCTION", "WINDOW") and not (
            (word in CALLS and re.match("[a-z]", word)) or (word in SIGNS and node.get("is_operator"))
        ):
            kind = repeatable().get(word)
            if kind is None:
                near = get_close_matches(word, sorted(repeatable().keys() - GROWING), 1, 0.7)
                refusal = Refused(
                    "function_unknown",
                    f"there is no function {word}() that may be used here",
                    f"Did you mean {near[0]}()?" if near else "See DuckDB's list of functions.",
                )
                refusal.word = word
                raise refusal
            if kind in ("aggregate", "window") and node["class"] == "FUNCTION" and not aggregating:
                raise Refused("not_supported", f"{word}() stands without OVER", "Write OVER () behind it.")


def constants_are_read(sql: str, tree: Mapping[str, Any]) -> None:
    """Convert every constant that the SQL converts: one that cannot be would raise only when a row needs it."""
    text = sql.encode()
    casts = {
        text[node["query_location"] :][: node["query_location_length"]].decode()
        for node in nodes(tree)
        if node.get("class") == "CAST"
        and not node["try_cast"]
        and node["child"].get("class") == "CONSTANT"
        and node["child"]["literal"]["kind"] == "STRING"
    }
    if casts:
        try:
            with _parser_lock:
                parser().execute(f"SELECT {', '.join(sorted(casts))}").fetchall()
        except duckdb.Error:
            raise Refused("literal_invalid", "the engine cannot read a constant of this query", "Check it.") from None


def check(tree: Mapping[str, Any], query: ExactQuery) -> None:
    if len(tree["statements"]) != 1:
        raise AssertionError("the generated SQL is not one SELECT")
    for node in nodes(tree["statements"][0]):
        if node.get("class") in ("FUNCTION", "WINDOW") and fold(node["function_name"]) not in CALLS:
            raise AssertionError(f"the generated SQL calls {node['function_name']}")
        match node.get("type"):
            case "BASE_TABLE":
                path = (node["catalog_name"], node["schema_name"], node["table_name"])
                if path not in query.tables and not (path[:2] == ("", "") and path[2].rstrip("0123456789") in STEPS):
                    raise AssertionError("the generated SQL reads a table that is not in the plan")
            case "TABLE_FUNCTION" | "PIVOT" | "SHOW_REF" | "COLUMN_DATA" | "DELIM_GET":
                raise AssertionError("the generated SQL reads something that is not a table")


def nodes(tree: Any) -> Iterator[Mapping[str, Any]]:
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)


def cannot_open(path: Path | None, error: Exception) -> Error:
    text = str(error)
    if path is None:
        return Refused("database_closed", "the DuckDB connection cannot be used", "Pass an open connection.")
    if "different configuration" in text or "lock on file" in text:
        return Refused(
            "database_in_use",
            f"{str(path)!r} is open for writing in this process or another one, or in this one with other settings",
            "Close it there, or pass that open connection to dpsql.connect.",
        )
    if "does not exist" in text:
        return Refused("database_missing", f"there is no database {str(path)!r}", "Check the path.")
    return Refused("database_unreadable", f"{str(path)!r} cannot be opened as a DuckDB database", "Check the file.")


__all__ = ["DuckDB", "Shadow", "Snapshot", "second_opinion"]
