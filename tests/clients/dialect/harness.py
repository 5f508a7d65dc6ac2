"""SQLAlchemy's suite wants to make tables and fill them. Here the owner does that, and dpsql answers what is read.

A dialect for this suite alone: DDL and rows that are written go to a DuckDB connection of the owner; each SELECT goes to dpsql,
whose policy declares all tables as public. So what is tested is how SQLAlchemy and dpsql read.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import duckdb
from sqlalchemy.sql import compiler

from dpsql import dbapi, session
from dpsql.frontends.sqlalchemy import Compiler, Dialect

WRITES = re.compile(r"\s*(create|drop|insert|update|delete|alter|comment|truncate)\b", re.IGNORECASE)
OWNER = duckdb.connect(":memory:")
OWNER.execute("SET TimeZone = 'UTC'")
NUMBERS = itertools.count()


class Cursor(dbapi.Cursor):
    """Writes as the owner, reads through dpsql."""

    lastrowid = None

    def execute(self, operation: str, parameters: object = None, **options: Any) -> dbapi.Cursor:
        if not WRITES.match(operation):
            self.connection.session = self.connection.reader()
            return super().execute(operation, parameters, **options)
        Connection.version += 1
        self._answer = None
        try:
            OWNER.execute(operation, parameters or None)
        except duckdb.ConstraintException as error:
            raise dbapi.IntegrityError("owner", str(error)) from None
        except duckdb.Error as error:
            raise dbapi.ProgrammingError("owner", str(error)) from None
        return self

    def executemany(self, operation: str, seq_of_parameters: Any) -> Any:
        for parameters in seq_of_parameters:
            self.execute(operation, parameters)


class Connection(dbapi.Connection):
    """A connection whose session is made anew when the owner has written."""

    version = 0  # of the owner's tables
    seen = -1

    def __init__(self) -> None:
        self.session, self.epsilon, self.delta, self.closed = None, None, None, False  # type: ignore[assignment]

    def reader(self) -> session.Session:
        if self.seen != Connection.version:
            names = [row[0] for row in OWNER.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
            views = dict(OWNER.execute("SELECT view_name, sql FROM duckdb_views() WHERE NOT internal").fetchall())
            policy = {
                "dataset": {"id": "suite"},
                "budget": {"epsilon": 1.0, "delta": 1e-6},
                "defaults": {"epsilon": 0.1},
                "tables": {name: {"public": True, **key(name)} for name in names} or {"none": {"public": True}},
            }
            if not names:
                OWNER.execute("CREATE TABLE IF NOT EXISTS none (x INTEGER)")
            if views:
                policy["views"] = {
                    n: re.sub(r"(?is)^create view .*? as ", "", s).rstrip(";\n") for n, s in views.items()
                }
            self.session = session.connect(OWNER, policy=policy, ledger=":memory:")
            self.seen = Connection.version
        return self.session

    def cursor(self) -> Cursor:
        self.check()
        return Cursor(self)

    def close(self) -> None:
        self.closed = True


def key(table: str) -> dict[str, Any]:
    """A primary key, as a policy declares it."""
    found = OWNER.execute(
        "SELECT constraint_column_names FROM duckdb_constraints() WHERE table_name = ? AND constraint_type = 'PRIMARY KEY'",
        [table],
    ).fetchone()
    return {"key": found[0]} if found else {}


class DDL(compiler.DDLCompiler):
    """Tables as DuckDB makes them."""

    def get_column_specification(self, column: Any, **more: Any) -> str:
        text = super().get_column_specification(column, **more)
        if column is column.table._autoincrement_column and column.server_default is None:
            name = f"numbers_{next(NUMBERS)}"
            OWNER.execute(f"CREATE SEQUENCE {name}")
            text = text.replace(" NOT NULL", "") + f" DEFAULT nextval('{name}')"
        return text

    def visit_foreign_key_constraint(self, constraint: Any, **more: Any) -> None:
        """They would keep the suite from dropping its tables."""


class SuiteDialect(Dialect):
    """dpsql for reading, the owner for writing."""

    name = "dpsqlsuite"
    ddl_compiler = DDL
    statement_compiler = Compiler
    supports_statement_cache = True
    supports_default_values = True
    supports_alter = False

    def create_connect_args(self, url: Any) -> tuple[list[Any], dict[str, Any]]:
        return [], {}

    def connect(self, *words: Any, **options: Any) -> Connection:
        return Connection()

    def _tables(self, connection: Any, schema: str | None) -> Any:
        raw = connection.connection
        while not isinstance(raw, Connection):
            raw = raw.dbapi_connection if hasattr(raw, "dbapi_connection") else raw.connection
        raw.session = raw.reader()
        return [table for table in raw.session.tables if schema in (None, table.path[1]) and table.name != "none"]
