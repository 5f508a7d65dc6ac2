"""TPC-H: data of any size from tpchgen-cli, the 22 queries as the standard writes them, and a policy."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import duckdb

HERE = Path(__file__).parent
QUERIES = {int(file.stem[1:]): file.read_text() for file in sorted(HERE.glob("q*.sql"))}
POLICY: dict[str, Any] = tomllib.loads((HERE / "policy.toml").read_text())


def generate(scale: float, directory: Path) -> duckdb.DuckDBPyConnection:
    """All tables at a scale, without NULLs as the standard has it."""
    tool = Path(sys.executable).parent / "tpchgen-cli"
    subprocess.run([tool, "parquet", "-s", str(scale), "--output-dir", str(directory)], check=True, capture_output=True)
    connection = duckdb.connect()
    for table in POLICY["tables"]:
        connection.execute(f"CREATE TABLE {table} AS FROM '{directory / table}.parquet'")
        for column in POLICY["tables"][table].get("columns", ()):
            connection.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET NOT NULL")
    connection.execute("ALTER TABLE orders ADD PRIMARY KEY (o_orderkey)")  # so that a line item is one customer's
    return connection


def wide() -> dict[str, Any]:
    """The policy of an owner who leaves nothing out, and shows only nations that have something."""
    tables = {
        name: {k: v for k, v in table.items() if k != "max_rows_contributed" and (name, k) != ("nation", "columns")}
        for name, table in POLICY["tables"].items()
    }
    limits = {"epsilon": 1e9, "max_rows_contributed": 1000, "max_groups_contributed": 1000}
    budget = {"epsilon": 1e15, "delta": 1e-6, "accounting": "pure"}
    return POLICY | {"budget": budget, "defaults": limits, "tables": tables}
