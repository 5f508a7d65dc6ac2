"""The database of the specs and of the lemma tests: a clean one, and random ones with everything that may stand in a cell."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterable
from typing import Any

import duckdb

Row = tuple[Any, ...]
Rows = dict[str, list[Row]]

TABLES = {
    "customer": "id BIGINT, segment VARCHAR, age INTEGER NOT NULL, balance DOUBLE, member BOOLEAN, score DECIMAL(8,2) NOT NULL, "
    "joined DATE, tier SMALLINT NOT NULL, tags VARCHAR[], twice BIGINT GENERATED ALWAYS AS (id // 2)",
    "orders": "id BIGINT, customer BIGINT, status VARCHAR NOT NULL, amount DECIMAL(10,2), weight DOUBLE, quantity INTEGER NOT NULL, "
    "placed TIMESTAMP, country VARCHAR",
    "item": "order_id BIGINT, price FLOAT, n SMALLINT, big HUGEINT, ubig UBIGINT, wide DECIMAL(38,10), flag BOOLEAN NOT NULL, marks FLOAT[]",
    "country": "name VARCHAR, vat DOUBLE",
    "rate": "country VARCHAR, percent INTEGER, n SMALLINT",
}
PUBLIC: Rows = {
    "country": [("de", 0.19), ("fr", 0.2), ("it", 0.22)],
    "rate": [("de", 3, 1), ("de", 4, None), ("fr", 5, 2), (None, 6, 3)],
}

POLICY: dict[str, Any] = {
    "dataset": {"id": "shop"},
    "budget": {"epsilon": 1e15, "delta": 1e-6, "accounting": "gdp"},
    "defaults": {"epsilon": 1.0, "max_rows_contributed": 16, "max_groups_contributed": 5},
    "tables": {
        "customer": {
            "person": "id",
            "max_rows_contributed": 1,
            "columns": {
                "segment": {"in": ["business", "family", "student"]},
                "age": {"between": [16, 100]},
                "balance": {"between": [-1000, 1000]},
                "score": {"between": [0, 99.99]},
                "tier": {"in": [1, 2, 3]},
                "joined": {"between": [datetime.date(2000, 1, 1), datetime.date(2030, 12, 31)]},
            },
        },
        "orders": {
            "person": {"column": "customer", "references": "customer.id"},
            "key": ["id"],
            "columns": {
                "status": {"in": ["open", "sent", "back"]},
                "amount": {"between": [0, 500]},
                "weight": {"between": [0.5, 20]},
                "quantity": {"between": [1, 10]},
            },
        },
        "item": {
            "person": {"column": "order_id", "references": "orders.id"},
            "max_rows_contributed": 16,
            "columns": {"price": {"between": [0, 100]}, "n": {"between": [0, 9]}, "wide": {"between": [-1, 1]}},
        },
        "country": {"public": True, "key": ["name"]},
        "rate": {"public": True},
    },
}


def policy(**budget: Any) -> dict[str, Any]:
    return {**POLICY, "budget": {**POLICY["budget"], **budget}}


def pure() -> dict[str, Any]:
    return {**POLICY, "budget": {"epsilon": 1e15, "delta": 1e-6, "accounting": "pure"}}


def undeclared() -> dict[str, Any]:
    """No limit and no range."""
    tables = {
        name: {k: v for k, v in table.items() if k not in ("max_rows_contributed", "columns")}
        for name, table in POLICY["tables"].items()
    }
    tables["orders"]["columns"] = {"status": POLICY["tables"]["orders"]["columns"]["status"]}
    return {**POLICY, "defaults": {"epsilon": 1.0}, "tables": tables}


def database(rows: Rows) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for table, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {table} ({columns})")
    fill(connection, {**rows, **PUBLIC})
    return connection


def fill(connection: duckdb.DuckDBPyConnection, rows: Rows) -> None:
    """Replace all private rows. Values travel as Python objects, so that NaN, infinities and -0.0 arrive as they are."""
    for table in TABLES:
        connection.execute(f"DELETE FROM {table}")
        found = rows.get(table) or PUBLIC.get(table) or []
        if found:
            marks = ", ".join("?" * len(found[0]))
            names = {"customer": "(id, segment, age, balance, member, score, joined, tier, tags)"}.get(table, "")
            connection.execute(
                f"INSERT INTO {table} {names} VALUES " + ", ".join([f"({marks})"] * len(found)),
                [cell for row in found for cell in row],
            )


def clean(persons: int = 60, seed: int = 1) -> Rows:
    """Everything in range, within the limits, with no group empty: here a huge epsilon must give the plain answers."""
    r = random.Random(seed)
    day = datetime.date(2020, 1, 1)
    customers = [
        (p, [None, "business", "family", "student"][p % 4], r.randint(16, 100), r.uniform(-1000, 1000), [None, True, False][p % 3],
         r.randint(0, 9999) / 100, day + datetime.timedelta(p), 1 + p % 3, [None, [], ["x"], ["x", "y"], ["y", None, "x", "x"]][p % 5])
        for p in range(persons)
    ]  # fmt: skip
    orders = [
        (10 * p + i, p, ["open", "sent", "back"][(p + i) % 3], None if i == 3 else r.randint(0, 50000) / 100, r.uniform(0.5, 20),
         r.randint(1, 10), datetime.datetime(2021, 1, 1 + p % 28, i), ["de", "fr", "it"][i % 3])
        for p in range(persons) for i in range(p % 5)
    ]  # fmt: skip
    items = [
        (order[0], r.randint(0, 100), r.randint(0, 9), r.randint(-(2**90), 2**90), r.randint(0, 2**60), r.randint(-1, 1), bool(j), [[0.5, None], None, [2, 0.5]][j])
        for order in orders for j in range(order[0] % 4)
    ]  # fmt: skip
    return {"customer": customers, "orders": orders, "item": items}


NUMBERS = [None, 0.0, -0.0, 1.0, 7.25, -3.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"), 99.999]


def wild(seed: int, persons: int = 12) -> Rows:
    """Rows as a hostile or careless world has them: NULL, NaN, infinities, extremes, duplicate keys, dangling references."""
    r = random.Random(seed)
    one = r.choice
    ids = [None, *range(persons), 2**63 - 1]
    far = ["infinity", "-infinity", "0044-03-15 (BC)"]
    dates = [None, datetime.date(1, 1, 1), datetime.date(2020, 5, 17), datetime.date(9999, 12, 31), *far]
    dates += ["5877642-06-25 (BC)", "5881580-07-10"]
    times = [
        None,
        datetime.datetime(1970, 1, 1),
        datetime.datetime(2021, 6, 1, 12),
        datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
        *far,
        "290309-12-22 (BC) 00:00:00",
        "294247-01-10 04:00:54.775806",
    ]
    lists = random.Random(seed)
    texts = ["", "de", "DE ", "xx", "12", "-7.5", "2020-02-29", "e\u0301", "%_", "x" * 3000]
    customers = [
        (p, one([None, "business", "family", "student", "pirate", ""]), one([-(2**31), -1, 0, 16, 42, 100, 101, 2**31 - 1]), one(NUMBERS),
         one([None, True, False]), one([-999999.99, -1, 0, 12.34, 99.99, 999999.99]), one(dates), one([-32768, 0, 1, 2, 3, 32767]),
         list_of(lists, [None, "x", "y", "X", *texts]))
        for p in [*range(persons), *r.choices(ids, k=4)]
    ]  # fmt: skip
    orders = [
        (one([None, *range(40)]), one([*ids, 77, 0, 0, 0]), one(["open", "sent", "back", "lost"]), one([None, -99999999.99, 0, 1.5, 500, 99999999.99]),
         one(NUMBERS), one([-(2**31), 0, 1, 5, 10, 2**31 - 1]), one(times), one([None, "de", "fr", *texts]))
        for _ in range(r.choice([0, 30, 60]))
    ]  # fmt: skip
    items = [
        (one([None, *range(44)]), one(NUMBERS[:6] + NUMBERS[9:]), one([None, -32768, 0, 3, 9, 32767]), one([None, -(2**127) + 1, 0, 5, 2**127 - 1]),
         one([None, 0, 1, 2**63, 2**64 - 1]), one([None, "-9999999999999999999999999999.9999999999", "0.5", "9999999999999999999999999999.9999999999"]),
         one([True, False]), list_of(lists, [*NUMBERS[:6], *NUMBERS[8:]]))
        for _ in range(r.choice([0, 50, 90]))
    ]  # fmt: skip
    return {"customer": customers, "orders": orders, "item": items}


def list_of(r: random.Random, cells: list[Any]) -> list[Any] | None:
    """No list, an empty one, a few cells with repetitions, or many."""
    return None if r.random() < 0.2 else r.choices(cells, k=r.choice([0, 1, 2, 5, 5, 40]))


# --- who owns what, written again and in another way than the rewriter does it ------------------------------------------


def owners(rows: Rows) -> dict[str, list[set[int]]]:
    """For each row the persons that it belongs to."""
    persons = {row[0] for row in rows["customer"] if row[0] is not None}
    of_orders = [{row[1]} & persons for row in rows["orders"]]
    by_order: dict[int, set[int]] = {}
    for row, own in zip(rows["orders"], of_orders, strict=True):
        if row[0] is not None:
            by_order.setdefault(row[0], set()).update(own)
    return {
        "customer": [{row[0]} & persons for row in rows["customer"]],
        "orders": of_orders,
        "item": [set(by_order.get(row[0], ())) if row[0] is not None else set() for row in rows["item"]],
    }


def only(rows: Rows, persons: Iterable[int]) -> Rows:
    """D|p for one person, or for some: the rows that belong to them."""
    wanted, owned = set(persons), owners(rows)
    return {table: [row for row, own in zip(rows[table], owned[table], strict=True) if own & wanted] for table in owned}


def without(rows: Rows, person: int) -> Rows:
    """D': the database without one person's rows. A row that belongs to others too stays theirs."""
    owned = owners(rows)
    return {
        table: [row for row, own in zip(rows[table], owned[table], strict=True) if own != {person}] for table in owned
    }
