"""A dialect for SQLAlchemy 1.4 and 2: `create_engine("dpsql:///shop.duckdb?policy=shop.policy.toml")`.

The options of the URL are those of `dpsql.dbapi.connect`: policy, ledger, analyst, epsilon, delta. Tables are reflected from
what is public about them. Statements that write are refused, as everywhere.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

from sqlalchemy import types
from sqlalchemy.engine import default
from sqlalchemy.exc import ArgumentError, NoSuchTableError
from sqlalchemy.sql import compiler

from dpsql import dbapi
from dpsql.describe import TableFacts
from dpsql.policy.catalog import fold

TYPES: dict[str, Any] = {
    "BOOLEAN": types.BOOLEAN,
    "TINYINT": types.SMALLINT,
    "SMALLINT": types.SMALLINT,
    "INTEGER": types.INTEGER,
    "BIGINT": types.BIGINT,
    "HUGEINT": types.NUMERIC,
    "UTINYINT": types.SMALLINT,
    "USMALLINT": types.INTEGER,
    "UINTEGER": types.BIGINT,
    "UBIGINT": types.NUMERIC,
    "UHUGEINT": types.NUMERIC,
    "FLOAT": types.FLOAT,
    "DOUBLE": types.FLOAT,
    "DECIMAL": types.NUMERIC,
    "VARCHAR": types.VARCHAR,
    "BLOB": types.BLOB,
    "DATE": types.DATE,
    "TIME": types.TIME,
    "TIMESTAMP": types.TIMESTAMP,
    "INTERVAL": types.Interval,
    "UUID": types.VARCHAR,
}


def type_of(name: str) -> Any:
    """The type that a column of DuckDB's type has for SQLAlchemy.

    >>> type_of("DECIMAL(10,2)"), type_of("VARCHAR"), type_of("INTEGER[]")
    (NUMERIC(precision=10, scale=2), VARCHAR(), ARRAY(INTEGER()))
    """
    if name.endswith("[]"):
        return types.ARRAY(type_of(name[:-2]))
    if found := re.fullmatch(r"DECIMAL\((\d+), ?(\d+)\)", name):
        return types.NUMERIC(int(found[1]), int(found[2]))
    if name.startswith("TIMESTAMP"):
        return types.TIMESTAMP(timezone="WITH TIME ZONE" in name)
    return TYPES.get(name, types.NullType)()


class Types(compiler.GenericTypeCompiler):
    """The names of types as DuckDB writes them."""

    def visit_FLOAT(self, type_: Any, **more: Any) -> str:
        return "DOUBLE"

    visit_DOUBLE = visit_DOUBLE_PRECISION = visit_FLOAT

    def visit_DATETIME(self, type_: Any, **more: Any) -> str:
        return "TIMESTAMP"

    def visit_TEXT(self, type_: Any, **more: Any) -> str:
        return "VARCHAR"

    visit_CLOB = visit_NCLOB = visit_TEXT

    def visit_ARRAY(self, type_: Any, **more: Any) -> str:
        return f"{self.process(type_.item_type)}[]"


class Compiler(compiler.SQLCompiler):
    """SQL as DuckDB writes it, where SQLAlchemy's own differs."""

    def visit_true(self, element: Any, **more: Any) -> str:
        return "true"

    def visit_false(self, element: Any, **more: Any) -> str:
        return "false"

    def visit_now_func(self, element: Any, **more: Any) -> str:
        return "now()"

    def visit_is_distinct_from_binary(self, binary: Any, operator: Any, **more: Any) -> str:
        return f"{self.process(binary.left, **more)} IS DISTINCT FROM {self.process(binary.right, **more)}"

    def visit_is_not_distinct_from_binary(self, binary: Any, operator: Any, **more: Any) -> str:
        return f"{self.process(binary.left, **more)} IS NOT DISTINCT FROM {self.process(binary.right, **more)}"

    def visit_ilike_op_binary(self, binary: Any, operator: Any, **more: Any) -> str:
        return f"{self.process(binary.left, **more)} ILIKE {self.process(binary.right, **more)}"

    def visit_mod_binary(self, binary: Any, operator: Any, **more: Any) -> str:
        return f"{self.process(binary.left, **more)} % {self.process(binary.right, **more)}"

    def visit_floordiv_binary(self, binary: Any, operator: Any, **more: Any) -> str:
        return f"{self.process(binary.left, **more)} // {self.process(binary.right, **more)}"

    def limit_clause(self, select: Any, **more: Any) -> str:
        limit, offset = select._limit_clause, select._offset_clause
        return (f"\n LIMIT {self.process(limit, **more)}" if limit is not None else "") + (
            f"\n OFFSET {self.process(offset, **more)}" if offset is not None else ""
        )

    def for_update_clause(self, select: Any, **more: Any) -> str:
        return ""


