"""Every function with every pair of adversarial cells: no query raises, and the facts that are claimed are true."""

from __future__ import annotations

import itertools
import math
import re
from fractions import Fraction
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsql.algebra import Column, Expr, call, constant, total
from dpsql.catalog import Type
from dpsql.errors import Refused
from dpsql.functions import FUNCTIONS, Facts

CELLS: dict[str, list[str]] = {
    "TINYINT": ["-128", "-1", "0", "1", "127"],
    "INTEGER": ["-2147483648", "-1", "0", "1", "7", "2147483647"],
    "BIGINT": ["-9223372036854775808", "-1", "0", "1", "9223372036854775807"],
    "UBIGINT": ["0", "1", "18446744073709551615"],
    "HUGEINT": ["-170141183460469231731687303715884105728", "-1", "0", "1", "170141183460469231731687303715884105727"],
    "DECIMAL(4,1)": ["-999.9", "0.0", "0.1", "999.9"],
    "DECIMAL(18,6)": ["-999999999999.999999", "0", "0.000001", "999999999999.999999"],
    "DECIMAL(38,0)": ["-99999999999999999999999999999999999999", "0", "99999999999999999999999999999999999999"],
    "DECIMAL(38,37)": ["-9.9999999999999999999999999999999999999", "0", "9.9999999999999999999999999999999999999"],
    "DOUBLE": ["0", "-0.0", "1.5", "1e308", "-1e308", "5e-324", "'nan'", "'inf'", "'-inf'"],
    "BOOLEAN": ["true", "false"],
    "VARCHAR": ["''", "'a'", "'A'", "'12'", "'\u00e9'", "'e\u0301'"],
    "DATE": ["'infinity'", "'-infinity'", "'2020-02-29'", "'0001-01-01'", "'5877642-06-25 (BC)'", "'5881580-07-10'"],
    "TIMESTAMP": [
        "'infinity'",
        "'-infinity'",
        "'1970-01-01'",
        "'290309-12-22 (BC) 00:00:00'",
        "'294247-01-10 04:00:54.775806'",
    ],
}
ARITY = {"negate": 1, "NOT": 1, "IS NULL": 1, "IN": 3, "BETWEEN": 3}


def column(name: str, sql: str) -> Column:
    type_ = Type(sql)
    return Column(name, Facts(type_, True, type_.range))


@pytest.fixture(scope="module")
def connection() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute("SET threads = 1")
    return con


def evaluate(con: duckdb.DuckDBPyConnection, expression: Expr, types: tuple[str, ...]) -> list[Any]:
    """The expression on every combination of adversarial cells, NULL among them."""
    tables = [
        f"(SELECT unnest([NULL, {', '.join(f'CAST({cell} AS {sql})' for cell in CELLS[sql])}]) AS x{i}) AS t{i}"
        for i, sql in enumerate(types)
    ]
    return [
        value
        for (value,) in con.execute(f"SELECT {total(expression).sql('duckdb')} FROM {', '.join(tables)}").fetchall()
    ]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_total(function: str, connection: duckdb.DuckDBPyConnection) -> None:
    """What is accepted does not raise for any cells and stays within its range; what is not is a refusal."""
    accepted = 0
    for types in itertools.product(CELLS, repeat=min(ARITY.get(function, 2), 2)):
        arguments = [column(f"x{i}", sql) for i, sql in enumerate(types)]
        arguments += arguments[-1:] * (ARITY.get(function, 2) - len(arguments))
        try:
            expression = call(function, *arguments)
            values = evaluate(connection, expression, types)
        except Refused as refusal:
            assert refusal.code in ("type_mismatch", "may_overflow")
            continue
        accepted += 1
        facts = expression.facts
        assert facts.nullable or None not in values
        for value in values:
            if value is not None and facts.range is not None and facts.type.kind != "DOUBLE":
                assert facts.range[0] <= Fraction(value) <= facts.range[1]
        found = connection.execute(
            f"SELECT typeof({total(expression).sql('duckdb')}) FROM (SELECT "
            + ", ".join(f"CAST(NULL AS {sql}) AS x{i}" for i, sql in enumerate(types)) + ")"
        ).fetchone()  # fmt: skip
        assert found == (facts.type.sql.replace(", ", ","),)
    assert accepted


