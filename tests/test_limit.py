"""Both forms of the limit pass, SQL and native, give the same integers; test_lemmas compares them on all spec queries."""

from __future__ import annotations

import datetime
import itertools
from dataclasses import replace
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from forms import by_sql, natively, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stages import planned

import dpsql
from dpsql._native import Keys, Noisy, Totals, limit
from dpsql.backends import DuckDB
from dpsql.compiler.parse import parse
from dpsql.compiler.program import Plan
from dpsql.explain import formatted
from dpsql.kernel.keys import PublicKeys
from dpsql.kernel.limits.native_form import Block, Limits
from dpsql.policy.catalog import build, read_policy

FAR = datetime.datetime(1970, 1, 1)
KEYS: dict[str, tuple[str, list[Any]]] = {
    "flag": ("BOOLEAN", [True, False]),
    "small": ("SMALLINT", [0, 1, -1, 32767, -32768]),
    "big": ("BIGINT", [0, 65535, 65536, -1, 2**63 - 1, -(2**63)]),
    "ubig": ("UBIGINT", [0, 2**64 - 1, 2**63]),
    "price": ("DECIMAL(9,2)", [Decimal("0.00"), Decimal("-1.50"), Decimal("9999999.99")]),
    "rate": ("DOUBLE", [0.0, -0.0, float("nan"), float("inf"), -1e308, 5e-324]),
    "word": ("VARCHAR", ["", "a", "a\0", "\0", "é", "a" * 100, "a" * 2000]),
    "day": ("DATE", [datetime.date(1970, 1, 1), datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "moment": ("TIMESTAMP", [FAR, datetime.datetime(2024, 5, 6, 7, 8, 9, 10)]),
    "kind": ("VARCHAR", ["x", "y", "z", "w"]),  # the policy knows x, y and NULL
    "level": ("INTEGER", [1, 2, 3, 9]),  # and 1 to 3
}
PERSONS = {
    "BIGINT": [1, 2, 3, -5, 2**31 - 1, 2**31, 2**35, 2**36 + 1, 257, 513, 2**63 - 1, None],
    "INTEGER": [0, 1, 2, -1, 2**31 - 1, -(2**31), 64, None],
    "UTINYINT": [0, 1, 2, 255],
    "UBIGINT": [2**64 - 1, 2**63, 2**40, 5, 2**31],
    "VARCHAR": ["", "1", "a", "\0", "a\0", "b" * 50],
    "HUGEINT": [1, 2, -(2**90), 2**90],
    "UUID": [f"00000000-0000-0000-0000-00000000000{i}" for i in range(5)],
}
VALUES = [None, 0.0, -0.0, 3.7, 10.0, 1e300, -7.0, float("nan"), float("inf"), float("-inf")]
MEASURES = [
    *["count(*)", "count(x)", "count(word)", "sum(x)", "avg(y)", "var_pop(x)", "corr(x, y)", "regr_slope(y, x)"],
    *["count(DISTINCT person)", "count(DISTINCT person) FILTER (WHERE x > 3)", "sum(x) FILTER (WHERE flag)"],
    *["sum(level)", "avg(small)", "sum(ubig)", "avg(price)", "sum(x + y)"],  # within ranges, and outside of them
    *[
        f"count(DISTINCT {column})"
        for column in ("x", "word", "price", "day", "moment", "flag", "ubig", "kind", "level")
    ],
    *["count(DISTINCT word || word)", "count(DISTINCT moment - TIMESTAMP '2020-01-01')", "count(DISTINCT ubig * 10)"],
    *["sum(DISTINCT x)", "avg(DISTINCT y)", "var_pop(DISTINCT x)", "sum(DISTINCT small)", "avg(DISTINCT price)"],
    *["sum(DISTINCT ubig)", "sum(DISTINCT level)", "count(DISTINCT x) FILTER (WHERE flag)", "sum(DISTINCT x + y)"],
]


def policy(accounting: str, most: int, groups: int) -> dict[str, Any]:
    ranges = {"x": {"between": [0, 10]}, "y": {"between": [-5, 1000000]}, "small": {"between": [-7, 1000]}}
    ranges |= {"ubig": {"between": [0, 1000]}, "price": {"between": [0, 99]}}
    domains = {"kind": {"in": ["x", "y"]}, "level": {"in": [1, 2, 3]}}
    return {
        "dataset": {"id": "t"},
        "budget": {"epsilon": 1e9, "delta": 1e-6, "accounting": accounting},
        "defaults": {"epsilon": 1.0, "max_rows_contributed": most, "max_groups_contributed": groups},
        "tables": {"t": {"person": "person", "columns": {**ranges, **domains}}},
    }


rows = st.integers(0, 3).flatmap(  # many rows of few persons, or few of many
    lambda size: st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**30)), max_size=10**size // 2)
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    person=st.sampled_from(sorted(PERSONS)),
    keys=st.lists(st.sampled_from([*KEYS, "kind", "level", "flag"]), max_size=3, unique=True),
    measures=st.lists(st.sampled_from(MEASURES), min_size=1, max_size=4, unique=True),
    drawn=rows,
    accounting=st.sampled_from(["pure", "gdp"]),
    most=st.integers(1, 6),
    groups=st.integers(1, 4),
)
def test_same_integers(
    person: str,
    keys: list[str],
    measures: list[str],
    drawn: list[tuple[int, int]],
    accounting: str,
    most: int,
    groups: int,
) -> None:
    connection = duckdb.connect()
    columns = ", ".join(f"{name} {type_}" for name, (type_, _) in KEYS.items())
    connection.execute(f"CREATE TABLE t (person {person}, {columns}, x DOUBLE, y DOUBLE)")
    for who, seed in drawn[:200]:  # the digits of a number choose the cells
        digits = itertools.accumulate(itertools.repeat(seed, 20), lambda left, _: left * 48271 % (2**31 - 1))
        cells = [[None, *values][next(digits) // 7 % (len(values) + 1)] for _, values in KEYS.values()]
        x, y = (VALUES[next(digits) // 7 % len(VALUES)] for _ in "xy")
        owner = PERSONS[person][who % len(PERSONS[person])]
        marks = ", ".join("?" * (len(cells) + 3))
        connection.execute(f"INSERT INTO t VALUES ({marks})", [owner, *cells, x, y])
    connection.execute(f"INSERT INTO t SELECT * FROM t WHERE hash(t) % {most} = 0")
    known = read_policy(policy(accounting, most, groups))
    with DuckDB(connection).snapshot() as snapshot:
        catalog = build(known, snapshot.schemas(known.tables))
    if person == "UUID":  # there are no expressions of these
        measures = [measure for measure in measures if "person" not in measure] or ["count(*)"]
    if accounting == "pure" and set(keys) - {"kind", "level", "flag"}:
        keys = ["kind"]  # without a delta groups are public
    query = f"SELECT {', '.join([*keys, *measures])} FROM t {'GROUP BY ALL' if keys else ''}"
    plan = planned(parse(query), catalog)
    assert plan.release.limits
    ordered = isinstance(plan.release.keys, PublicKeys)
    assert same(natively(connection, plan), by_sql(connection, plan), ordered)


@pytest.mark.parametrize("keys", ["", "kind", "kind, level", "word", "word, small"])
def test_many_columns_are_several_passes(keys: str) -> None:
    """Each pass keeps the same groups of a person, and its columns stand beside those of others by key."""
    connection = duckdb.connect()
    columns = ", ".join(f"{name} {type_}" for name, (type_, _) in KEYS.items())
    connection.execute(f"CREATE TABLE t (person BIGINT, {columns}, x DOUBLE, y DOUBLE)")
    connection.execute(
        "INSERT INTO t (person, word, kind, level, small, x, y) SELECT hash(i) % 50, 'w' || i % 40, "
        "['x', 'y', 'z', NULL][1 + i % 4], i % 5, i % 3, i % 11, i % 13 FROM range(3000) r(i)"
    )
    known = read_policy(policy("gdp", 5, 3))
    with DuckDB(connection).snapshot() as snapshot:
        catalog = build(known, snapshot.schemas(known.tables))
    listed = [f"corr(x + {i}, y)" for i in range(4)] + [f"var_pop(x * {i}), avg(DISTINCT x * {i})" for i in range(1, 6)]
    listed += ["count(*)", "count(DISTINCT person)", "count(DISTINCT word)"]
    plan = planned(
        parse(f"SELECT {', '.join(filter(None, [keys, *listed]))} FROM t {'GROUP BY ALL' * bool(keys)}"), catalog
    )
    assert (
        sum(not one.values for one in plan.release.limits) > 1 and sum(one.values for one in plan.release.limits) == 6
    )
    found = natively(connection, plan)
    assert found and same(found, by_sql(connection, plan), isinstance(plan.release.keys, PublicKeys))


def many(n: int) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE t AS SELECT (hash(i) % 300)::BIGINT AS person, 'w' || (hash(i, 1) % 50)::VARCHAR AS word, "
        f"(hash(i, 2) % 11)::DOUBLE AS x FROM range({n}) r(i)"
    )
    return connection


@pytest.mark.parametrize(
    ("n", "persons"), [(700_000, 300), (700_000, 3), pytest.param(40_000_000, 300, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("query", ["SELECT word, avg(x), count(*) FROM t GROUP BY word", "SELECT count(*) FROM t"])
def test_parts_are_merged(n: int, persons: int, query: str) -> None:
    """Far more rows than pairs, several batches and threads; also where one record cannot hold all rows of a pair."""
    connection = many(n)
    connection.execute(f"UPDATE t SET person = person % {persons}")
    known = read_policy(
        {**policy("gdp", 1000, 20), "tables": {"t": {"person": "person", "columns": {"x": {"between": [0, 10]}}}}}
    )
    with DuckDB(connection).snapshot() as snapshot:
        catalog = build(known, snapshot.schemas(known.tables))
    plan = planned(parse(query), catalog)
    expected = by_sql(connection, plan)
    for threads in (1, 4):
        connection.execute(f"SET threads = {threads}")
        assert same(natively(connection, plan), expected, isinstance(plan.release.keys, PublicKeys))


def limit_and_add_noise(
    rows: Any, sums: Any, declared: Any, limits: Any, mechanism: Any, scales: Any, least: Any = None, *more: Any
) -> Noisy:
    return limit(rows, sums, declared, limits, *more).with_noise(mechanism, scales, least)


def limits(**given: Any) -> Limits:
    one = Block("rows", (), (((), 1),), 1, 1, 1.0)
    usual = {
        **dict.fromkeys(("rows", "persons", "sums", "declared"), ""),
        "owners": (),
        "keys": 1,
        "private": True,
        "hashed": "pairs" if given.get("private", True) else "",
        "norm": 1,
        "max_rows": 10,
        "max_groups": 2,
    }
    return Limits(**{**usual, "in_groups": 2, "blocks": (one,), "names": ("persons", "n0"), **given})


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([3, None, -7, 5], pa.int32()),
        pa.array([2**63, None, 1, 2**64 - 1], pa.uint64()),
        pa.array([float("inf"), None, -0.0, float("nan")]),
        pa.array(["b", None, "a\0", "ba"]),
        pa.array([Decimal(5), None, Decimal(-(10**30)), Decimal(10**30)], pa.decimal128(38, 0)),
        pa.array([datetime.date(2020, 1, 1), None, datetime.date(1, 1, 1), datetime.date(2020, 1, 2)]),
        pa.array([datetime.datetime(2020, 1, 1), None, datetime.datetime(1, 1, 1), datetime.datetime(2020, 1, 2)]),
    ],
)
def test_ties_go_by_key(keys: pa.Array) -> None:
    """Pairs whose hashes are equal are kept in the engine's order of keys, with NULL last."""
    hashes = pa.array([9] * 4, pa.uint32())
    table = pa.table({"person": pa.array([1] * 4), "k0": keys, "hash": hashes})
    kept = pa.table(limit_and_add_noise(table, None, None, limits(), "laplace", [2.0**-200] * 2, 0))
    order = duckdb.from_arrow(table).order("k0 ASC NULLS LAST").limit(2).project("k0")
    assert sorted(map(repr, kept["k0"].to_pylist())) == sorted(repr(row[0]) for row in order.fetchall())


BAD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"k0": pa.array([[1], [2]])}, {}),
    ({"hash": pa.array([1, 2])}, {}),
    ({"extra": pa.array([1, 2])}, {}),
    ({}, {"norm": 3}),
    ({}, {"names": ("n0",)}),
    ({}, {"private": False}),
    ({}, {"blocks": (Block("values", (), (((), 1),), 1, 1, 1.0),)}),
    ({}, {"blocks": (Block("rows", ((5, 1),), (((1,), 1),), 1, 1, 1.0),)}),
]


@pytest.mark.parametrize(("columns", "given"), BAD)
def test_what_is_not_as_it_should_be_is_an_error(columns: dict[str, Any], given: dict[str, Any]) -> None:
    good = {"person": pa.array([1, 2]), "k0": pa.array(["a", "b"]), "hash": pa.array([1, 2], pa.uint32())}
    assert len(limit_and_add_noise(pa.table(good), None, None, limits(), "laplace", [1.0] * 2, -1000)) == 2
    with pytest.raises(ValueError, match="column") as caught:
        limit_and_add_noise(pa.table({**good, **columns}), None, None, limits(**given), "laplace", [1.0] * 2, -1000)
    assert not any(character.isdigit() for character in str(caught.value))


def claims(**given: Any) -> Limits:
    usual = {"hashed": "pairs", "private": False, "keys": 0, "max_rows": 2, "names": ("n0",), "values": True}
    return limits(**{**usual, **given})


def counted(table: pa.Table, told: Limits, declared: Keys | None = None) -> dict[str, list[Any]]:
    """What claims add up to, without noise."""
    exact = limit(table, None, declared, told)
    if told.private:  # the threshold is for persons, of which there are none here
        ones = pa.table({"k0": table["k0"].combine_chunks().unique()})
        persons = ones.append_column("persons", pa.array([Decimal(1)] * len(ones), pa.decimal128(38, 0)))
        exact = Totals(persons).beside([exact], 1, ["persons", *told.names])
    scales = [2.0**-200] * (len(told.names) + told.private)
    found: dict[str, list[Any]] = pa.table(exact.with_noise("laplace", scales, 0 if told.private else None)).to_pydict()
    return found


def test_each_value_counts_once_and_of_a_person_only_the_first() -> None:
    """By hash, whoever else has them: of 1's three values the last is nobody's, and 2 keeps one that 1 has too."""
    table = pa.table(
        {
            "person": pa.array([1, 1, 1, 1, 2, 2, None]),
            "value": ["a", "b", "c", "a", "b", "d", "e"],
            "hash": pa.array([1, 2, 3, 1, 9, 8, 0], pa.uint32()),
        }
    )
    assert counted(table, claims()) == {"n0": [Decimal(3)]}
    assert counted(table.take([5, 4, 3, 2, 1, 0]), claims()) == {"n0": [Decimal(3)]}
    assert counted(table, claims(max_rows=1)) == {"n0": [Decimal(2)]}  # a and d
    assert counted(table, claims(max_rows=3)) == {"n0": [Decimal(4)]}
    keyed = table.add_column(1, "k0", pa.array(["x", "x", "y", "x", "y", "y", "y"]))
    assert counted(keyed, claims(keys=1, private=True)) == {
        "k0": ["x", "y"],
        "persons": [Decimal(1)] * 2,
        "n0": [Decimal(2)] * 2,
    }
    there = Keys(pa.table({"k0": ["y", "z"]}))
    assert counted(keyed, claims(keys=1), there) == {"n0": [Decimal(2), Decimal(0)]}
    pair = Block("rows", ((10, 1),), (((1,), 3), ((0,), 3)), 1, 30, 30.0)
    valued = table.add_column(2, "x0", pa.array([2.0, 20.0, 7.0, 2.0, 20.0, float("nan"), 1.0]))
    assert counted(valued, claims(blocks=(pair,), names=("a0", "b0"))) == {"a0": [Decimal(36)], "b0": [Decimal(24)]}


@pytest.mark.parametrize(
    ("columns", "given"),
    [
        ({"hash": pa.array([1, 2])}, {}),
        ({"value": pa.array([[1], [2]])}, {}),
        ({"extra": pa.array([1, 2])}, {}),
        ({}, {"names": ("n0", "n1")}),
        ({}, {"keys": 1}),
        ({}, {"hashed": "keys"}),
        ({}, {"blocks": ()}),
        ({}, {"blocks": (Block("persons", (), (((), 1),), 1, 1, 1.0),)}),
        ({}, {"blocks": (Block("rows", ((5, 1),), (((1,), 1),), 1, 1, 1.0),)}),
    ],
)
def test_claims_that_are_not_as_they_should_be(columns: dict[str, Any], given: dict[str, Any]) -> None:
    good = {"person": pa.array([1, 2]), "value": pa.array(["a", "b"]), "hash": pa.array([1, 2], pa.uint32())}
    assert counted(pa.table(good), claims()) == {"n0": [Decimal(2)]}
    with pytest.raises(ValueError, match="column"):
        limit(pa.table({**good, **columns}), None, None, claims(**given))
    with pytest.raises(ValueError, match="column"):
        limit(pa.table(good), pa.table(good), None, claims())


def test_columns_stand_beside_those_of_their_key() -> None:
    def totals(keys: list[str], **columns: list[int]) -> Totals:
        cells = {word: pa.array(list(map(Decimal, found)), pa.decimal128(38, 0)) for word, found in columns.items()}
        return Totals(pa.table({"k": keys, **cells}))

    made = totals(["a", "b", "c"], p=[1, 2, 3]).beside([totals(["c", "x", "a"], n=[30, 40, 10])], 1, ["p", "n"])
    found = pa.table(made.with_noise("laplace", [2.0**-200] * 2, 0)).to_pydict()
    assert found == {"k": ["a", "b", "c"], "p": [Decimal(n) for n in (1, 2, 3)], "n": [Decimal(n) for n in (10, 0, 30)]}
    with pytest.raises(ValueError, match="column"):
        totals(["a"], p=[1]).beside([totals(["a"], n=[1])], 1, ["p", "m"])
    used = totals(["a"], p=[1])
    with pytest.raises(ValueError, match="read"):
        used.beside([used], 1, ["p"])


def test_rows_of_nobody_are_left_out() -> None:
    table = pa.table({"person": pa.array([1, None]), "k0": ["a", "b"], "hash": pa.array([1, 2], pa.uint32())})
    found = limit_and_add_noise(table, None, None, limits(), "laplace", [2.0**-200] * 2, 0)
    assert pa.table(found)["k0"].to_pylist() == ["a"]


@pytest.mark.parametrize("far", [1, 2**40, -(2**40)])
def test_rows_are_of_whom_their_references_lead_to(far: int) -> None:
    """One that leads to nobody is left out, one that leads to two persons is a row for each, and one that leads twice to one is one."""
    owners = pa.table({"key": pa.array([far, 2, 3, 3, 4, 4, None], pa.int64()), "person": [7, 8, 7, 9, 9, 9, 5]})
    rows = pa.table({"key": pa.array([far, far, 2, 3, 4, 5, None], pa.int64()), "k0": list("aabbcdd")})
    public = limits(private=False, max_rows=100, names=("n0",))
    keys = pa.table({"k0": list("abcd")})
    found = limit_and_add_noise(rows, None, Keys(keys), public, "laplace", [2.0**-200], None, [owners])
    assert list(map(int, pa.table(found)["n0"].to_pylist())) == [2, 3, 1, 0]
    private = limits(hashed="", max_rows=100, max_groups=100, names=("persons", "n0"))
    coded = rows.set_column(1, "k0", pa.array([1, 1, 2, 2, 3, 4, 4]))
    found = limit_and_add_noise(coded, None, None, private, "laplace", [2.0**-200] * 2, 0, [owners])
    cells = pa.table(found).to_pydict()
    assert sorted(zip(cells["k0"], map(int, cells["persons"]), strict=True)) == [(1, 1), (2, 3), (3, 1)]


def test_many_owners_of_one_reference_are_taken_a_few_at_a_time() -> None:
    n, copies = 30_000, 50
    owners = pa.table({"key": pa.array([1] * n * copies, pa.int64()), "person": pa.array([*range(n)] * copies)})
    rows = pa.table({"key": pa.array([1, 1, 2], pa.int64())})
    count = limits(keys=0, private=False, max_rows=1, names=("n0",))
    found = limit_and_add_noise(rows, None, None, count, "laplace", [2.0**-200], None, [owners])
    assert int(pa.table(found)["n0"][0].as_py()) == n


def test_a_row_that_adds_too_much_is_an_error() -> None:
    """Sums of words hold for rows that add at most 2^36."""
    block = Block("rows", ((2**37, 1),), (((1,), 1), ((0,), 1)), 1, 1, 1.0)
    wide = limits(keys=0, private=False, blocks=(block,), names=("a", "b"))
    table = pa.table({"person": [1], "x0": [1.0]})
    with pytest.raises(ValueError, match="columns"):
        limit_and_add_noise(table, None, None, wide, "laplace", [1.0] * 2)


def test_a_key_that_stands_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="declared keys"):
        Keys(pa.table({"k0": ["a", "b", "a"]}))


