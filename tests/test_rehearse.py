"""A rehearsal runs the same pipeline on synthetic rows: it reads nothing, costs nothing, and knows only the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
import shop
import spec

import dpsql
from dpsql.consistent import DISAGREE
from dpsql.rehearse import NOTE, PERSONS

QUERY = "SELECT segment, count(*) AS n, avg(age) AS age FROM customer GROUP BY segment"


@pytest.fixture(scope="module")
def db() -> dpsql.Session:
    return dpsql.connect(shop.database(shop.clean()), policy=shop.policy(), ledger=":memory:")


@pytest.mark.parametrize("one", [one for one in spec.every("shop") if not one.refused], ids=str)
def test_every_spec_can_be_rehearsed(db: dpsql.Session, one: spec.Spec) -> None:
    answer, explained = db.rehearse(one.query), db.explain(one.query)
    if all(part.then is None and part.given is None for part in explained.plan.parts):
        assert answer.plan == explained.plan
    told = tuple(note for note in answer.notes if note != f"totals {DISAGREE}")
    assert told == (NOTE, *answer.plan.notes) and answer.loss.amount == answer.loss.epsilon == 0
    assert len(answer.errors) == len(answer)
    assert db.budget.spent.amount == 0


def test_refusals_are_the_same(db: dpsql.Session) -> None:
    for one in spec.every("shop"):
        if one.refused:
            with pytest.raises(dpsql.Refused) as real:
                db.sql(one.query)
            with pytest.raises(dpsql.Refused) as rehearsed:
                db.rehearse(one.query)
            assert str(real.value) == str(rehearsed.value)


def test_noise_and_parameters_are_those_of_the_call(db: dpsql.Session) -> None:
    query = "SELECT count(*) FROM customer WHERE age < $1"
    assert db.rehearse(query, [200], epsilon=1e9).fetchall() == [(PERSONS,)]
    assert db.rehearse(query, [0], epsilon=1e9).fetchall() == [(0,)]
    ((rehearsed,),) = db.rehearse(query, [200], epsilon=0.5).errors
    assert rehearsed == pytest.approx(db.explain(query, [200], epsilon=0.5).errors["count_star()"])
    assert len({db.rehearse(query, [200], epsilon=1e-3).fetchone() for _ in range(5)}) > 1
    assert db.rehearse("SHOW BUDGET").columns[0] == "of"


def test_rows_find_each_other(db: dpsql.Session) -> None:
    """Along references and in joins with public tables; values lie in their ranges."""
    count = "SELECT count(*) FROM item JOIN orders ON item.order_id = orders.id JOIN customer ON orders.customer = customer.id"
    ((joined,),) = db.rehearse(count, epsilon=1e9)
    ((items,),) = db.rehearse("SELECT count(*) FROM item", epsilon=1e9)
    assert joined == items > PERSONS / 3
    ((abroad,),) = db.rehearse("SELECT count(*) FROM orders JOIN country ON orders.country = country.name", epsilon=1e9)
    assert abroad > 50
    rows = db.rehearse(QUERY, epsilon=1e9).fetchall()
    assert all(count > 50 and 16 <= age <= 100 for segment, count, age in rows if segment)


def test_a_rehearsal_knows_only_the_policy(tmp_path: Path) -> None:
    """The same on any data, after the data is gone, and when nothing is left of the budget."""
    seen = []
    for number, rows in enumerate((shop.clean(), {}, shop.wild(0))):
        path = tmp_path / f"{number}.duckdb"
        with duckdb.connect(str(path)) as connection:
            for table, columns in shop.TABLES.items():
                connection.execute(f"CREATE TABLE {table} ({columns})")
            shop.fill(connection, rows)
        db = dpsql.connect(path, policy=shop.policy(epsilon=1e-3), ledger=":memory:")
        path.unlink()
        with pytest.raises(dpsql.Refused, match="database_missing"):
            db.sql(QUERY)
        answer = db.rehearse(QUERY.replace(", avg(age) AS age", ""), epsilon=1e9)
        seen.append(repr((answer.fetchall(), answer.types, answer.errors)))
    assert seen[0] == seen[1] == seen[2]


TYPES = """TINYINT SMALLINT INTEGER BIGINT HUGEINT UTINYINT USMALLINT UINTEGER UBIGINT FLOAT DOUBLE DECIMAL(1,1) DECIMAL(38,0)
DECIMAL(38,38) BOOLEAN VARCHAR DATE TIMESTAMP UUID BLOB TIME INTERVAL INTEGER[] TIMESTAMPTZ ENUM('a','b')"""


@pytest.mark.parametrize("person", ["UTINYINT", "VARCHAR", "UUID", "HUGEINT"])
def test_every_type(person: str) -> None:
    owner = duckdb.connect()
    columns = ", ".join(f"c{i} {type_}" for i, type_ in enumerate(TYPES.split()))
    owner.execute(f"CREATE TABLE t (p {person}, {columns})")
    wide: dict[str, Any] = {
        f"c{i}": {"between": ends}
        for i, ends in ((4, [-(2**100), 2**100]), (8, [0, 2**64 - 1]), (10, [-1e90, 1e90]), (12, [0, 10**38 - 1]))
    }
    policy = {"dataset": {"id": "t"}, "budget": {"epsilon": 1e12}, "tables": {"t": {"person": "p", "columns": wide}}}
    policy["defaults"] = {"max_rows_contributed": 8}
    db = dpsql.connect(owner, policy=policy, ledger=":memory:")
    ((count, some),) = db.rehearse("SELECT count(*), count(c15) FROM t", epsilon=1e9)
    persons = 256 if person == "UTINYINT" else PERSONS
    assert count >= persons * 0.9 and some > 0


def test_answers_look_like_answers(db: dpsql.Session) -> None:
    """At a usual epsilon the noise does not swallow them, and some groups that are not declared are shown."""
    answer = db.rehearse(QUERY, epsilon=0.5)
    assert all(bars[1] < row[1] / 5 for row, bars in zip(answer, answer.errors, strict=True) if row[0])
    assert len(db.rehearse("SELECT country, count(*) FROM orders GROUP BY country", epsilon=0.5)) > 3
