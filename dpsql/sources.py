"""Parquet files, CSV files and frames as tables: read once, at connect time, into an in-memory DuckDB of our own.

Needs:   `connect` is the owner's call, so what goes wrong while the rows are read may be told: to the owner
Gives:   tables with the sources' names, whose columns and types do not depend on any cell
Proof:   names and types come from the metadata of a Parquet file or an Arrow table, from the dtypes of a pandas frame, or
         from the header of a CSV file. Where an engine would look at cells to find a type (CSV; pandas' dtype `object`),
         the column is VARCHAR until the policy declares a type. Declared types are reached with TRY_CAST, which makes NULL
         of what does not fit. A type that lists values (ENUM) becomes VARCHAR. What pandas has made of cells before is not
         ours to see: a missing value turns its integers into floats, so declare the types of such columns
Checked: test_sources
"""

from __future__ import annotations

import csv
import glob
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb

from dpsql.errors import Refused
from dpsql.policy.catalog import Policy, Type, declared_type, fold, only_table, quoted

DELIMITERS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (".parquet", *DELIMITERS)
FRAMES = {("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "Table")}
CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "python_enable_replacements": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "pandas_analyze_sample": 0,  # else the type of an `object` column depends on its cells
}
SUPPORTED = "Pass the path of Parquet or CSV files (.parquet, .csv, .tsv; *, ? and ** stand for several), or a DataFrame of pandas or polars, or a Table of pyarrow."


def files_of(database: Path) -> list[Path]:
    """The files of a directory that are tables, each with the file's name; of any other path itself."""
    if not database.is_dir():
        return [database]
    files = sorted(path for path in database.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
    if not files:
        raise Refused("source_missing", f"there is no Parquet or CSV file in {str(database)!r}", SUPPORTED)
    return files


def gather(sources: Mapping[str, Any], policy: Policy) -> duckdb.DuckDBPyConnection:
    """All sources as tables of a new instance, which has no way to files or network afterwards."""
    declared = {fold(name): table for name, table in policy.tables.items()}
    seen: set[str] = set()
    connection = duckdb.connect(":memory:", config=CONFIG)
    connection.execute("PRAGMA disable_optimizer")  # it moves TRY_CAST into a CSV scan, where it raises (DuckDB 2.0)
    for name, source in sources.items():
        if not isinstance(name, str) or fold(name) not in declared:
            raise Refused(
                "table_undeclared",
                f"the policy has no table {name!r}",
                f"Add [tables.{name}] to the policy, or leave this source out.",
            )
        if fold(name) in seen:
            raise Refused("source_twice", f"{name!r} is given twice", "Names are compared without case.")
        seen.add(fold(name))
        columns = only_table(f"tables.{name}.columns", declared[fold(name)].get("columns", {}))
        types = {
            fold(str(column)): declared_type(f"tables.{name}.columns.{column}.type", limits["type"])
            for column, limits in columns.items()
            if isinstance(limits, Mapping) and "type" in limits
        }
        load(connection, name, source, types)
    connection.execute("PRAGMA enable_optimizer")
    connection.execute("SET enable_external_access = false")
    return connection


def load(connection: duckdb.DuckDBPyConnection, name: str, source: Any, types: Mapping[str, Type]) -> None:
    rows, frame = relation(name, source)
    try:
        if frame is not None:
            connection.register("dpsql source", frame)
        cells = ", ".join(
            f"{converted(column, type_, types.get(fold(column)))} AS {quoted(column)}"
            for column, type_, *_ in connection.execute(f"DESCRIBE SELECT * FROM {rows}").fetchall()
        )
        connection.execute(f'CREATE TABLE "memory"."main".{quoted(name)} AS SELECT {cells} FROM {rows}')
        if frame is not None:
            connection.unregister("dpsql source")
    except (duckdb.Error, TypeError, ValueError, ImportError) as error:
        raise unreadable(name, source, error) from None


def describe(name: str, source: Any) -> tuple[tuple[str, str], ...]:
    """The columns of a source and their types, from its metadata."""
    rows, _ = relation(name, source)
    try:
        with duckdb.connect(":memory:", config=CONFIG) as connection:
            found = connection.execute(f"DESCRIBE SELECT * FROM {rows}").fetchall()
    except duckdb.Error as error:
        raise unreadable(name, source, error) from None
    return tuple((column, type_) for column, type_, *_ in found)


def relation(name: str, source: Any) -> tuple[str, Any]:
    """SQL for the rows of a source, and the frame that it needs under the name "dpsql source"."""
    if any((cls.__module__.split(".")[0], cls.__name__) in FRAMES for cls in type(source).__mro__):
        return '"dpsql source"', source
    if not isinstance(source, str | Path) or "://" in str(source):
        what = f"a {type(source).__name__}" if not isinstance(source, str | Path) else str(source)
        raise Refused("source_not_supported", f"{name}: {what} cannot be read", SUPPORTED)
    files = [str(source)] if Path(source).is_file() else sorted(filter(is_file, glob.glob(str(source), recursive=True)))
    if not files:
        raise Refused("source_missing", f"{name}: there is no file {str(source)!r}", "Check the path.")
    kinds = {Path(file).suffix.lower() for file in files}
    if len(kinds) != 1 or not kinds <= set(SUFFIXES):
        raise Refused("source_not_supported", f"{name}: {str(source)!r} cannot be read", SUPPORTED)
    listed = ", ".join(map(text, files))
    (kind,) = kinds
    if kind == ".parquet":
        return f"read_parquet([{listed}], hive_partitioning = false, union_by_name = false)", None
    columns = ", ".join(f"{text(column)}: 'VARCHAR'" for column in header(name, files, DELIMITERS[kind]))
    return (
        f"read_csv([{listed}], auto_detect = false, header = true, delim = {text(DELIMITERS[kind])}, quote = '\"', "
        f"escape = '\"', columns = {{{columns}}}, hive_partitioning = false, union_by_name = false)",
        None,
    )


def is_file(path: str) -> bool:
    return Path(path).is_file()


def header(name: str, files: list[str], delimiter: str) -> list[str]:
    """The names in the first line, which must be the same in all files."""
    found: list[str] | None = None
    for file in files:
        try:
            with open(file, encoding="utf-8-sig", newline="") as lines:
                names = next(csv.reader(lines, delimiter=delimiter), [])
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise unreadable(name, file, error) from None
        if not all(names) or not names or len({fold(column) for column in names}) != len(names):
            raise Refused(
                "source_unreadable",
                f"{name}: the first line of {file!r} does not give each column a name of its own",
                "Add a header.",
            )
        if names != (found or names):
            raise Refused(
                "source_unreadable",
                f"{name}: {file!r} has another header than {files[0]!r}",
                "Give all files one header.",
            )
        found = names
    return found or []


def converted(column: str, type_: str, wanted: Type | None) -> str:
    """A column as one of the types that queries can use, where there is one; NULL where a cell does not fit."""
    cell = quoted(column)
    if type_ == "TIMESTAMP WITH TIME ZONE":  # in UTC
        cell = f"TRY(make_timestamp(epoch_us({cell})))"
    elif type_ in ("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"):
        cell = f"TRY_CAST({cell} AS TIMESTAMP)"
    elif type_.startswith("ENUM("):
        cell = f"TRY_CAST({cell} AS VARCHAR)"
    return cell if wanted is None else f"TRY_CAST({cell} AS {wanted.sql})"


def unreadable(name: str, source: Any, error: Exception) -> Refused:
    """For the owner: which source, and where in it, but not what stands there."""
    line = re.search(r"CSV Error on Line: (\d+)", str(error))
    what = repr(str(source)) if isinstance(source, str | Path) else f"the {type(source).__name__}"
    if isinstance(error, duckdb.OutOfMemoryException):
        why = "does not fit into memory"
    else:
        why = "cannot be read" + (f": line {line[1]} is malformed" if line else "")
    return Refused("source_unreadable", f"{name}: {what} {why}", "Repair it.")


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
