"""A shop: customers, what they order, and the items of it; the database of most specs and tests."""

from __future__ import annotations

import datetime
import random
from typing import Any

from database import DATES, NUMBERS, TEXTS, TIMES, Database, Rows

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
        "shared": True,  # the wild ones have orders of several customers under one id
        "max_rows_contributed": 16,
        "columns": {"price": {"between": [0, 100]}, "n": {"between": [0, 9]}, "wide": {"between": [-1, 1]}},
    },
    "country": {"public": True, "key": ["name"]},
    "rate": {"public": True},
}


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


def wild(seed: int, persons: int = 12) -> Rows:
    """Rows as a hostile or careless world has them: NULL, NaN, infinities, extremes, duplicate keys, dangling references."""
    r = random.Random(seed)
    one = r.choice
    ids = [None, *range(persons), 2**63 - 1]
    lists = random.Random(seed)
    customers = [
        (p, one([None, "business", "family", "student", "pirate", ""]), one([-(2**31), -1, 0, 16, 42, 100, 101, 2**31 - 1]), one(NUMBERS),
         one([None, True, False]), one([-999999.99, -1, 0, 12.34, 99.99, 999999.99]), one(DATES), one([-32768, 0, 1, 2, 3, 32767]),
         list_of(lists, [None, "x", "y", "X", *TEXTS]))
        for p in [*range(persons), *r.choices(ids, k=4)]
    ]  # fmt: skip
    orders = [
        (one([None, *range(40)]), one([*ids, 77, 0, 0, 0]), one(["open", "sent", "back", "lost"]), one([None, -99999999.99, 0, 1.5, 500, 99999999.99]),
         one(NUMBERS), one([-(2**31), 0, 1, 5, 10, 2**31 - 1]), one(TIMES), one([None, "de", "fr", *TEXTS]))
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


SHOP = Database("shop", TABLES, PUBLIC, POLICY, clean, wild, 16)
policy, pure, undeclared, database, fill = SHOP.policy, SHOP.pure, SHOP.undeclared, SHOP.connect, SHOP.fill
only, without = SHOP.only, SHOP.without
