"""Totals equal the sums of their parts, and are the best that the noisy tables say."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import duckdb
import numpy as np
import pytest
import shop
from hypothesis import given
from hypothesis import strategies as st

import dpsql
from dpsql.consistent import consistent


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3), chosen=st.data())
def test_least_squares(sizes: list[int], chosen: st.DataObject) -> None:
    """As solved by brute force, for any set of levels in any order of their axes."""
    axes = list(range(len(sizes)))
    every = [
        tuple(axis for axis, use in zip(axes, uses, strict=True) if use) for uses in product((0, 1), repeat=len(axes))
    ]
    held = [
        tuple(chosen.draw(st.permutations(one)))
        for one in chosen.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    ]
    used = sorted({axis for one in held for axis in one})
    draw = np.random.default_rng(chosen.draw(st.integers(0, 2**32)))
    tables = [draw.normal(0, 10, [sizes[axis] for axis in one]) for one in held]
    variances = [chosen.draw(st.sampled_from([0.5, 1.0, 7.0])) for _ in held]
    cells = list(product(*(range(sizes[axis]) for axis in used)))
    rows, noisy, weights = [], [], []
    for one, table, variance in zip(held, tables, variances, strict=True):
        for place in np.ndindex(*table.shape):
            at = dict(zip(one, place, strict=True))
            rows.append([float(all(cell[used.index(axis)] == i for axis, i in at.items())) for cell in cells])
            noisy.append(table[place])
            weights.append(variance**-0.5)
    matrix, scale = np.array(rows), np.array(weights)
    best = matrix @ np.linalg.lstsq(matrix * scale[:, None], np.array(noisy) * scale, rcond=None)[0]
    made = consistent(list(zip(held, tables, variances, strict=True)))
    assert np.concatenate([table.reshape(-1) for table in made]) == pytest.approx(best, abs=1e-6)


@pytest.fixture(scope="module")
def db() -> Iterator[dpsql.Session]:
    """Pure: a person's rows are limited by their number, which is the same at all levels."""
    policy = shop.policy(accounting="pure")
    with dpsql.connect(shop.database(shop.clean()), policy=policy, ledger=":memory:") as session:
        yield session


@pytest.mark.parametrize("kind", ["ROLLUP (status, quantity > 5)", "CUBE (status, quantity > 5)"])
def test_totals_add_up(kind: str, db: dpsql.Session) -> None:
    """Counts and sums of whole numbers to the unit, at any noise."""
    query = f"SELECT status, quantity > 5 AS many, count(*), sum(quantity), sum(amount), avg(quantity) FROM orders GROUP BY {kind}"
    rows = db.sql(query.replace("quantity > 5)", "many)"), epsilon=0.5).fetchall()
    cells = {row[:2]: row[2:] for row in rows}
    parts = {key: cell for key, cell in cells.items() if None not in key}
    assert len(parts) == 6
    for (status, many), cell in cells.items():
        inside = [part for key, part in parts.items() if status in (None, key[0]) and many in (None, key[1])]
        assert cell[0] == sum(part[0] for part in inside) and cell[1] == sum(part[1] for part in inside)
        assert float(cell[2]) == pytest.approx(float(sum(part[2] for part in inside)), abs=1e-3)


def test_totals_are_better_than_alone(db: dpsql.Session) -> None:
    """The total of a level takes from the others what they know: its error is below that of its own noise."""
    query = "SELECT status, count(*) AS n FROM orders GROUP BY ROLLUP (status)"
    plan = db.explain(query, epsilon=1.0).plan
    alone = plan.parts[1].release.mechanisms[0].deviation / plan.parts[1].release.summands[0].weight
    totals = [dict(db.sql(query, epsilon=1.0).fetchall())[None] - 120 for _ in range(300)]
    expected = alone * (3 / 4) ** 0.5  # three parts of the same noise: 1 / (1 + 1/3) of the variance
    assert np.std(totals) == pytest.approx(expected, rel=0.25)


def test_persons_do_not_add_up(db: dpsql.Session) -> None:
    """Who is in two groups is one in their total."""
    query = "SELECT status, count(DISTINCT customer) AS n FROM orders GROUP BY ROLLUP (status)"
    cells = dict(db.sql(query, epsilon=1e9).fetchall())
    assert cells[None] < sum(n for status, n in cells.items() if status)


