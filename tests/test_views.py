"""Views of the policy: subqueries with a name, over the same persons."""

from __future__ import annotations

import pytest
import shop

import dpsql


def session(**views: str) -> dpsql.Session:
    return dpsql.connect(shop.database(shop.clean()), policy={**shop.policy(), "views": views}, ledger=":memory:")


def test_a_view_is_its_query() -> None:
    db = session(
        open_orders="SELECT * FROM orders WHERE status = 'open'", many="SELECT * FROM open_orders WHERE quantity > 5"
    )
    ((seen,),) = db.sql("SELECT count(*) FROM many", epsilon=1e9).fetchall()
    ((wanted,),) = db.sql("SELECT count(*) FROM orders WHERE status = 'open' AND quantity > 5", epsilon=1e9).fetchall()
    assert seen == wanted


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("view_invalid", "SELECT * FROM orders WHERE quantity > $1"),
        ("too_many_tables", "SELECT * FROM odd"),
        ("table_unknown", "SELECT * FROM nothing"),
        ("set_not_local", "SELECT id FROM customer UNION SELECT quantity FROM orders"),
    ],
)
def test_a_view_that_cannot_be_read(code: str, text: str) -> None:
    with pytest.raises(dpsql.Refused, match=code):
        session(odd=text).explain("SELECT count(*) FROM odd")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT sum(n) FROM agg",
        "SELECT max(n) - min(n) AS d FROM agg AS a WHERE status <> 'open'",
        "SELECT count(*) FROM orders AS o JOIN agg ON agg.status = o.status WHERE agg.n > 10",
        "SELECT count(*) FROM orders WHERE status IN (SELECT status FROM agg WHERE n > 10)",
        "WITH agg AS (SELECT 7 AS n) SELECT (SELECT max(n) FROM agg) + (SELECT count(*) FROM orders) AS n",
        "SELECT max(n) FROM twice",
    ],
)
def test_a_view_that_aggregates_is_released(query: str) -> None:
    """Like the subquery that it stands for."""
    views = {"agg": "WITH o AS (SELECT * FROM orders) SELECT status, count(*) AS n FROM o GROUP BY status"}
    views["twice"] = "SELECT 2 * n AS n FROM agg"
    plain = shop.database(shop.clean())
    for name, text in views.items():
        plain.execute(f"CREATE VIEW {name} AS {text}")
    assert session(**views).sql(query, epsilon=1e9).fetchall() == plain.execute(query).fetchall()
