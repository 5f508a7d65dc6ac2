"""Limits chosen privately: the mechanism's claim, the sampler against exact probabilities, and what comes of it in SQL."""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from statistics import NormalDist

import duckdb
import pyarrow as pa
import pytest
import shop
from hypothesis import given
from hypothesis import strategies as st

import dpsql
from dpsql import _native
from dpsql.kernel.accountant import mu_of_pure
from dpsql.kernel.algebra import Column
from dpsql.kernel.blocks import Unknown
from dpsql.kernel.functions import Facts
from dpsql.kernel.mechanisms import Ladder
from dpsql.policy.catalog import BIGINT, DOUBLE, Type

TINY = Type("TINYINT")


def probabilities(scores: list[int], weights: list[int], rate: float) -> list[float]:
    best = max(rate * u for u in scores)
    masses = [float(w) * math.exp(rate * u - best) for u, w in zip(scores, weights, strict=True)]
    return [mass / sum(masses) for mass in masses]


def table(scores: list[int]) -> pa.Table:
    return pa.table({"above": pa.array(scores, pa.decimal128(38, 0))})


def test_the_page_of_the_algorithm() -> None:
    """Values 1, 3, 5, 9, 40 on the rungs 1 .. 64 at rate 1/2, with priors C^-2 and C^-2.5."""
    above = [sum(x > 2**j for x in (1, 3, 5, 9, 40)) for j in range(7)]
    assert above == [4, 4, 3, 2, 1, 1, 0]
    for power, expected in (
        (2.0, [0.704620, 0.176155, 0.072608, 0.029927, 0.012335, 0.003084, 0.001271]),
        (2.5, [0.800838, 0.141570, 0.041261, 0.012026, 0.003505, 0.000620, 0.000181]),
    ):
        weights = [round(2**100 * (2.0**j) ** -power) for j in range(7)]
        assert probabilities([-n for n in above], weights, 0.5) == pytest.approx(expected, abs=1e-6)


def test_the_sampler_has_these_probabilities() -> None:
    """A chi-square test at a false-alarm rate of 1e-9; a rate that is 5 % off would not pass."""
    scores, weights, draws = [-4, -4, -3, -2, -1, -1, 0], [2 ** (20 - j) for j in range(7)], 100_000
    found = Counter(_native.choose(table(scores * draws), 0.5, [weights] * draws))

    def distance(rate: float) -> float:
        return sum(
            (found[i] - draws * p) ** 2 / (draws * p) for i, p in enumerate(probabilities(scores, weights, rate))
        )

    assert distance(0.5) < 55.8 < distance(0.525)


@given(
    st.lists(st.tuples(st.integers(-50, 0), st.booleans(), st.integers(1, 2**40)), min_size=1, max_size=12),
    st.floats(1e-3, 5),
)
def test_the_claim(rungs: list[tuple[int, bool, int]], rate: float) -> None:
    """One person more: log-probabilities move within one interval of length `rate`."""
    weights = [w for _, _, w in rungs]
    before = probabilities([u for u, _, _ in rungs], weights, rate)
    after = probabilities([u - b for u, b, _ in rungs], weights, rate)
    moves = [math.log(a) - math.log(b) for a, b in zip(after, before, strict=True) if a and b]
    assert max(moves) - min(moves) <= rate + 1e-9 and max(map(abs, moves)) <= rate + 1e-9


@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.5, 1.0, 3.0, 10.0])
def test_the_middle_offset_is_the_worst(rate: float) -> None:
    """The loss of two coins that lose t or t - rate, over all t, is never above the mu that is charged."""
    normal, charged = NormalDist(), math.sqrt(Ladder(rate, "mu^2").loss)
    worst = 0.0
    for k in range(1, 1000):
        t = rate * k / 1000
        p = -math.expm1(t - rate) / (math.exp(t) - math.exp(t - rate))
        worst = max(worst, normal.inv_cdf(math.exp(t) * p) - normal.inv_cdf(p))
    assert worst <= charged <= worst * (1 + 1e-6)


