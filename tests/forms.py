"""The limit pass in its native form: the exact integers that it gives."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from dpsql._native import Keys, limit
from dpsql.compiler.program import Plan


def natively(connection: duckdb.DuckDBPyConnection, plan: Plan) -> list[tuple[Any, ...]]:
    """Its rows with all keys, and with noise so small that there is none."""
    assert plan.release.limits is not None
    limits = plan.release.limits
    rows, sums, persons = (connection.sql(sql) if sql else None for sql in (limits.rows, limits.sums, limits.persons))
    owners = [connection.sql(sql) for sql in limits.owners]
    declared = Keys(connection.sql(plan.release.limits.declared)) if plan.release.limits.declared else None
    scales, least = [2.0**-200] * len(plan.release.noise), 0 if plan.release.threshold else None
    exact = limit(rows, sums, declared, limits, owners, persons).with_noise("laplace", scales, least)
    return rows_of(plan, exact)


def by_sql(connection: duckdb.DuckDBPyConnection, plan: Plan) -> list[tuple[Any, ...]]:
    """Those of the SQL form, through Arrow too."""
    return rows_of(plan, connection.sql(plan.release.inner))


def rows_of(plan: Plan, stream: Any) -> list[tuple[Any, ...]]:
    table = pa.table(stream)
    keys = len(table.columns) - len(plan.release.noise)
    assert table.column_names[keys:] == list(plan.release.noise)
    columns = [column.to_pylist() for column in table.columns]
    integers = [list(map(int, column)) for column in columns[keys:]]
    return list(zip(*columns[:keys], *integers, strict=True))


def same(left: list[tuple[Any, ...]], right: list[tuple[Any, ...]], ordered: bool) -> bool:
    """Whether two lists have the same rows; NaN equals NaN."""
    one, other = (list(map(repr, rows)) for rows in (left, right))
    return one == other if ordered else sorted(one) == sorted(other)