def test_all_levels_are_about_the_same_rows() -> None:
    """What is not declared is no group, and is not in the total either."""
    owner = shop.database(shop.clean())
    owner.execute("UPDATE orders SET status = 'lost' WHERE status = 'back'")
    with dpsql.connect(owner, policy=shop.policy(accounting="pure"), ledger=":memory:") as session:
        found = dict(
            session.sql("SELECT status, count(*) AS n FROM orders GROUP BY ROLLUP (status)", epsilon=1e9).fetchall()
        )
        apart = "SELECT status, segment, count(*) AS n FROM orders o JOIN customer c ON o.customer = c.id GROUP BY GROUPING SETS ((status), (segment))"
        levels = session.sql(apart, epsilon=1e9).fetchall()
    assert found == {"open": 40, "sent": 40, "back": 0, None: 80}
    by_status = sum(n for status, _, n in levels if status)
    assert by_status == sum(n for status, _, n in levels if not status) == 80  # no set has both keys


@pytest.mark.parametrize(
    ("kind", "complete"), [("ROLLUP (status, country)", "1, 2"), ("CUBE (status, country)", "1, 3")]
)
def test_levels_that_are_complete_agree_beside_others(kind: str, complete: str, db: dpsql.Session) -> None:
    """A level whose groups are hidden does not keep the others from it, and EXPLAIN names those that do."""
    query = f"SELECT status, count(*) AS n, grouping(country) AS g FROM orders GROUP BY {kind}"
    told = [line for line in db.explain(query).lines if line.startswith("totals")]
    assert told == [f"totals    of rows agree in releases {complete}"]
    cells = {status: n for status, n, g in db.sql(query, epsilon=0.5).fetchall() if g}
    assert len(cells) == 4 and cells.pop(None) == sum(cells.values())


def test_one_value_in_one_answer(db: dpsql.Session) -> None:
    """Later releases read what the outer query reads: totals that have been fitted, also by an answer that is kept."""
    query = (
        "WITH r AS (SELECT status, count(*) AS n FROM orders GROUP BY ROLLUP (status)) "
        "SELECT (SELECT max(n) FROM r WHERE status IS NULL) AS shown, k, c FROM "
        "(SELECT (SELECT max(n) FROM r WHERE status IS NULL) AS k, count(*) AS c FROM customer)"
    )
    for _ in range(5):
        ((shown, used, _),) = db.sql(query, epsilon=1.0).fetchall()
        assert shown == used
    first = db.sql(query, epsilon=1.0, query_id="r").fetchall()
    assert db.sql(query, epsilon=1.0, query_id="r").fetchall() == first


def test_a_total_that_stands_alone_is_not_changed_afterwards(db: dpsql.Session) -> None:
    query = (
        "WITH a AS (SELECT count(*) AS n FROM customer WHERE tier IS NOT NULL), "
        "b AS (SELECT (SELECT n FROM a) AS n, count(*) AS m FROM orders), "
        "c AS (SELECT count(*) AS n FROM customer GROUP BY ROLLUP (tier)) SELECT a.n, b.n, (SELECT max(n) FROM c) FROM a, b"
    )
    for _ in range(5):
        ((alone, used, _),) = db.sql(query, epsilon=1.0).fetchall()
        assert alone == used


@pytest.mark.parametrize("accounting", ["gdp", "pure"])
def test_levels_that_clip_differently_are_not_pooled(accounting: str) -> None:
    """200 persons with 25 rows each and a limit of 22: in L2 the rows of one group are within it, and their total is not."""
    owner = duckdb.connect()
    owner.execute("CREATE TABLE visits AS SELECT r % 200 AS person, (r // 200) % 3 AS g FROM range(5000) t(r)")
    policy = {
        "dataset": {"id": "visits"},
        "budget": {"epsilon": 1e12, "delta": 1e-5, "accounting": accounting},
        "defaults": {"max_rows_contributed": 22},
        "tables": {"visits": {"person": "person", "columns": {"g": {"in": [0, 1, 2]}}}},
    }
    with dpsql.connect(owner, policy=policy, ledger=":memory:") as session:
        alone = dict(session.sql("SELECT g, count(*) FROM visits GROUP BY g", epsilon=1e9).fetchall())
        answer = session.sql("SELECT g, grouping(g), count(*) FROM visits GROUP BY ROLLUP (g)", epsilon=1e9)
    found = {(g, whole): n for g, whole, n in answer.fetchall()}
    total = found.pop((None, 1))
    levels = {g: n for (g, _), n in found.items() if g is not None}
    assert levels == pytest.approx({g: n for g, n in alone.items() if g is not None}, rel=0.01)
    assert total == pytest.approx(22 * 200, rel=0.01)
    if accounting == "gdp":
        assert sum(levels.values()) == 5000 and any("totals may differ" in note for note in answer.notes)
    else:
        assert sum(levels.values()) == pytest.approx(total, abs=1)