@pytest.mark.parametrize("share", [1e-18, 1e-6, 0.01, 1.0, 50.0, 1e12])
def test_calibration_stays_within_its_share(share: float) -> None:
    for currency in ("epsilon", "mu^2"):
        ladder = Ladder.calibrate(Fraction(share), currency)
        assert 0.99 * share < ladder.loss <= Fraction(share) * (1 + Fraction(1, 10**6))


def test_mu_of_pure_never_falls() -> None:
    """Also where the way of computing it changes."""
    points = [10.0 ** (k / 50) for k in range(-400, 1000)]
    values = [mu_of_pure(epsilon) for epsilon in points]
    assert all(a < b for a, b in pairwise(values))
    assert all(mu <= epsilon * math.sqrt(math.pi / 2) * (1 + 1e-8) for mu, epsilon in zip(values, points, strict=True))


def test_priors_are_positive_integers() -> None:
    value = (
        Column("x", Facts(DOUBLE)),
        Column("x", Facts(BIGINT, range=BIGINT.range)),
        Column("x", Facts(TINY, range=TINY.range)),
    )
    for unknown in (Unknown.count("rows"), *(end for one in value for end in Unknown.ends(one))):
        assert all(1 <= weight < 2**128 for weight in unknown.prior)
        assert sorted(unknown.prior, reverse=True) == list(unknown.prior)
        assert unknown.usual <= unknown.rungs[-1]
        whole = unknown.value is None or unknown.value.facts.type != DOUBLE
        assert not whole or all(rung.denominator == 1 for rung in unknown.rungs)


# --- in SQL -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def events() -> duckdb.DuckDBPyConnection:
    """20,000 persons with 1 to 9 rows each, and amounts up to 100 with a long tail."""
    connection = duckdb.connect()
    connection.execute("CREATE TABLE event (person BIGINT, amount DOUBLE, kind VARCHAR)")
    r = random.Random(5)
    rows = [(p, min(r.lognormvariate(3, 0.5), 1e6), r.choice("abc")) for p in range(20_000) for _ in range(1 + p % 9)]
    rows[7] = (0, 1e15, "a")
    frame = pa.table(dict(zip(("person", "amount", "kind"), map(list, zip(*rows, strict=True)), strict=True)))
    connection.register("frame", frame)
    connection.execute("INSERT INTO event SELECT * FROM frame")
    connection.unregister("frame")
    return connection


POLICY = {
    "dataset": {"id": "events"},
    "budget": {"epsilon": 100.0, "delta": 1e-6},
    "defaults": {"epsilon": 1.0},
    "tables": {"event": {"person": "person"}},
}


def test_the_counts_are_right() -> None:
    """Persons above each rung, by another way: NULL, NaN, negative and infinite values, at rungs and between them."""
    cells = [
        "NULL",
        "'nan'",
        "'inf'",
        "'-inf'",
        "0",
        "-0.0",
        "1",
        "1.5",
        "2",
        "2.0000001",
        "3",
        "-4",
        "-5",
        "1e300",
        "0.001",
        "6",
    ]
    rows = ", ".join(f"({p}, {cell}::DOUBLE)" for p, cell in enumerate(cells))
    wide = ", ".join(f"({p}, 1::DOUBLE)" for p in range(5) for _ in range(p))
    connection = duckdb.connect()
    connection.execute("CREATE TABLE event (person BIGINT, amount DOUBLE)")
    connection.execute(f"INSERT INTO event VALUES {rows}, {wide}")
    plan = dpsql.connect(connection, policy=POLICY, ledger=":memory:").explain("SELECT sum(amount) FROM event").plan
    found = [-score for (score,) in connection.execute(plan.release.climb).fetchall()]
    wanted = []
    for unknown in plan.release.unknowns:
        test = {
            "rows": "count(*) > {}",
            "high": "max(amount) FILTER (NOT isnan(amount)) > {}",
            "low": "min(amount) < -{}",
        }
        for rung in unknown.rungs[:-1]:
            having = test[unknown.what].format(f"{float(rung)!r}::DOUBLE")
            sql = f"SELECT count(*) FROM (SELECT person FROM event GROUP BY person HAVING {having})"
            wanted += connection.execute(sql).fetchone() or ()
        wanted.append(0)  # the top
    assert found == wanted and max(found) > 5


