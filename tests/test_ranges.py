"""Sums and averages of every numeric type, with and without a declared range, however the database is laid out."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.policy.catalog import read_policy
from dpsql.prepare import prepare

WHOLE = ["TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"]
TYPES = [*WHOLE, "FLOAT", "DOUBLE", "DECIMAL(3,0)", "DECIMAL(4,1)", "DECIMAL(9,2)", "DECIMAL(18,3)", "DECIMAL(38,10)"]
SHORT = [
    "TINYINT",
    "SMALLINT",
    "INTEGER",
    "UTINYINT",
    "USMALLINT",
    "UINTEGER",
    "DECIMAL(3,0)",
    "DECIMAL(4,1)",
    "DECIMAL(9,2)",
]
PERSONS = 200


def ends(type_: str) -> tuple[Any, Any]:
    """The least and the greatest value of a type; of a float some that are large."""
    if type_ in ("FLOAT", "DOUBLE"):
        return -1e30, 1e30
    if type_.startswith("DECIMAL"):
        width, scale = (int(part) for part in type_[8:-1].split(","))
        most = float("9" * width) / 10**scale if width < 10 else 10 ** (width - scale) - 1
        return -most, most
    bits = {"TINY": 8, "SMALL": 16, "": 32, "BIG": 64, "HUGE": 128}[
        type_.removeprefix("U").removesuffix("EGER").removesuffix("INT")
    ]
    return (0, 2**bits - 1) if type_[0] == "U" else (1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1)


def asked(path: Path, policy: dict[str, Any], query: str) -> float:
    with dpsql.connect(path, policy=policy, ledger=":memory:") as db:
        ((found,),) = db.sql(query, epsilon=1e6).fetchall()
    return float(found)


@pytest.mark.parametrize("single", [False, True], ids=["many rows", "one row"])
@pytest.mark.parametrize("type_", TYPES)
def test_sums_of_all_types(type_: str, single: bool, tmp_path: Path) -> None:
    """The totals are right where noise is next to nothing: values reach both ends of short types, and ranges are chosen or given."""
    path = tmp_path / "t.duckdb"
    with duckdb.connect(str(path)) as connection:
        key = "PRIMARY KEY" if single else ""
        connection.execute(f"CREATE TABLE t (id INTEGER {key}, c {type_})")
        connection.execute(f"INSERT INTO t SELECT range, CAST(100 + range % 3 AS {type_}) FROM range({PERSONS})")
        truth = dict(zip(("sum", "avg"), connection.execute("SELECT sum(c), avg(c) FROM t").fetchall()[0], strict=True))
    for prepared in (False, True):
        for columns in ({}, {"c": {"between": [0, 110]}}, {"c": {"between": [100, 102]}}):
            policy = {
                "dataset": {"id": "t"},
                "budget": {"epsilon": 1e9, "delta": 1e-5},
                "defaults": {"max_rows_contributed": 1},
                "tables": {"t": {"person": "id", "columns": columns}},
            }
            if prepared:
                prepare(path, read_policy(policy))
            for function, wanted in truth.items():
                found = asked(path, policy, f"SELECT {function}(c) FROM t")
                assert found == pytest.approx(float(wanted), rel=0.01), (prepared, columns, function)


@pytest.mark.parametrize("single", [False, True], ids=["many rows", "one row"])
@pytest.mark.parametrize("type_", TYPES)
def test_the_ends_of_all_types(type_: str, single: bool, tmp_path: Path) -> None:
    """Where everyone has the least or the greatest value of the type, or NULL: right where the type is short, else clipped or
    refused, and never a failure."""
    path, least_and_most = tmp_path / "t.duckdb", ends(type_)
    largest = float(max(map(abs, least_and_most)))
    columns = {f"{kind}{i}": value for kind in ("declared", "chosen") for i, value in enumerate(least_and_most)}
    cells = (f"CASE WHEN range % 4 > 0 THEN CAST('{value}' AS {type_}) END" for value in columns.values())
    with duckdb.connect(str(path)) as connection:
        listed = ", ".join(f"{word} {type_}" for word in columns)
        connection.execute(f"CREATE TABLE t (id INTEGER {'PRIMARY KEY' * single}, {listed})")
        connection.execute(f"INSERT INTO t SELECT range, {', '.join(cells)} FROM range({PERSONS})")
    declared = {word: {"between": list(least_and_most)} for word in columns if word.startswith("declared")}
    policy = {
        "dataset": {"id": "t"},
        "budget": {"epsilon": 1e9, "delta": 1e-5},
        "defaults": {"max_rows_contributed": 1},
        "tables": {"t": {"person": "id", "columns": declared}},
    }
    for prepared in (False, True):
        if prepared:
            prepare(path, read_policy(policy))
        with dpsql.connect(path, policy=policy, ledger=":memory:") as db:
            for word, (function, times) in product(columns, (("sum", PERSONS * 3 // 4), ("avg", 1))):
                wanted = float(columns[word]) * times
                try:
                    ((found,),) = db.sql(f"SELECT {function}({word}) FROM t", epsilon=1e6).fetchall()
                except dpsql.Refused as refusal:
                    assert type_ not in SHORT and refusal.code == "may_overflow", (prepared, word, refusal)
                    continue
                if found is None:  # no number of the sum's type: the engine would fail
                    assert function == "sum" and abs(wanted) >= 2**127, (prepared, word)
                elif type_ in SHORT:
                    assert float(found) == pytest.approx(wanted, abs=largest * times / 50), (prepared, word, function)
                else:
                    assert abs(float(found)) <= largest * times * 1.02, (prepared, word, function)


@pytest.mark.parametrize(("low", "high", "each"), [(200, 300, 200), (-300, -200, -200), (-1000, 1000, 101)])
def test_ranges_of_the_caller_beyond_the_type(low: int, high: int, each: int, tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute(f"CREATE TABLE t AS SELECT range AS id, CAST(101 AS TINYINT) AS c FROM range({PERSONS})")
        connection.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    policy = {"dataset": {"id": "t"}, "budget": {"epsilon": 1e9, "delta": 1e-5}, "tables": {"t": {"person": "id"}}}
    query = f"SELECT sum(c, contribution_bounds_per_row => ({low}, {high})) FROM t"
    assert asked(tmp_path / "t.duckdb", policy, query) == pytest.approx(each * PERSONS, rel=0.01)
