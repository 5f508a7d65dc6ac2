"""Intervals: a month and 30 days are equal, and which of them stands there is nobody's secret; the largest do not fit together."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import Any

import duckdb
import pandas
import pytest

import dpsql
from dpsql.compiler import rows as passed
from dpsql.compiler.lower import operator
from dpsql.policy.catalog import Interval, read_interval

EQUAL = ["1 month", "30 days", "29 days 24:00:00", "2 months -30 days"]
EXTREME = [
    *["to_months(2147483647)", "to_months(-2147483648)", "to_days(2147483647)", "to_days(-2147483648)"],
    *["to_microseconds(9223372036854775807)", "to_microseconds(-9223372036854775808)"],
    *[
        f"to_months({a}) + to_days({b}) + to_microseconds({c})"
        for a, b, c in itertools.product(
            (-2147483648, 2147483647), (-2147483648, 2147483647), (-9223372036854775808, 9223372036854775807)
        )
    ],
]


def session(cells: list[str], **columns: Any) -> dpsql.Session:
    """Person 1 has these cells, and 40 persons have an hour each."""
    con = duckdb.connect()
    con.execute("CREATE TABLE t (p INTEGER, d INTERVAL, e INTERVAL, n INTEGER, w TIMESTAMP)")
    for cell in cells:
        con.execute(f"INSERT INTO t VALUES (1, {cell}, {cell}, 7, TIMESTAMP '2024-01-31 12:00:00')")
    con.execute("INSERT INTO t SELECT 10 + k, '1 hour', '1 hour', 0, TIMESTAMP '2024-01-31' FROM range(40) AS r(k)")
    policy = {
        "dataset": {"id": "t"},
        "budget": {"epsilon": 1e15, "delta": 1e-6},
        "defaults": {"epsilon": 1e9, "max_rows_contributed": 99, "max_groups_contributed": 99},
        "tables": {"t": {"person": "p", "columns": columns}},
    }
    return dpsql.connect(con, policy=policy, ledger=":memory:")


TIES = [
    "SELECT day(x), count(*) FROM (SELECT p, max(d) AS x FROM t GROUP BY p) GROUP BY 1",
    "SELECT day(x), count(*) FROM (SELECT p, d AS x, count(*) AS c FROM t GROUP BY p, d) GROUP BY 1",
    "SELECT day(x), count(*) FROM (SELECT DISTINCT p, d AS x FROM t) GROUP BY 1",
    "SELECT day(x), count(*) FROM (SELECT p, d AS x FROM t UNION SELECT p, d FROM t) GROUP BY 1",
    "SELECT day(x), count(*) FROM (SELECT p, first(d ORDER BY n) AS x FROM t GROUP BY p) GROUP BY 1",
    "SELECT day(x), count(*) FROM (SELECT p, d AS x FROM t QUALIFY row_number() OVER (PARTITION BY p ORDER BY n) = 1) GROUP BY 1",
    "SELECT day(x), count(*) FROM (SELECT p, lag(d) OVER (PARTITION BY p ORDER BY d) AS x FROM t) GROUP BY 1",
    "SELECT day(x), count(*) FROM (SELECT p, min(d) OVER (PARTITION BY p) AS x FROM t) GROUP BY 1",
    "SELECT day(d), count(*) FROM t GROUP BY 1",
    "SELECT CAST(d AS VARCHAR), n FROM (SELECT d, count(*) AS n FROM t GROUP BY d)",
]


def test_the_order_of_rows_does_not_show() -> None:
    answers = set()
    for cells in list(itertools.permutations([f"INTERVAL '{cell}'" for cell in EQUAL]))[::3]:
        db = session(list(cells))
        answers.add(tuple(str(sorted(db.sql(query).fetchall(), key=str)) for query in TIES))
    assert len(answers) == 1


ANY = [
    *["-d > e", "d + d + d + d + d + d > e", "d - e - d < e", "d * n > e", "d * 1e300 > e", "d / n > e", "d / 1e-300 > e", "n * d IS NULL"],
    *["w + d > w", "w - d > w", "CAST(w AS DATE) + d + d > w", "d = e", "d IN (e, INTERVAL 1 DAY)", "d BETWEEN e AND e", "epoch_us(d) > 0"],
    *["epoch_ns(d) > 0", "epoch_ms(d) > 0", "epoch(d) > 0", "day(d) > 0", "hour(d) > 0", "date_trunc('month', d) > e", "normalized_interval(d) = d"],
    *["CAST(d AS VARCHAR) > 'a'", "TRY_CAST(CAST(d AS VARCHAR) AS INTERVAL) = d", "least(d, e) > d", "coalesce(d, e) = d", "hash(d) > 0"],
]  # fmt: skip


@pytest.mark.parametrize("declared", [{}, {"e": {"between": ["0 days", "2 hours"]}}], ids=["not", "declared"])
def test_no_cell_raises(declared: dict[str, Any]) -> None:
    """Each cell alone, since the engine plans with what it knows of a table."""
    query = f"SELECT {', '.join(f'count_if({test})' for test in ANY)}, count(*) FROM t"
    for cell in EXTREME:
        assert session([cell], **declared).sql(query).fetchall()[0][-1] == 41


def test_a_declared_range_is_a_clip() -> None:
    """Also for what is too long to compute with; and only then is a long interval a value."""
    db = session(["to_days(2147483647)", "to_months(-2147483648)", "NULL"], e={"between": ["0 days", "2 hours"]})
    ((count, seconds, kept),) = db.sql("SELECT count(e), sum(epoch(e)), count(d) FROM t").fetchall()
    assert count == 42 and kept == 40 and abs(seconds - 41 * 3600 - 3600) < 100


@pytest.mark.parametrize(
    "given", [["0 days"], ["2 hours", "1 hour"], ["31 days", "1 month"], ["soon", "2 days"], [0, 7200], ["0 days", "20000 years"]]
)  # fmt: skip
def test_a_range_has_two_ends_that_are_intervals(given: list[Any]) -> None:
    with pytest.raises(dpsql.Refused, match="policy_invalid"):
        session([], d={"between": given})


@pytest.mark.parametrize(
    "text",
    [
        *["1 month", "2 weeks 1 hour", "-1 year 1 month", "1 day -00:00:01", "-04:05", "100:00:00.5", "1 day 02:30:00", "3 quarters", "0 days"],
        *["7 microseconds", "-3 months 2 days -5 microseconds", "1day", "345600000000000000 microseconds", "4000000 days", "1  YEAR"],
    ],
)  # fmt: skip
def test_constants_are_read_as_the_engine_reads_them(text: str) -> None:
    found = read_interval(text)
    assert found is not None and found.brief
    query = "SELECT CAST(CAST($1 AS INTERVAL) AS VARCHAR)"
    assert duckdb.execute(query, [text]).fetchall() == duckdb.execute(query, [found.text]).fetchall()


@pytest.mark.parametrize(
    "text",
    ["", " ", "3", "3 days ago", "1.5 days", "soon", "1 day, 2 hours", "12:00 1 day", "25:61", "P1D", "\u0663 days"],
)
def test_other_texts_are_no_constants(text: str) -> None:
    assert read_interval(text) is None


def test_the_shortest_text() -> None:
    assert (Interval().text, Interval(1, -2, 3).text) == ("0 days", "1 months -2 days 3 microseconds")


def test_columns_of_files_and_frames(tmp_path: Path) -> None:
    """A column of texts becomes one of intervals where the policy says so; what is none is NULL. A timedelta is one."""
    lines = [f"{i},{i} hours" for i in range(100)]
    (tmp_path / "t.csv").write_text("\n".join(["p,d", *lines, "100,soon"]))
    frame = pandas.DataFrame({"p": range(100), "d": [pandas.Timedelta(hours=i) for i in range(100)]})
    range_ = {"between": ["0 hours", "50 hours"]}
    query = "SELECT count(*), count(d), count(*) FILTER (WHERE d > $long) FROM t"
    for source, columns, rows in (
        (frame, {"d": range_}, 100),
        (str(tmp_path / "t.csv"), {"p": {"type": "INTEGER"}, "d": {"type": "INTERVAL", **range_}}, 101),
    ):
        tables = {"t": {"person": "p", "max_rows_contributed": 1, "columns": columns}}
        budget = {"epsilon": 1e15, "delta": 1e-6}
        policy = {"dataset": {"id": "t"}, "budget": budget, "defaults": {"epsilon": 1e9}, "tables": tables}
        db = dpsql.connect({"t": source}, policy=policy, ledger=":memory:")
        assert db.sql(query, {"long": datetime.timedelta(hours=30)}).fetchall() == [(rows, 100, 69)]
        ((mean,),) = db.rehearse("SELECT avg(d) FROM t").fetchall()
        assert datetime.timedelta(0) <= mean <= datetime.timedelta(hours=50)


@pytest.mark.parametrize("victim", [False, True])
def test_a_constant_that_is_a_key(victim: bool) -> None:
    """Cells of keys are in days and time: what is known of a constant in months is not known of them."""
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t AS SELECT i AS p, 'a' AS s, TIMESTAMP '2024-01-31' AS w FROM range(100) t(i)")
    if victim:
        connection.execute("INSERT INTO t VALUES (100, 'victim', '2024-01-31')")
    tables = {"t": {"person": "p", "max_rows_contributed": 1}}
    policy = {
        "dataset": {"id": "t"},
        "budget": {"epsilon": 1e15, "delta": 1e-6},
        "defaults": {"epsilon": 1e9},
        "tables": tables,
    }
    db = dpsql.connect(connection, policy=policy, ledger=":memory:")
    late = "make_timestamp(least(greatest(epoch_us(w), 252600000000000000), 253000000000000000))"
    step = (
        f"SELECT p, year({late} - INTERVAL 9900 YEAR) AS y FROM t WHERE s = 'victim' GROUP BY p, w, INTERVAL 9900 YEAR"
    )
    query = f"SELECT count(*) FROM ({step}) WHERE y * 1{'0' * 36} > p"
    assert db.sql(query).fetchall() == [(int(victim),)]
    step = "SELECT p, time_bucket(INTERVAL 1 MONTH, w) AS x FROM t WHERE s = 'a' GROUP BY p, w, INTERVAL 1 MONTH"
    assert db.sql(f"SELECT count(*) FROM ({step}) WHERE x = DATE '2024-01-01'").fetchall() == [(100,)]


def test_nested_lengths_are_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators that look two levels down must not double the work with each level."""
    steps, db = {}, session([])
    for depth in (6, 12):
        calls, value = [], "w"
        monkeypatch.setattr(
            passed, "operator", lambda node, lower, calls=calls: calls.append(node) or operator(node, lower)
        )
        for _ in range(depth):
            value = f"make_timestamp(epoch_us({value} - to_days(1)))"
        with pytest.raises(dpsql.Refused, match="twice"):
            db.explain(f"SELECT count(*) FROM t WHERE {value} > TIMESTAMP '2024-01-01'")
        steps[depth] = len(calls)
    assert steps[12] < 3 * steps[6]
