"""Where a person has one row, or one group: known from the schema and the text, never from rows."""

from __future__ import annotations

from functools import cache

import duckdb
import pytest
from forms import by_sql, natively, same
from stages import planned

import dpsql
from dpsql.backends.duckdb import DuckDB
from dpsql.compiler.parse import parse
from dpsql.compiler.program import Plan
from dpsql.kernel.keys import PublicKeys
from dpsql.policy.catalog import Catalog, build, read_policy

POLICY = {
    "dataset": {"id": "t"},
    "budget": {"epsilon": 10.0, "delta": 1e-6},
    "defaults": {"epsilon": 1.0, "max_rows_contributed": 20, "max_groups_contributed": 5},
    "tables": {
        "people": {"person": "id", "columns": {"age": {"between": [0, 100]}, "team": {"in": ["a", "b"]}}},
        "visits": {"person": "id", "columns": {"minutes": {"between": [0, 60]}}},
        "orders": {"person": {"column": "buyer", "references": "people.id"}, "columns": {"price": {"between": [0, 9]}}},
        "loose": {"person": "id", "columns": {"n": {"between": [0, 9]}}},
        "towns": {"public": True, "columns": {"code": {"between": [0, 2]}}},
        "roads": {"public": True},
    },
}


@cache
def database() -> duckdb.DuckDBPyConnection:
    db = duckdb.connect()
    db.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, age INTEGER, team VARCHAR, town VARCHAR, tall BIGINT)")
    db.execute(
        "INSERT INTO people SELECT i, i % 90, chr((97 + i % 3)::INTEGER), 'town ' || i % 4, i % 5 FROM range(300) r(i)"
    )
    db.execute(
        "CREATE TABLE visits AS SELECT (i % 250)::INTEGER AS id, i % 70 AS minutes, 'w' || hash(i) % 5 AS ward FROM range(900) r(i)"
    )
    db.execute(
        "CREATE TABLE orders AS SELECT (i % 280)::INTEGER AS buyer, i % 11 AS price, 's' || i % 3 AS shop FROM range(800) r(i)"
    )
    db.execute("CREATE TABLE loose AS SELECT i::INTEGER AS id, i % 9 AS n FROM range(100) r(i)")
    db.execute("CREATE TABLE towns (name VARCHAR UNIQUE, code BIGINT UNIQUE, land VARCHAR, far DOUBLE UNIQUE)")
    db.execute("INSERT INTO towns SELECT 'town ' || i, i, 'land ' || i % 2, i FROM range(4) r(i)")
    db.execute("CREATE TABLE roads AS SELECT 'town ' || i % 4 AS town, i AS road FROM range(8) r(i)")
    return db


@cache
def catalog() -> Catalog:
    known = read_policy(POLICY)
    with DuckDB(database()).snapshot() as snapshot:
        return build(known, snapshot.schemas(known.tables))


def plan(query: str) -> Plan:
    return planned(parse(query), catalog())