def test_sums_that_nothing_limits_are_added() -> None:
    """Declared keys: others are left out, and values that are not declared count as NULL. Private keys: new ones are there too."""
    number = pa.decimal128(38, 0)
    rows = pa.table({"person": [1, 1, 2, 3], "k0": ["a", "a", "b", "elsewhere"]})
    sums = pa.table({"k0": ["a", "b", None, "nowhere"], "n0": pa.array([100, 200, 300, 400], number)})
    public = limits(private=False, max_rows=1, names=("n0",))
    for shown, expected in ((["b", "a"], [201, 101]), (["b", None, "a"], [201, 701, 101])):
        found = limit_and_add_noise(rows, sums, Keys(pa.table({"k0": shown})), public, "laplace", [2.0**-200])
        assert list(map(int, pa.table(found)["n0"].to_pylist())) == expected
    hashes = pa.array([1, 1, 2, 3], pa.uint32())
    both = pa.table({"k0": ["b", "new"], "persons": pa.array([5, 6], number), "n0": pa.array([50, 60], number)})
    found = limit_and_add_noise(rows.append_column("hash", hashes), both, None, limits(), "laplace", [2.0**-200] * 2, 0)
    cells = pa.table(found).to_pydict()
    assert dict(zip(cells["k0"], zip(map(int, cells["persons"]), map(int, cells["n0"]), strict=True), strict=True)) == {
        "a": (1, 2),
        "b": (6, 51),
        "elsewhere": (1, 1),
        "new": (6, 60),
    }
    alone = limit_and_add_noise(None, both, None, limits(), "laplace", [2.0**-200] * 2, 0)
    assert pa.table(alone)["k0"].to_pylist() == ["b", "new"]
    for wrong in (both.drop(["n0"]), both.set_column(0, "k0", pa.array([1, 2]))):
        with pytest.raises(ValueError, match=r"column|declared keys"):
            limit_and_add_noise(rows.append_column("hash", hashes), wrong, None, limits(), "laplace", [1.0] * 2, 0)