class Dialect(default.DefaultDialect):
    """dpsql, as SQLAlchemy sees it."""

    name = "dpsql"
    driver = "dpsql"
    default_paramstyle = "qmark"
    statement_compiler = Compiler
    type_compiler = Types
    type_compiler_cls = Types
    supports_statement_cache = True
    supports_native_boolean = True
    supports_native_decimal = True
    div_is_floordiv = False
    supports_sane_rowcount = False
    supports_sane_multi_rowcount = False
    supports_unicode_statements = True
    supports_unicode_binds = True
    supports_is_distinct_from = True
    supports_comments = True
    supports_schemas = True
    supports_views = True
    supports_sequences = False
    supports_alter = False
    returns_unicode_strings = True
    description_encoding = None
    postfetch_lastrowid = False
    default_schema_name = "main"

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        """The DB-API module."""
        return dbapi

    dbapi = import_dbapi  # as version 1.4 calls it

    def create_connect_args(self, url: Any) -> tuple[list[Any], dict[str, Any]]:
        """The path and the options of a URL."""
        options: dict[str, Any] = dict(url.query)
        known = ("policy", "ledger", "analyst", "epsilon", "delta")
        if wrong := sorted(options.keys() - set(known)):
            raise ArgumentError(f"the URL has an option {wrong[0]!r}; there are: {', '.join(known)}")
        if not url.database or url.host:
            raise ArgumentError(
                "the URL has no path: write dpsql:///shop.duckdb, or dpsql:////data/shop.duckdb from the root"
            )
        if options.get("ledger") == ":memory:":  # of a pool's connections each would have a budget of its own
            raise ArgumentError(
                "a ledger in memory is of one connection alone: write &ledger=shop.ledger, or leave it out"
            )
        for name in ("epsilon", "delta"):
            try:
                options |= {name: float(options[name])} if name in options else {}
            except ValueError:
                raise ArgumentError(f"{name} is no number: write &{name}=0.5") from None
        return [url.database], options

    def initialize(self, connection: Any) -> None:
        """Ask nothing: everything is known."""

    def do_ping(self, dbapi_connection: Any) -> bool:
        """See whether the connection is open: asking costs nothing, but there is nothing to ask."""
        dbapi_connection.check()
        return True

    # --- reflection ---------------------------------------------------------------------------------------------------

    def _tables(self, connection: Any, schema: str | None) -> list[TableFacts]:
        raw = connection.connection
        while not isinstance(raw, dbapi.Connection):
            raw = raw.dbapi_connection if hasattr(raw, "dbapi_connection") else raw.connection
        return [table for table in raw.session.tables if schema in (None, table.path[1])]

    def _table(self, connection: Any, name: str, schema: str | None) -> TableFacts:
        for table in self._tables(connection, schema):
            if fold(name) in (fold(table.name), fold(table.path[2])):
                return table
        raise NoSuchTableError(name)

    def has_table(self, connection: Any, table_name: str, schema: str | None = None, **more: Any) -> bool:
        names = {fold(name) for table in self._tables(connection, schema) for name in (table.name, table.path[2])}
        return fold(table_name) in names

    def get_schema_names(self, connection: Any, **more: Any) -> list[str]:
        return sorted({table.path[1] for table in self._tables(connection, None)})

    def get_table_names(self, connection: Any, schema: str | None = None, **more: Any) -> list[str]:
        return [table.name for table in self._tables(connection, schema) if table.rows_of != "a view"]

    def get_view_names(self, connection: Any, schema: str | None = None, **more: Any) -> list[str]:
        return [table.name for table in self._tables(connection, schema) if table.rows_of == "a view"]

    def get_columns(
        self, connection: Any, table_name: str, schema: str | None = None, **more: Any
    ) -> list[dict[str, Any]]:
        return [
            {
                "name": column.name,
                "type": type_of(column.type),
                "nullable": column.nullable,
                "default": None,
                **({"comment": str(column)} if str(column) else {}),
            }
            for column in self._table(connection, table_name, schema).columns
        ]

    def get_pk_constraint(
        self, connection: Any, table_name: str, schema: str | None = None, **more: Any
    ) -> dict[str, Any]:
        return {"constrained_columns": list(self._table(connection, table_name, schema).key), "name": None}

    def get_foreign_keys(
        self, connection: Any, table_name: str, schema: str | None = None, **more: Any
    ) -> list[dict[str, Any]]:
        link = self._table(connection, table_name, schema).references
        if link is None:
            return []
        columns, target, referenced = link
        return [
            {
                "name": None,
                "constrained_columns": list(columns),
                "referred_schema": schema,
                "referred_table": target,
                "referred_columns": list(referenced),
                "options": {},
            }
        ]

    def get_table_comment(
        self, connection: Any, table_name: str, schema: str | None = None, **more: Any
    ) -> dict[str, Any]:
        table = self._table(connection, table_name, schema)
        return {"text": f"rows of persons: {table.person}" if table.person else table.rows_of}

    def get_view_definition(
        self, connection: Any, view_name: str, schema: str | None = None, **more: Any
    ) -> str | None:
        self._table(connection, view_name, schema)
        return None

    def _nothing(self, connection: Any, table_name: str, schema: str | None = None, **more: Any) -> list[Any]:
        self._table(connection, table_name, schema)
        return []

    get_indexes = get_unique_constraints = get_check_constraints = _nothing

    def get_temp_table_names(self, connection: Any, schema: str | None = None, **more: Any) -> list[str]:
        return []

    get_temp_view_names = get_sequence_names = get_materialized_view_names = get_temp_table_names

    def has_sequence(self, connection: Any, sequence_name: str, schema: str | None = None, **more: Any) -> bool:
        return False

    def has_index(self, *where: Any, **more: Any) -> bool:
        return False