ONE_ROW = [
    "SELECT team, count(*), avg(age) FROM people GROUP BY team",
    "SELECT town, stddev(age) FROM people WHERE age > 3 GROUP BY town",
    "SELECT land, count(*) FROM people JOIN towns ON people.town = towns.name GROUP BY land",
    "SELECT land, count(*) FROM towns JOIN people ON people.town = towns.name GROUP BY land",
    "SELECT land, count(*), count(DISTINCT id) FROM people LEFT JOIN towns ON people.town = towns.name GROUP BY land",
    "SELECT count(*) FROM people WHERE id IN (SELECT id FROM visits)",
    "SELECT avg(n) FROM (SELECT id, count(*) AS n FROM visits GROUP BY id)",
    "SELECT n, count(*) FROM (SELECT id, least(count(*), 5) AS n FROM visits GROUP BY id) GROUP BY n",
    "SELECT sum(spent) FROM (SELECT buyer, sum(price) AS spent FROM orders GROUP BY buyer) WHERE spent > 3",
    "SELECT count(*) FROM (SELECT DISTINCT id FROM visits)",
    "SELECT count(*) FROM people a JOIN people b ON a.id = b.id",
]
ONE_GROUP = [
    "SELECT team, count(DISTINCT people.id) FROM people JOIN visits ON people.id = visits.id GROUP BY team",
    "SELECT town, count(DISTINCT people.id) FROM people JOIN orders ON people.id = orders.buyer GROUP BY town",
    "SELECT count(DISTINCT id) FROM visits",
]
NEITHER = [
    "SELECT count(*) FROM visits",
    "SELECT count(*) FROM loose",  # unique, but nobody enforces it
    "SELECT ward, count(DISTINCT id) FROM visits GROUP BY ward",
    "SELECT shop, count(*) FROM people JOIN orders ON people.id = orders.buyer GROUP BY shop",
    "SELECT count(*) FROM people JOIN roads ON people.town = roads.town",
    "SELECT count(*) FROM people JOIN towns ON people.age = towns.far",  # as doubles different numbers may be equal
    "SELECT count(*) FROM people JOIN towns ON people.age < towns.code",
    "SELECT count(*) FROM people JOIN towns ON people.tall = towns.code",  # cells are changed before they are compared
    "SELECT count(*) FROM (SELECT id, ward, count(*) AS n FROM visits GROUP BY id, ward)",
    "SELECT count(*) FROM (SELECT id, age FROM people UNION ALL SELECT id, age FROM people)",
    "SELECT v.ward, count(DISTINCT v.id) FROM visits v LEFT JOIN people ON v.id = people.id GROUP BY v.ward",
    "SELECT team, count(DISTINCT v.id) FROM visits v LEFT JOIN people p ON v.id = p.id AND v.ward = 'w1' GROUP BY team",
    # Behind an outer join the person's column is the person or NULL: two groups of one person, or four ...
    "SELECT count(*) FROM (SELECT p.id, count(*) AS n FROM visits v LEFT JOIN people p ON v.id = p.id AND v.ward = 'w1' GROUP BY p.id)",
    "SELECT count(*) FROM (SELECT DISTINCT p.id FROM visits v LEFT JOIN people p ON v.id = p.id AND v.ward = 'w1')",
    "SELECT sum(least(n, 60)) FROM (SELECT p.id, count(*) AS n FROM visits v FULL JOIN people p ON v.id = p.id AND v.ward = 'w1' GROUP BY p.id)",
    "SELECT count(*) FROM people FULL JOIN visits ON people.id = visits.id",
]


@pytest.mark.parametrize("query", [*ONE_ROW, *ONE_GROUP])
def test_nothing_is_limited(query: str) -> None:
    made = plan(query)
    assert made.release.limits and made.release.limits[0].sums and not made.release.limits[0].rows
    assert same(natively(database(), made), by_sql(database(), made), isinstance(made.release.keys, PublicKeys))
    if query in ONE_ROW:  # and what is known to be one row costs the noise of one
        assert made.release.max_rows == 1 and not {"rows", "groups"} & {
            unknown.what for unknown in made.release.unknowns
        }


@pytest.mark.parametrize("query", NEITHER)
def test_what_is_not_known_is_limited(query: str) -> None:
    made = plan(query)
    assert not made.release.limits or (made.release.limits[0].rows and not made.release.limits[0].sums)
    if made.release.limits:
        assert same(natively(database(), made), by_sql(database(), made), isinstance(made.release.keys, PublicKeys))


def test_a_constraint_that_is_lost_is_noticed() -> None:
    """The noise is for one row of each person: a session that began with the constraint must not go on without it."""
    owner = duckdb.connect()
    owner.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, age INTEGER)")
    policy = {**POLICY, "tables": {"people": {"person": "id"}}}
    with dpsql.connect(owner, policy=policy, ledger=":memory:") as db:
        db.sql("SELECT count(*) FROM people")
        owner.execute("CREATE TABLE others AS FROM people; DROP TABLE people; ALTER TABLE others RENAME TO people")
        with pytest.raises(dpsql.Refused, match="schema_changed"):
            db.sql("SELECT count(*) FROM people")
