"""EXPLAIN is something to read: short, with the errors at typical sizes, and with what would make it cheaper."""

from __future__ import annotations

import json
import re

import pytest
import shop

import dpsql
from dpsql.advice import with_argument
from dpsql.explain import LINES

QUERIES = (
    "SELECT count(*) FROM orders",
    "SELECT status, count(*) AS n, sum(amount) AS s, avg(amount) AS a FROM orders GROUP BY status",
    "SELECT country, count(*), stddev(amount) FROM orders GROUP BY country",
    "SELECT count(*) FROM orders WHERE amount > (SELECT avg(amount) FROM orders)",
    "SELECT status, country, count(*) FROM orders GROUP BY ROLLUP (status, country)",
    "SELECT 1",
    ", ".join(["SELECT sum(amount), corr(amount, weight), avg(quantity)", *(f"count_if(quantity > {i})" for i in range(9))]) + " FROM orders",
)  # fmt: skip


@pytest.fixture(scope="module")
def db() -> dpsql.Session:
    return dpsql.connect(shop.database(shop.clean()), policy=shop.policy(epsilon=100.0), ledger=":memory:")


@pytest.mark.parametrize("query", QUERIES)
def test_at_most_sixteen_lines(db: dpsql.Session, query: str) -> None:
    explained = db.explain(query)
    shown, everything = str(explained).splitlines(), explained.more.splitlines()
    assert len(shown) <= LINES == 16 and max(map(len, shown)) <= 80 and "SELECT" not in str(explained)
    assert shown[0].startswith("cost      ")
    if len(explained.lines) > LINES:
        assert "--more" in shown[-1] and len(everything) >= len(explained.lines)
    told = json.loads(explained.json())
    assert told["text"] == explained.lines and len(told["releases"]) == len(explained.plan.parts)
    assert explained.sql.count("SELECT") > 0


def test_the_error_of_an_average_is_that_which_comes_out(db: dpsql.Session) -> None:
    """For as many rows as are said, the error bar of the answer is about the one that was foretold."""
    rows = {"person": list(range(100_000)), "x": [25 + 50 * (i % 2) for i in range(100_000)]}
    frame = pytest.importorskip("pandas").DataFrame(rows)
    policy = {
        "dataset": {"id": "even"},
        "budget": {"epsilon": 10.0, "delta": 1e-6},
        "defaults": {"max_rows_contributed": 1},
        "tables": {"t": {"person": "person", "columns": {"person": {"type": "BIGINT"}, "x": {"type": "BIGINT", "between": [0, 100]}}}},
    }  # fmt: skip
    session = dpsql.connect({"t": frame}, policy=policy, ledger=":memory:")
    for aggregate in ("avg(x)", "stddev(x)", "sum(x)", "count(*)"):
        query = f"SELECT {aggregate} AS a FROM t"
        foretold = json.loads(session.explain(query, epsilon=1.0).json())["releases"][0]["errors"]["a"]["100000"]
        ((found,),) = session.sql(query, epsilon=1.0).errors
        assert found == pytest.approx(foretold, rel=0.05)


def test_what_would_be_cheaper_is_so(db: dpsql.Session) -> None:
    """The error that is promised is that of the statement with the change that is named."""
    (line,) = db.explain("SELECT sum(amount) FROM orders", epsilon=0.5).cheaper
    found = re.search(
        r"sum\(…, (contribution_bounds_per_group => \(.*?\))\).*: sum\(amount\) ± ([\d,.]+) instead", line
    )
    assert found is not None
    again = db.explain(f"SELECT sum(amount, {found[1]}) FROM orders", epsilon=0.5)
    (error,) = again.errors.values()
    assert error == pytest.approx(float(found[2].replace(",", "")), rel=1e-3)
    (line,) = db.explain("SELECT count(*) FROM orders", epsilon=0.5).cheaper
    found = re.search(r"max_rows_contributed=(\d+).*± ([\d,.]+) instead of ± ([\d,.]+)", line)
    assert found is not None
    rows = int(found[1])
    assert db.explain("SELECT count(*) FROM orders", epsilon=0.5, max_rows_contributed=rows).errors["count_star()"] == pytest.approx(float(found[2]), rel=1e-3)  # fmt: skip
    (line,) = db.explain("SELECT country, count(DISTINCT customer) FROM orders GROUP BY country").cheaper
    assert "`in`" in line


def test_a_text_gets_one_argument_more() -> None:
    assert with_argument("SELECT sum( abs(x) ) FROM t", "b => 1") == "SELECT sum( abs(x) , b => 1) FROM t"
    assert with_argument("SELECT sum(x), sum(y)", "b") is None is with_argument("SELECT count(*)", "b")


def test_the_price_in_percent() -> None:
    db = dpsql.connect(
        shop.database(shop.clean()), policy=shop.policy(accounting="pure", epsilon=2.0), ledger=":memory:"
    )
    query = "SELECT count(*) FROM orders"
    assert str(db.explain(query, epsilon=0.5)).startswith("cost      25 % of the budget: epsilon 0.5 ")
    assert str(db.budget).startswith("100 % of the budget is left\n")
    db.sql(query, epsilon=0.5)
    assert "left      75 % of the budget, room for 3 more like this" in str(db.explain(query, epsilon=0.5))
    assert str(db.budget).startswith("75 % of the budget is left; room for 3 more like the last query\n")


def test_a_long_one_fits_a_terminal(db: dpsql.Session) -> None:
    """What is clipped and hidden, and what would be cheaper, comes before the noise of each column."""
    columns = ", ".join(f"avg(amount + {i}) AS a{i}" for i in range(9))
    lines = str(db.explain(f"SELECT status, count(*), {columns} FROM orders GROUP BY status", epsilon=0.5)).splitlines()
    assert len(lines) == 16 and max(map(len, lines)) <= 80 and lines[-1].startswith("more ")
    words = [line.split()[0] for line in lines if line[0] != " "]
    assert words[:4] == ["cost", "left", "groups", "limit"] and "note" in words and "noise" not in words
