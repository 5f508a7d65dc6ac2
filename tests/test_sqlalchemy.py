"""The SQLAlchemy dialect, on a database of persons: connecting, reflecting, asking, refusals. `make clients` runs its suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

sqlalchemy = pytest.importorskip("sqlalchemy")
from sqlalchemy.dialects import registry  # noqa: E402

registry.register("dpsql", "dpsql.frontends.sqlalchemy", "Dialect")
POLICY = """
[dataset]
id = "shop"
[budget]
epsilon = 1000.0
delta = 1e-6
[defaults]
epsilon = 50.0
max_rows_contributed = 9
[tables.people]
person = "id"
key = ["id"]
[tables.people.columns]
city = { in = ["Bern", "Oslo"] }
[tables.orders]
person = { column = "buyer", references = "people.id" }
[tables.orders.columns]
price = { between = [0, 100] }
[tables.rate]
public = true
[views]
dear = "SELECT * FROM orders WHERE price > 50"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute("CREATE TABLE people (id BIGINT PRIMARY KEY, city VARCHAR NOT NULL, tags VARCHAR[])")
        connection.execute("INSERT INTO people SELECT i, ['Bern', 'Oslo'][1 + i % 2], [] FROM range(600) t(i)")
        connection.execute("CREATE TABLE orders (buyer BIGINT, price DECIMAL(10, 2) NOT NULL, placed TIMESTAMP)")
        connection.execute("INSERT INTO orders SELECT i % 600, i % 100, TIMESTAMP '2024-01-01' FROM range(3000) t(i)")
        connection.execute("CREATE TABLE rate AS SELECT 'Bern' AS city, 0.5 AS rate")
    (tmp_path / "shop.policy.toml").write_text(POLICY)
    return tmp_path / "shop.duckdb"


@pytest.fixture
def engine(place: Path) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(f"dpsql:///{place}")
    yield made
    made.dispose()


def test_reflection(engine: sqlalchemy.Engine) -> None:
    facts = sqlalchemy.inspect(engine)
    assert facts.get_table_names() == ["people", "orders", "rate"] and facts.get_view_names() == ["dear"]
    tables = sqlalchemy.MetaData()
    tables.reflect(engine, views=True)
    assert {"people", "dear"} <= tables.tables.keys()
    assert facts.has_table("ORDERS") and not facts.has_table("nobody")
    columns = {column["name"]: column for column in facts.get_columns("orders")}
    assert str(columns["price"]["type"]) == "NUMERIC(10, 2)" and not columns["price"]["nullable"]
    assert columns["price"]["comment"] == "between 0 and 100"
    assert str(facts.get_columns("people")[2]["type"]) == "VARCHAR[]" or "ARRAY" in repr(
        facts.get_columns("people")[2]["type"]
    )
    assert facts.get_pk_constraint("people")["constrained_columns"] == ["id"]
    (link,) = facts.get_foreign_keys("orders")
    assert (link["constrained_columns"], link["referred_table"], link["referred_columns"]) == (
        ["buyer"],
        "people",
        ["id"],
    )
    assert facts.get_table_comment("orders")["text"] == "rows of persons: buyer -> people.id"
    with pytest.raises(sqlalchemy.exc.NoSuchTableError):
        facts.get_columns("nobody")


def test_a_core_query(engine: sqlalchemy.Engine) -> None:
    tables = sqlalchemy.MetaData()
    tables.reflect(engine)
    people, orders = tables.tables["people"], tables.tables["orders"]
    query = (
        sqlalchemy.select(
            people.c.city, sqlalchemy.func.count().label("n"), sqlalchemy.func.avg(orders.c.price).label("a")
        )
        .join(people, orders.c.buyer == people.c.id)
        .where(orders.c.price >= 10, people.c.city.ilike("%o%"))
        .group_by(people.c.city)
        .order_by(sqlalchemy.desc("n"))
        .limit(5)
    )
    with engine.connect() as connection:
        rows = connection.execute(query).fetchall()
    found = {row.city: row.n for row in rows}
    assert 1300 < found["Oslo"] < 1400 and abs(found["Bern"]) < 100


def test_bars_and_parameters(engine: sqlalchemy.Engine) -> None:
    text = sqlalchemy.text(
        "SELECT count(*) AS n, DP_INTERVAL_LOW(n) AS low FROM orders WHERE price > :least AND placed < :day"
    )
    with engine.connect() as connection:
        ((n, low),) = connection.execute(text, {"least": 50, "day": "2025-01-01"})
        assert low < n
        assert list(connection.execute(sqlalchemy.text("SELECT city, rate FROM rate"))) == [("Bern", 0.5)]


def test_frames(engine: sqlalchemy.Engine) -> None:
    pandas = pytest.importorskip("pandas")
    if sqlalchemy.__version__ < "2":
        pytest.skip("this pandas wants SQLAlchemy 2")
    frame = pandas.read_sql("SELECT city, count(*) AS n FROM people GROUP BY city ORDER BY city", engine)
    assert frame["city"].tolist() == ["Bern", "Oslo"] and frame["n"].between(250, 350).all()


def test_refusals(engine: sqlalchemy.Engine) -> None:
    with engine.connect() as connection:
        with pytest.raises(sqlalchemy.exc.ProgrammingError, match=r"not_grouped[\s\S]*hint: "):
            connection.execute(sqlalchemy.text("SELECT id FROM people"))
        with pytest.raises(sqlalchemy.exc.DBAPIError, match="select_only"):
            connection.execute(sqlalchemy.text("DELETE FROM people"))
        with pytest.raises(sqlalchemy.exc.OperationalError, match="budget_exhausted"):
            for _ in range(99):
                connection.execute(sqlalchemy.text("SELECT count(*) FROM people"))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("dpsql://", "no path"),
        ("dpsql:///{}?polices=x", "polices"),
        ("dpsql:///{}?epsilon=much", "no number"),
        ("dpsql:///{}?ledger=:memory:", "in memory"),
    ],
)
def test_a_wrong_url_is_refused(place: Path, url: str, said: str) -> None:
    with pytest.raises(sqlalchemy.exc.ArgumentError, match=said):
        sqlalchemy.create_engine(url.format(place)).connect()


def test_a_missing_file_is_named(place: Path) -> None:
    with pytest.raises(sqlalchemy.exc.OperationalError, match="database_missing"):
        sqlalchemy.create_engine(f"dpsql:///{place}.gone").connect()
