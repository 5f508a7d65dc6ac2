"""Whatever is asked, the native form gives the integers of the SQL form, whose limits are proved; on the database and on its copy.

The first seed finds both mistakes that a reviewer has found in this way: keys of one column that were not enforced together, and a
person behind an outer join who was taken for herself.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import duckdb
import pytest
from forms import by_sql, natively, same
from stages import planned
from test_single import POLICY, catalog, database

import dpsql
from dpsql.compiler.parse import parse
from dpsql.kernel.keys import PublicKeys
from dpsql.policy.catalog import Catalog, read_policy
from dpsql.prepare import prepare

FROM = [
    *("people p", "visits v", "orders o"),
    *(
        "people p JOIN visits v ON p.id = v.id",
        "visits v JOIN people p ON v.id = p.id",
        "people p JOIN orders o ON p.id = o.buyer",
    ),
    *("orders o JOIN people p ON o.buyer = p.id", "visits v LEFT JOIN people p ON v.id = p.id AND v.ward = 'w1'"),
    *("people p FULL JOIN visits v ON p.id = v.id AND v.minutes > 30", "people p LEFT JOIN visits v ON p.id = v.id"),
    *("visits v SEMI JOIN people p ON v.id = p.id", "people p ANTI JOIN visits v ON p.id = v.id AND v.ward = 'w2'"),
    *(
        "people p JOIN towns t ON p.town = t.name",
        "people p LEFT JOIN towns t ON p.tall = t.code",
        "people p JOIN roads r ON p.town = r.town",
    ),
    *("visits v JOIN visits w ON v.id = w.id", "(SELECT id, ward, count(*) AS n FROM visits GROUP BY id, ward) v"),
    *("(SELECT id, least(count(*), 9) AS n FROM visits GROUP BY id) v", "(SELECT DISTINCT id, minutes FROM visits) v"),
    "(SELECT p.id, least(count(*), 9) AS n FROM visits v LEFT JOIN people p ON v.id = p.id AND v.minutes > 9 GROUP BY p.id) v",
    "(SELECT id, minutes, row_number() OVER (PARTITION BY id ORDER BY minutes) AS n FROM visits) v",
    "(SELECT id, minutes FROM visits UNION ALL SELECT id, minutes FROM visits) v",
]
WHERE = [
    "",
    "WHERE p.age > 30",
    "WHERE v.minutes BETWEEN 5 AND 40",
    "WHERE p.team = 'a'",
    "WHERE o.price > 2",
    "WHERE v.n > 1",
]
KEYS = [
    *(
        "",
        "p.team",
        "p.team, p.town",
        "p.team, p.team IS NULL",
        "v.ward",
        "o.shop",
        "p.age > 50",
        "v.n",
        "t.land",
        "p.team, p.age > 20",
    ),
    *("coalesce(p.team, 'z')", "p.town, p.team", "v.minutes > 20"),
]
MEASURES = [
    *(
        "count(*)",
        "count(DISTINCT p.id)",
        "count(DISTINCT v.id)",
        "sum(p.age)",
        "avg(v.minutes)",
        "sum(o.price)",
        "stddev(v.minutes)",
    ),
    *(
        "count(v.minutes)",
        "count(DISTINCT p.id) FILTER (WHERE p.age > 20)",
        "corr(p.age, v.minutes)",
        "sum(v.n)",
        "avg(p.age + p.tall)",
    ),
]
MANY = list(itertools.product(FROM, WHERE, KEYS, MEASURES, ["", *MEASURES[:3]]))


def compared(connection: duckdb.DuckDBPyConnection, known: Catalog, chance: random.Random, times: int) -> int:
    """How many random questions could be asked; in all of them both forms agree."""
    asked = 0
    while asked < times:
        table, where, keys, *measures = chance.choice(MANY)
        listed = ", ".join(filter(None, [keys, *dict.fromkeys(measures)]))
        query = f"SELECT {listed} FROM {table} {where} {f'GROUP BY {keys}' if keys else ''}"
        try:
            plan = planned(parse(query), known)
        except dpsql.Refused:
            continue
        asked += 1
        if plan.release.limits:
            ordered = isinstance(plan.release.keys, PublicKeys)
            assert same(natively(connection, plan), by_sql(connection, plan), ordered), query
    return asked


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))])
def test_of_the_database(seed: int) -> None:
    assert compared(database().cursor(), catalog(), random.Random(seed), 150) == 150


@pytest.mark.parametrize("seed", [100, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(101, 110))])
def test_of_its_copy(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "people.duckdb"
    database().execute(f"ATTACH '{path}' AS stored")
    database().execute("COPY FROM DATABASE memory TO stored")
    database().execute("DETACH stored")
    prepare(path, read_policy(POLICY))
    with dpsql.connect(path, policy=POLICY, ledger=":memory:") as db:
        assert db._backend._owner is not None
        assert compared(db._backend._owner.cursor(), db._catalog, random.Random(seed), 150) == 150