@pytest.mark.parametrize("accounting", ["gdp", "pure"])
def test_a_sum_without_any_declaration(events: duckdb.DuckDBPyConnection, accounting: str) -> None:
    """Rows and range are chosen such that one absurd cell does not decide, and the answer is close to the truth."""
    policy = {**POLICY, "budget": {**POLICY["budget"], "accounting": accounting}}
    db = dpsql.connect(events, policy=policy, ledger=":memory:")
    query = "SELECT kind, count(*) AS n, sum(amount) AS total FROM event GROUP BY kind ORDER BY kind"
    explained = db.explain(query)
    assert {unknown.what for unknown in explained.plan.release.unknowns} == {"rows", "groups", "low", "high"}
    assert str(explained).count("chosen privately first") == 4
    answer = db.sql(query)
    assert answer.loss == explained.loss and db.budget.spent.amount == pytest.approx(explained.loss.amount)
    truth = events.sql(
        "SELECT kind, count(*), sum(amount) FILTER (amount < 1e6) FROM event GROUP BY kind ORDER BY kind"
    )
    for row, wanted, (_, *bars) in zip(answer, truth.fetchall(), answer.errors, strict=True):
        assert row[0] == wanted[0]
        for cell, exact, bar in zip(row[1:], wanted[1:], bars, strict=True):
            assert bar is not None and abs(cell - exact) <= 0.3 * exact + 3 * bar
    # A limit that is a hundred times too large has a chance of one in ten thousand.
    assert answer.plan.then is None and 4 <= answer.plan.release.max_rows <= 2048
    assert all(axis.high < 1e5 for summand in answer.plan.release.summands for axis in summand.axes)
    assert sum("chosen privately" in note for note in answer.notes) == 2


def test_a_huge_epsilon_chooses_what_clips_nobody(events: duckdb.DuckDBPyConnection) -> None:
    policy = {**POLICY, "budget": {"epsilon": 1e12, "delta": 1e-6}}
    db = dpsql.connect(events, policy=policy, ledger=":memory:")
    answer = db.sql("SELECT count(*) FROM event", epsilon=1e9)
    assert answer.plan.release.max_rows >= 12  # the largest has 9 rows; above that the prior decides
    assert answer.fetchall() == events.sql("SELECT count(*) FROM event").fetchall()


def test_whole_numbers_stay_whole() -> None:
    """A flag sums to the number of those who have it, whichever rungs are chosen; and all above the top is the top."""
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE event AS SELECT range AS person, (range % 2)::INTEGER AS flag, 1e25 AS big FROM range(20000)"
    )
    db = dpsql.connect(connection, policy={**POLICY, "budget": {"epsilon": 1e9, "delta": 1e-6}}, ledger=":memory:")
    for _ in range(20):
        ((total, error),) = [(row[0], bar[0]) for answer in [db.sql("SELECT sum(flag) FROM event", epsilon=20)]
                             for row, bar in zip(answer, answer.errors, strict=True)]  # fmt: skip
        assert error is not None and abs(total - 10_000) <= 4 * error + 1
    answer = db.sql("SELECT avg(big) FROM event", epsilon=20)
    assert (answer.fetchone() or (0,))[0] > 1e15


def test_many_groups_of_one_person() -> None:
    """Groups have a ladder of their own: a person with 25 groups of one row each keeps most of them."""
    connection = duckdb.connect()
    connection.execute("CREATE TABLE event AS SELECT p AS person, g AS kind FROM range(3000) a(p), range(25) b(g)")
    db = dpsql.connect(connection, policy={**POLICY, "budget": {"epsilon": 1e9, "delta": 1e-6}}, ledger=":memory:")
    answer = db.sql("SELECT kind, count(*) FROM event GROUP BY kind", epsilon=20)
    assert sum(row[1] for row in answer) > 60_000
    assert any("groups" in note and "at most" in note for note in answer.notes)


def test_nobody_at_all() -> None:
    """On an empty table the prior decides."""
    db = dpsql.connect(shop.database({}), policy=shop.undeclared(), ledger=":memory:")
    answer = db.sql("SELECT sum(balance), avg(weight) FROM orders o JOIN customer c ON o.customer = c.id")
    assert len(answer.fetchall()) == 1