@pytest.mark.parametrize("sql", ["INTEGER", "BIGINT", "DECIMAL(18,6)", "DOUBLE", "UBIGINT"])
def test_values(sql: str, connection: duckdb.DuckDBPyConnection) -> None:
    """Where DuckDB's own operator has a value, ours is the same."""
    left, literal = column("x0", sql), constant(3)
    for function in ("+", "-", "*", "/", "<", "=", "!=", ">="):
        ours = evaluate(connection, call(function, left, literal), (sql,))
        operator = "<>" if function == "!=" else function
        for cell, mine in zip(["NULL", *CELLS[sql]], ours, strict=True):
            theirs = connection.execute(f"SELECT TRY(CAST({cell} AS {sql}) {operator} 3)").fetchone()
            assert theirs is not None
            if theirs[0] is not None:
                assert mine == theirs[0] or (math.isnan(mine) and math.isnan(theirs[0]))


SMALL = {"small": (0, 100), "steep": (-3, 3), "year": (1900, 2100)}
CONSTANTS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    50,
    -200,
    500,
    2**31 - 1,
    -(2**31),
    2**31,
    10**10,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    2**127 - 1,
]
DECIMALS = ["0.0", "0.5", "-1.25", "99999999.99", "0.000001", "12345678901234567890.5"]


def trees() -> st.SearchStrategy[Expr | None]:
    """Random arithmetic over columns of every numeric type, narrow ones, and constants at the edges of types."""
    narrow = [Column(n, Facts(Type("INTEGER"), True, (Fraction(a), Fraction(b)))) for n, (a, b) in SMALL.items()]
    wide = [column(f"c{i}", sql) for i, sql in enumerate(CELLS) if Type(sql).numeric]
    constants = (
        [constant(c) for c in CONSTANTS] + [constant(Fraction(d)) for d in DECIMALS] + [constant(1.5), constant(1e300)]
    )
    leaves = st.sampled_from([*narrow, *narrow, *wide, *constants])

    def grow(children: st.SearchStrategy[Expr | None]) -> st.SearchStrategy[Expr | None]:
        def build(function: str, a: Expr | None, b: Expr | None) -> Expr | None:
            try:
                return None if a is None or b is None else call(function, *([a] if function == "negate" else [a, b]))
            except Refused:
                return a

        return st.builds(
            build, st.sampled_from(["+", "-", "*", "+", "-", "*", "//", "%", "/", "negate"]), children, children
        )

    return st.recursive(leaves, grow, max_leaves=9)


@settings(max_examples=2500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trees(), trees(), st.sampled_from(["=", "<", ">=", "!="]))
def test_chains(left: Expr, right: Expr, comparison: str) -> None:
    """The engine reassociates constants and moves them across comparisons: nothing raises, whatever it does with them."""
    predicate = call(comparison, left, right)
    tables = [f"(SELECT unnest([NULL, {a}, {b}, {(a + b) // 2}]::INTEGER[]) AS {n})" for n, (a, b) in SMALL.items()]
    tables += [
        f"(SELECT unnest([NULL, {', '.join(f'CAST({cell} AS {sql})' for cell in CELLS[sql])}]) AS c{i})"
        for i, sql in enumerate(CELLS) if Type(sql).numeric and re.search(rf"\bc{i}\b", total(predicate).sql("duckdb"))
    ]  # fmt: skip
    if len(tables) <= 6:
        source = " CROSS JOIN ".join(tables)
        ENGINE.execute(f"SELECT count(*) FROM {source} WHERE {total(predicate).sql('duckdb')}").fetchall()
        ENGINE.execute(f"SELECT count(x) FROM (SELECT {total(left).sql('duckdb')} AS x FROM {source})").fetchall()
        ENGINE.execute(f"SELECT {total(left).sql('duckdb')} AS x FROM {source} LIMIT 100").fetchall()


ENGINE = duckdb.connect(config={"threads": 1})