def test_large_sums_are_exact() -> None:
    """Sums that words cannot hold, and products that are far above them."""
    n, grid = 300_000, 2**53
    block = Block("rows", ((grid, 2),), tuple(((k,), 2**30) for k in (2, 1, 0)), 2**70, 1, 1.0)
    given = limits(keys=0, private=False, norm=2, max_rows=2**30, blocks=(block,), names=("a", "b", "c"))
    values = [float(grid), float(grid - 1), 0.0, 2.0**52]
    table = pa.table({"person": pa.array([7] * n), "x0": pa.array([values[i % 4] for i in range(n)])})
    found = pa.table(limit_and_add_noise(table, None, None, given, "laplace", [2.0**-200] * 3))
    parts = [sum(math_part(int(x), grid, k) // 2**70 for x in values) * (n // 4) * 2**30 for k in (2, 1, 0)]
    assert [int(column[0].as_py()) for column in found.columns] == parts


def math_part(x: int, grid: int, power: int) -> int:
    return x**power * (grid - x) ** (2 - power) * (2 if power == 1 else 1)


def test_what_runs_is_shown() -> None:
    connection = many(100)
    tables = {"t": {"person": "person", "columns": {"x": {"between": [0, 10]}}}}
    db = dpsql.connect(connection, policy={**policy("gdp", 8, 3), "tables": tables}, ledger=":memory:")
    native, values = (db.explain(f"SELECT {what} FROM t") for what in ("count(*)", "count(DISTINCT word)"))
    assert (
        isinstance(native.plan, Plan)
        and native.plan.release.limits
        and formatted(native.plan.release.limits[0].rows) in native.sql
    )
    assert (
        isinstance(values.plan, Plan)
        and values.plan.release.limits[0].values
        and formatted(values.plan.release.limits[0].rows) in values.sql
    )
    people = db.explain("SELECT count(DISTINCT person) FROM t WHERE x > 3")
    assert isinstance(people.plan, Plan) and people.plan.release.limits and not people.plan.release.limits[0].rows
    assert formatted(people.plan.release.limits[0].sums) in people.sql and "nothing to limit" in people.sql
    assert "natively" in native.sql and "each counts once, limited natively" in values.sql


def test_threads_find_new_keys_while_parts_are_merged() -> None:
    """Keys that are met late, by another thread, are in a part that this one merges."""
    owner = duckdb.connect()
    late = "CASE WHEN i % 997 = 0 THEN i ELSE 7 END"
    owner.execute(f"CREATE TABLE t AS SELECT i % 2 AS person, {late} AS k FROM range(4_000_000) r(i)")
    policy = {
        "dataset": {"id": "late"},
        "budget": {"epsilon": 1e15, "delta": 1e-6},
        "defaults": {"epsilon": 1e9, "max_rows_contributed": 10**7, "max_groups_contributed": 10**4},
        "tables": {"t": {"person": "person"}},
    }
    with dpsql.connect(owner, policy=policy, ledger=":memory:") as db:
        for _ in range(5):
            (row,) = db.sql("SELECT k, count(*) FROM t GROUP BY k HAVING count(*) > 1_000_000").fetchall()
            assert row[0] == 7


def test_no_row_decides_whether_a_type_can_be_limited() -> None:
    """With other Arrow types than those that were tried the connection is refused, whoever is in the data."""
    owner = duckdb.connect()
    owner.execute("SET arrow_output_version = '1.5'; CREATE TABLE t AS SELECT 1 AS person, 2.5::DECIMAL(4, 2) AS price")
    policy = {"dataset": {"id": "t"}, "budget": {"epsilon": 1.0}, "tables": {"t": {"person": "person"}}}
    with pytest.raises(dpsql.Refused, match="setting_not_supported"):
        dpsql.connect(owner, policy=policy, ledger=":memory:")


def test_keys_of_one_column_are_enforced_together() -> None:
    """What is computed from a declared column never sees a value that is not declared: it might overflow, and so tell of it."""
    owner = duckdb.connect()
    owner.execute("CREATE TABLE t (id INTEGER, lvl INTEGER, team VARCHAR, on_ BOOLEAN)")
    owner.execute("INSERT INTO t SELECT i, 1 + i % 3, 'a', i % 2 = 0 FROM range(300) r(i)")
    owner.execute("INSERT INTO t VALUES (999, 1234567, 'secret', NULL)")
    columns = {"lvl": {"in": [1, 2, 3]}, "team": {"in": ["a", "b"]}, "on_": {"in": [True]}}
    known = {**policy("gdp", 3, 3), "tables": {"t": {"person": "id", "columns": columns}}}
    with dpsql.connect(owner, policy=known, ledger=":memory:") as db:
        for key in (
            *("lvl, lvl * 700000000 > 5", "team, team = 'secret'", "team, team IS NULL", "team, coalesce(team, 'b')"),
            *("on_", "on_, team", "lvl, id > lvl", "lvl, team, on_"),
        ):
            query = f"SELECT {key}, count(*) FROM t GROUP BY {key}"
            plan = db.explain(query).plan
            assert isinstance(plan, Plan) and plan.release.limits
            assert same(natively(owner, plan), by_sql(owner, plan), isinstance(plan.release.keys, PublicKeys)), key
            db.sql(query)


def test_what_is_remembered_tells_true_from_one() -> None:
    owner = duckdb.connect()
    owner.execute("CREATE TABLE t AS SELECT i AS id, i % 2 AS n, i % 2 = 0 AS b, i % 2 AS p FROM range(50) r(i)")
    columns = {"n": {"in": [0, 1]}, "b": {"in": [False, True]}, "p": {"between": [0, 1]}}
    for queries in itertools.permutations(["n, count(*)", "b, count(*)", "n > 0, count(*)", "b, avg(p)"]):
        known = {**policy("gdp", 3, 3), "tables": {"t": {"person": "id", "columns": columns}}}
        with dpsql.connect(owner, policy=known, ledger=":memory:") as db:
            for query in queries:
                plan = db.explain(f"SELECT {query} FROM t GROUP BY ALL").plan
                assert isinstance(plan, Plan) and not plan.release.unknowns


@pytest.mark.parametrize(("kind", "end"), [("INTEGER", 0), ("DECIMAL(8,0)", 5), ("DECIMAL(9,2)", 5), ("DOUBLE", 3)])
def test_a_range_that_is_one_value(kind: str, end: int) -> None:
    """Its grid has a step all the same, and no value is above the first."""
    with duckdb.connect() as own:
        own.execute(f"CREATE TABLE t AS SELECT i % 9 AS person, CAST(i AS {kind}) AS x FROM range(40) r(i)")
        columns = {"x": {"between": [end, end]}}
        policy = {
            "dataset": {"id": "t"},
            "budget": {"epsilon": 9.0, "delta": 1e-6},
            "defaults": {"epsilon": 1.0, "max_rows_contributed": 3},
            "tables": {"t": {"person": "person", "columns": columns}},
        }
        with dpsql.connect(own, policy=policy, ledger=":memory:") as db:
            plan = db.explain("SELECT sum(x), avg(x) FROM t").plan
            assert isinstance(plan, Plan) and same(natively(own, plan), by_sql(own, plan), True)


def plan_of(own: duckdb.DuckDBPyConnection, tables: dict[str, Any], query: str, rows: int, groups: int) -> Plan:
    policy = {
        "dataset": {"id": "t"},
        "budget": {"epsilon": 9.0, "delta": 1e-6},
        "defaults": {"epsilon": 1.0, "max_rows_contributed": rows, "max_groups_contributed": groups},
        "tables": tables,
    }
    with dpsql.connect(own, policy=policy, ledger=":memory:") as db:
        plan = db.explain(query).plan
    assert isinstance(plan, Plan) and plan.release.limits
    return plan


@pytest.mark.parametrize("groups", [1, 5, 40])  # of which the last two have their persons counted first
def test_many_keys_and_persons_with_large_numbers(groups: int) -> None:
    """Some rows of a person are kept and others are not, as keys above 2^14 and persons above 2^24 are put into parts at once."""
    with duckdb.connect() as own:
        own.execute(
            "CREATE TABLE t AS SELECT CASE WHEN i % 11 = 0 THEN 16777200 + i % 40 ELSE i % 900 END AS person, "
            "CASE WHEN i % 2 = 0 THEN i % 7 ELSE i % 17001 END AS k, i % 101 AS x FROM range(60000) r(i)"
        )
        tables = {"t": {"person": "person", "columns": {"x": {"between": [0, 100]}}}}
        for query in (
            "SELECT k, count(*), sum(x) FROM t GROUP BY k",
            "SELECT k, count(*) FROM t WHERE x > 5 GROUP BY k",
        ):
            plan = plan_of(own, tables, query, 10, groups)
            assert plan.release.limits and bool(plan.release.limits[0].persons) == (groups > 1)
            assert same(natively(own, plan), by_sql(own, plan), False)


@pytest.mark.parametrize("groups", [3, 40])  # of which the second has its persons counted first
@pytest.mark.parametrize("enough", [2, 50, 1000, 10**25, None])
def test_no_more_persons_are_counted_than_are_enough(groups: int, enough: int | None) -> None:
    """Some keys have many more persons than that, some few, some stand there again and again for the same ones."""
    with duckdb.connect() as own:
        own.execute(
            "CREATE TABLE t AS SELECT CASE WHEN i % 13 = 0 THEN i % 4 ELSE hash(i) % 30000 END AS person, "
            "CASE WHEN i % 13 = 0 THEN 700 + i % 5 ELSE floor(pow(400, hash(i, 1) / 18446744073709551616))::INTEGER END AS k "
            "FROM range(500000) r(i)"
        )
        plan = plan_of(own, {"t": {"person": "person"}}, "SELECT k, count(*) FROM t GROUP BY k", 60, groups)
        assert plan.release.limits and bool(plan.release.limits[0].persons) == (groups > 3)
        assert plan.release.threshold is not None and plan.release.limits[0].enough == plan.release.threshold.enough

        made = replace(plan.release, limits=tuple(replace(one, enough=enough) for one in plan.release.limits))
        plan = replace(plan, release=made)
        found = natively(own, plan)
        assert same(found, by_sql(own, plan), False)
        assert (max(persons for _, persons, _ in found) == enough) == ((enough or 10**25) < 10**25)
        counted = plan_of(
            own, {"t": {"person": "person"}}, "SELECT k, count(DISTINCT person) FROM t GROUP BY k", 60, 40
        )
        assert counted.release.limits and counted.release.limits[0].enough is None  # here they are shown


def test_references_are_followed_step_by_step() -> None:
    """Through NULLs, references that find nothing, and ones that find several rows of several persons."""
    with duckdb.connect() as own:
        own.execute("CREATE TABLE people AS SELECT * FROM (VALUES (1::BIGINT), (2), (3), (3), (NULL)) t(id)")
        own.execute(
            "CREATE TABLE trips AS SELECT CASE WHEN i % 7 > 0 THEN i % 50 END AS trip, i % 6 AS who FROM range(200) r(i)"
        )
        own.execute(
            "CREATE TABLE stops AS SELECT CASE WHEN i % 5 > 0 THEN i % 60 END AS trip, i % 3 AS k FROM range(5000) r(i)"
        )
        tables = {
            "people": {"person": "id"},
            "trips": {"person": {"column": "who", "references": "people.id"}},
            "stops": {
                "person": {"column": "trip", "references": "trips.trip"},
                "shared": True,
                "columns": {"k": {"in": [0, 1, 2]}},
            },
        }
        tables["people"]["key"], tables["trips"]["key"] = ["id"], ["trip"]
        plan = plan_of(own, tables, "SELECT k, count(*) FROM stops GROUP BY k", 100, 3)
        assert plan.release.limits and len(plan.release.limits[0].owners) == 2 and plan.release.limits[0].persons
        assert same(natively(own, plan), by_sql(own, plan), True)


@pytest.mark.parametrize("kind", ["BIGINT", "TINYINT", "UBIGINT"])
@pytest.mark.parametrize("end", ["min", "max", "-1", "0"])
def test_what_is_referred_to_may_have_any_number(kind: str, end: str) -> None:
    """Also the ends of its type: of someone who has no row otherwise, and of whom nobody must hear that she is there."""
    with duckdb.connect() as own:
        signed, bits = kind[0] != "U", 8 if kind == "TINYINT" else 64
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        far = {"min": low, "max": high, "-1": -1 if signed else high, "0": 0}[end]
        own.execute(f"CREATE TABLE people AS SELECT i AS id, i::{kind} AS account FROM range(1, 100) r(i)")
        own.execute(f"CREATE TABLE orders AS SELECT (i % 110)::{kind} AS account FROM range(5000) r(i)")
        own.execute(f"INSERT INTO people VALUES (1000, '{far}'::{kind}), (1001, '{far}'::{kind})")
        own.execute(f"INSERT INTO orders SELECT '{far}'::{kind} FROM range(20)")
        owner = {"column": "account", "references": "people.account"}
        tables = {"people": {"person": "id", "key": ["account"]}, "orders": {"person": owner, "shared": True}}
        plan = plan_of(own, tables, "SELECT count(*) FROM orders", 30, 1)
        assert plan.release.limits and len(plan.release.limits[0].owners) == 1
        assert same(natively(own, plan), by_sql(own, plan), True)
        own.execute("DELETE FROM orders")
        assert natively(own, plan) == by_sql(own, plan)


def test_many_owners_are_found_by_many_rows() -> None:
    """Each of 300 trips leads to the same 2,000 persons: 600,000 pairs, of which 2,000 differ."""
    with duckdb.connect() as own:
        own.execute("CREATE TABLE people AS SELECT i AS id, 7::BIGINT AS a FROM range(2000) r(i)")
        own.execute("CREATE TABLE trips AS SELECT 7::BIGINT AS a, 1 + i // 299 AS b FROM range(300) r(i)")
        own.execute("CREATE TABLE stops AS SELECT 1 + i % 3 AS b FROM range(10) r(i)")
        tables = {
            "people": {"person": "id", "key": ["a"]},
            "trips": {"person": {"column": "a", "references": "people.a"}, "key": ["b"], "shared": True},
            "stops": {"person": {"column": "b", "references": "trips.b"}, "shared": True},
        }
        plan = plan_of(own, tables, "SELECT count(*) FROM stops", 30, 1)
        assert plan.release.limits and len(plan.release.limits[0].owners) == 2
        assert same(natively(own, plan), by_sql(own, plan), True)


def test_rows_that_were_not_counted_are_refused() -> None:
    """The stream of persons is of the same snapshot; if it were not, nobody could say who has few rows."""
    keys, rows = pa.table({"k": [1]}), pa.table({"person": [1, 2, 2], "k": [1, 1, 1]})
    public = limits(private=False, names=("n0",))
    for persons in ([1, 2], [1]):
        with pytest.raises(ValueError, match="could not be read"):
            limit_and_add_noise(
                rows, None, Keys(keys), public, "laplace", [2.0**-200], None, None, pa.table({"person": persons})
            )
