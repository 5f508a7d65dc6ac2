"""A page of figures by pandas and the DB-API, with error bars: `python examples/dashboard.py`.

It makes the sample shop in the directory where it runs, and writes dashboard.html. Each figure has an id: as long as the ledger
is the same, loading the page again shows the same figures and costs nothing.
"""

import datetime
from pathlib import Path

import pandas as pd

import dpsql
from dpsql import dbapi
from dpsql.frontends.demo import make

SINCE = datetime.date(2024, 1, 1)
FIGURES = {
    "Orders by status": "SELECT status, count(*) AS orders FROM orders WHERE ordered >= ? GROUP BY status",
    "Spending by segment": (
        "SELECT segment, avg(amount) AS average FROM orders JOIN customer ON orders.customer = customer.id "
        "WHERE ordered >= ? GROUP BY segment"
    ),
    "Orders by month": (
        "SELECT date_trunc('month', ordered) AS month, count(*) AS orders FROM orders WHERE ordered >= ? "
        "GROUP BY month ORDER BY month LIMIT 12"
    ),
}


def figure(connection: dbapi.Connection, title: str, query: str) -> pd.DataFrame:
    """The answer as a frame, with the ends of its error bars as columns; asked before, the answer of then."""
    cursor = connection.cursor().execute(query, [SINCE], epsilon=0.3, query_id=f"dashboard: {title}")
    return cursor.answer.df(errors=True)


def main() -> None:
    make(Path())
    with dbapi.connect("shop.duckdb", policy="shop.policy.toml", ledger="dashboard.ledger") as connection:
        print("pandas reads private answers like any others (it warns of every driver that it does not know):")
        print(pd.read_sql("SELECT count(*) AS customers FROM customer", connection), "\n")
        parts = [f"<h1>The shop since {SINCE}</h1>"]
        for title, query in FIGURES.items():
            frame = figure(connection, title, query)
            again = figure(connection, title, query)
            assert frame.equals(again), "a figure that has an id stays as it is"
            print(f"{title}, with the ends of error bars as columns:\n{frame.to_string(index=False)}\n")
            parts += [f"<h2>{title}</h2>", frame.to_html(index=False, float_format="{:,.0f}".format)]
        Path("dashboard.html").write_text("\n".join(parts), encoding="utf-8")
        print("dashboard.html is written. Each figure was paid for once. Low and high are ± the noise at 95 %.")
        print(connection.session.budget)
        try:
            connection.cursor().execute("SELECT amont FROM orders")
        except dbapi.ProgrammingError as error:
            assert isinstance(error, dpsql.Error)
            print(f"\nErrors are those of PEP 249, with code and hint: {error}")


if __name__ == "__main__":
    main()
