"""The limit pass in its native form: the exact integers that it gives."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
from sql_form import inner

from dpsql._native import Keys, Totals, limit
from dpsql.compiler.program import Plan
from dpsql.kernel.keys import PublicKeys
from dpsql.kernel.limits.native_form import Limits


def natively(connection: duckdb.DuckDBPyConnection, plan: Plan) -> list[tuple[Any, ...]]:
    """Its rows with all keys, and with noise so small that there is none."""
    found = [one_pass(connection, limits) for limits in plan.release.limits]
    keys = 0 if isinstance(plan.release.keys, PublicKeys) else len(plan.release.keys.columns)
    exact = found[0].beside(found[1:], keys, list(plan.release.noise)) if len(found) > 1 else found[0]
    scales, least = [2.0**-200] * len(plan.release.noise), 0 if plan.release.threshold else None
    return rows_of(plan, exact.with_noise("laplace", scales, least))


def one_pass(connection: duckdb.DuckDBPyConnection, limits: Limits) -> Totals:
    rows, sums, persons = (connection.sql(sql) if sql else None for sql in (limits.rows, limits.sums, limits.persons))
    owners = [connection.sql(sql) for sql in limits.owners]
    declared = Keys(connection.sql(limits.declared)) if limits.declared else None
    return limit(rows, sums, declared, limits, owners, persons)


def by_sql(connection: duckdb.DuckDBPyConnection, plan: Plan) -> list[tuple[Any, ...]]:
    """Those of the reference, through Arrow too."""
    return rows_of(plan, connection.sql(inner(plan.release)))


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
