"""Error bars as columns: in SQL by DP_INTERVAL_LOW and DP_INTERVAL_HIGH, in frames by `errors=True`."""

from __future__ import annotations

import json

import pytest
import shop

import dpsql
from dpsql import bars

GROUPED = "SELECT status, count(*) AS n, avg(amount) AS a FROM orders GROUP BY status ORDER BY n"


@pytest.fixture
def db() -> dpsql.Session:
    return dpsql.connect(shop.database(shop.clean()), policy=shop.policy(epsilon=100.0), ledger=":memory:")


def test_columns_of_a_query(db: dpsql.Session) -> None:
    answer = db.sql(
        "SELECT status, DP_INTERVAL_LOW(n), count(*) AS n,\n  dp_interval_high(N) AS top FROM orders GROUP BY status ORDER BY n"
    )
    assert answer.columns == ("status", "dp_interval_low(n)", "n", "top")
    assert answer.types == ("VARCHAR", "DOUBLE", "BIGINT", "DOUBLE")
    for row, cells in zip(answer, answer.interval(), strict=True):
        assert cells[0] is cells[1] is cells[3] is None and cells[2] == (row[1], row[3])
        assert row[1] < row[2] < row[3]
    assert answer.df()["top"].tolist() == [row[3] for row in answer]
    assert db.history[-1].statement.count("DP_INTERVAL_LOW") == 1
    assert str(db.explain("SELECT count(*) AS n, DP_INTERVAL_LOW(n) FROM orders"))
    assert len(db.rehearse("SELECT count(*) AS n, DP_INTERVAL_LOW(n) FROM orders").columns) == 2


def test_asked_again_it_is_the_same(db: dpsql.Session) -> None:
    query = "SELECT count(*) AS n, DP_INTERVAL_LOW(n) AS low FROM orders"
    assert list(db.sql(query, query_id="a")) == list(db.sql(query, query_id="a"))


@pytest.mark.parametrize(
    ("query", "code", "column"),
    [
        ("SELECT DP_INTERVAL_LOW(n) FROM orders", "interval_misplaced", 24),
        ("SELECT count(*) AS n FROM orders HAVING DP_INTERVAL_LOW(n) > 1", "interval_misplaced", 41),
        ("SELECT count(*) AS n, DP_INTERVAL_LOW(n) + 1 FROM orders", "interval_misplaced", 23),
        ("SELECT count(*) AS n, DP_INTERVAL_LOW(m) FROM orders", "column_unknown", 39),
        ("SELECT count(*) AS n, DP_INTERVAL_LOW(n) FROM orders UNION SELECT 1, 2", "interval_misplaced", 23),
        ("SELECT max(n) AS m, DP_INTERVAL_LOW(m) FROM (SELECT count(*) AS n FROM orders GROUP BY status)", "interval_misplaced", 37),
        ('SELECT count(*) AS n, DP_INTERVAL_LOW(n) AS "" FROM orders', "interval_misplaced", 23),
        ("FROM orders SELECT status, count(*) AS n GROUP BY status ORDER BY n, DP_INTERVAL_LOW(n)", "interval_misplaced", 70),
        ("FROM orders SELECT status, count(*) AS n GROUP BY status, DP_INTERVAL_LOW(n)", "interval_misplaced", 59),
        ("SELECT count(*) AS n, DP_INTERVAL_LOW(() FROM orders", "interval_misplaced", 23),
    ],
)  # fmt: skip
def test_refused(db: dpsql.Session, query: str, code: str, column: int) -> None:
    with pytest.raises(dpsql.Refused) as error:
        db.sql(query)
    assert (error.value.code, error.value.column) == (code, column) and error.value.hint
    assert db.budget.spent.amount == 0


def test_words_that_are_not_calls(db: dpsql.Session) -> None:
    """In a comment, a text or a quoted name; and FROM of IS DISTINCT FROM ends no SELECT list."""
    for query in (
        'SELECT count(*) AS "dp_interval_low" FROM orders -- dp_interval_low(n)',
        "SELECT 'dp_interval_low(n)' AS x",
    ):
        assert len(db.sql(query).columns) == 1
    query = "SELECT status IS DISTINCT FROM 'open' AS other, count(*) AS n, DP_INTERVAL_LOW(n) AS low FROM orders GROUP BY 1"
    assert db.sql(query).columns == ("other", "n", "low")
    with pytest.raises(dpsql.Refused):
        db.sql('SELECT count(*) AS n, DP_INTERVAL_LOW(n) AS "\ud800" FROM orders')
    assert db.budget.spent.amount


def test_frames_with_errors(db: dpsql.Session) -> None:
    answer = db.sql(GROUPED)
    names = ["status", "n", "n_low", "n_high", "a", "a_low", "a_high"]
    frame = answer.df(errors=True)
    assert list(frame.columns) == names == answer.pl(errors=True).columns == answer.arrow(errors=True).column_names
    assert list(answer.df().columns) == ["status", "n", "a"] == list(answer.columns)
    assert [(row.n_low, row.n_high) for row in frame.itertuples()] == [cells[1] for cells in answer.interval()]
    told = json.loads(answer.json())
    assert told["rows"] == [list(row) for row in answer] and told["errors"] == [list(row) for row in answer.errors]
    free = db.sql("SELECT 1 AS one").df(errors=True)
    assert list(free.columns) == ["one"]


def test_html_draws_the_bars(db: dpsql.Session) -> None:
    answer = db.sql(GROUPED)
    bundle = answer._repr_mimebundle_()
    assert bundle["text/html"].count("<svg") == 2 * len(answer) and "±" in bundle["text/plain"]
    assert "<script" not in bundle["text/html"] and "note: " in bundle["text/html"]
    assert (
        "<svg" not in db.sql("SELECT '<b>' AS x")._repr_html_()
        and "&lt;b&gt;" in db.sql("SELECT '<b>' AS x")._repr_html_()
    )


def test_blanks_keep_places() -> None:
    query = "SELECT DP_INTERVAL_LOW(c), f(a, b), c -- DP\n FROM t"
    text, (ends,) = bars.cut(query)
    assert len(text) == len(query) and text.split() == ["SELECT", "f(a,", "b),", "c", "--", "DP", "FROM", "t"]
    assert (ends.place, ends.column, ends.end) == (0, "c", "low")
