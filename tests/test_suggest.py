"""A suggested policy can be read as it stands, answers questions once its marks are filled in, and knows no row."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_frontends import bad, good

import dpsql

SHOP = """
CREATE SCHEMA crm;
CREATE TABLE crm.note (customer_id INTEGER, txt VARCHAR);
CREATE TABLE region (id INTEGER PRIMARY KEY, name VARCHAR);
CREATE TABLE customer (id INTEGER PRIMARY KEY, age INTEGER, segment VARCHAR, member BOOLEAN, region INTEGER REFERENCES region (id),
    joined DATE, twice INTEGER GENERATED ALWAYS AS (age * 2), tags VARCHAR[], "odd ""name" DOUBLE, mood ENUM ('s3cret'));
CREATE TABLE customer_address (id INTEGER PRIMARY KEY, customer INTEGER REFERENCES customer (id), street VARCHAR);
CREATE TABLE orders (a INTEGER, b INTEGER, customer INTEGER REFERENCES customer (id), amount DECIMAL(10,2), PRIMARY KEY (a, b));
CREATE TABLE item (a INTEGER, b INTEGER, price DOUBLE, FOREIGN KEY (a, b) REFERENCES orders (a, b));
CREATE TABLE "log.2024" (x INTEGER);
"""
ROWS = """
INSERT INTO region VALUES (1, 's3cret');
INSERT INTO customer (id, age, segment, region) SELECT i, 20 + i % 60, 'A', 1 FROM range(1000) t(i);
INSERT INTO orders SELECT i, 1, i % 1000, 7 FROM range(2000) t(i);
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute(SHOP + ROWS)
    return tmp_path


def decide(text: str) -> str:
    """What an owner does: the marks filled in."""
    return re.sub(r"^# (age|amount) = \{ between = \[LOW, HIGH\] \}", r"\1 = { between = [0, 100] }", text, flags=re.M)


def test_suggest(shop: Path) -> None:
    text = good(shop, "policy", "suggest", "shop.duckdb")
    (shop / "shop.policy.toml").write_text(text)
    assert "5 tables" in good(shop, "policy", "check", "shop.policy.toml")
    found = tomllib.loads(text)["tables"]
    assert found["customer"] == {"person": "id", "key": ["id"], "max_rows_contributed": 1, "columns": {}}
    link = {"column": "customer", "references": "customer.id"}
    assert found["orders"] == {"person": link, "key": ["a", "b"], "columns": {}}
    assert found["customer_address"]["person"] == link
    assert found["item"]["person"] == {"columns": ["a", "b"], "references": "orders(a, b)"}
    assert found["crm.note"]["person"] == "customer_id"
    assert "# [tables.region]" in text and "DECIDE" in text
    assert "twice" not in text and "s3cret" not in text and "log.2024" not in text
    assert '# "odd \\"name" = { between = [LOW, HIGH] }' in text
    assert "# member can be grouped by" in text and "# tags can be unnested" in text
    db = dpsql.connect(shop / "shop.duckdb", policy=shop / "shop.policy.toml")
    assert len(db.sql("SELECT count(*) FROM item JOIN orders ON item.a = orders.a AND item.b = orders.b")) == 1


def test_decided(shop: Path) -> None:
    """Filled in, it answers, and every mark is a place where something can be filled in."""
    text = decide(good(shop, "policy", "suggest", "shop.duckdb"))
    (shop / "shop.policy.toml").write_text(text)
    good(shop, "policy", "check", "shop.policy.toml")
    good(shop, "sql", "shop.duckdb", "SELECT avg(age), count(*) FROM customer")
    good(shop, "sql", "shop.duckdb", "SELECT sum(amount) FROM orders")
    assert "table_unknown" in bad(shop, 3, "sql", "shop.duckdb", "SELECT count(*) FROM region")
    everything = re.sub(r"^# (?=[\[\w\"]+.* = |\[)", "", good(shop, "policy", "suggest", "shop.duckdb"), flags=re.M)
    everything = everything.replace("LOW, HIGH", "1, 2")
    everything = re.sub(r"^person = \"COLUMN\".*\n", "", everything, flags=re.M)
    (shop / "shop.policy.toml").write_text(everything)
    assert "6 tables" in good(shop, "policy", "check", "shop.policy.toml")
    db = dpsql.connect(shop / "shop.duckdb", policy=shop / "shop.policy.toml", ledger=":memory:")
    db.explain("SELECT sum(price) FROM item")


def test_rows_make_no_difference(shop: Path) -> None:
    full = good(shop, "policy", "suggest", "shop.duckdb")
    (shop / "shop.duckdb").unlink()
    with duckdb.connect(str(shop / "shop.duckdb")) as connection:
        connection.execute(SHOP)
    assert good(shop, "policy", "suggest", "shop.duckdb") == full


def test_files(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user_id": [1], "spend": [2.0], "when": ["s3cret"]}), tmp_path / "visits.parquet")
    text = good(tmp_path, "policy", "suggest", "visits.parquet")
    assert tomllib.loads(text)["tables"] == {"visits": {"person": "user_id", "columns": {}}}
    assert "# spend = { between = [LOW, HIGH] }" in text
    (tmp_path / "visits.csv").write_text("patient,spend\nx,s3cret\n")
    text = good(tmp_path, "policy", "suggest", "visits.csv")
    assert tomllib.loads(text)["tables"] == {"visits": {"person": "patient", "columns": {}}}
    assert '# spend = { type = "INTEGER" }' in text and "s3cret" not in text


def test_nothing_is_known(tmp_path: Path) -> None:
    """No key, no telling name: everything is left out until the owner decides."""
    with duckdb.connect(str(tmp_path / "x.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE t (a INTEGER); CREATE TABLE loop (id INTEGER PRIMARY KEY, up INTEGER REFERENCES loop (id))"
        )
    text = good(tmp_path, "policy", "suggest", "x.duckdb")
    assert "tables" not in tomllib.loads(text)
    (tmp_path / "x.policy.toml").write_text(text)
    assert "tables: there are none" in bad(tmp_path, 3, "policy", "check", "x.policy.toml")
    assert "database_missing" in bad(tmp_path, 3, "policy", "suggest", "none.duckdb")
    assert "source_missing" in bad(tmp_path, 3, "policy", "suggest", "none.parquet")


def test_several_files_are_one_policy(tmp_path: Path) -> None:
    pq.write_table(pa.table({"customer_id": [1, 2], "spend": [1.0, 2.0]}), tmp_path / "visits.parquet")
    (tmp_path / "people.csv").write_text("customer_id,age\n1,30\n")
    text = good(tmp_path, "policy", "suggest", "visits.parquet", "people.csv")
    found = tomllib.loads(text)
    assert found["dataset"]["id"] == "visits.parquet, people.csv" and list(found["tables"]) == ["visits", "people"]
    files = {"visits": tmp_path / "visits.parquet", "people": tmp_path / "people.csv"}
    with dpsql.connect(files, policy=found, ledger=":memory:") as db:
        assert db.sql("SELECT count(*) FROM visits").fetchall()
    assert "give it alone" in bad(tmp_path, 2, "policy", "suggest", "visits.parquet", "shop.duckdb")
    (tmp_path / "visits.csv").write_text("customer_id\n1\n")
    assert "two files would be the table" in bad(tmp_path, 3, "policy", "suggest", "visits.parquet", "visits.csv")
