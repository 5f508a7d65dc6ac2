"""Which noise a pure ledger draws: the one that errs less, by a formula of public facts, before anything is released."""

from __future__ import annotations

import math
from fractions import Fraction

import duckdb
import pytest
from test_lemmas import catalog

from dpsql.backends import DuckDB
from dpsql.compiler.compile import compile
from dpsql.compiler.program import Plan, Program
from dpsql.kernel.accountant import Charge, mu_of, units
from dpsql.kernel.mechanisms import Approximate, Gaussian, Laplace, cost
from dpsql.policy.catalog import Catalog, build, read_policy

ONE, DELTA = Fraction(1), Fraction(1, 10**6)


def known(groups: int | None = None, rows: int | None = 20, declared: int = 0, **budget: object) -> Catalog:
    """Visits of persons on days, of which so many are declared."""
    columns = {"spend": {"between": [0, 10]}} | ({"day": {"in": list(range(declared))}} if declared else {})
    limits = {"max_rows_contributed": rows, "max_groups_contributed": groups}
    policy = read_policy(
        {
            "dataset": {"id": "visits"},
            "budget": {"epsilon": 100.0, "delta": 1e-3, "accounting": "pure", **budget},
            "defaults": {name: limit for name, limit in limits.items() if limit},
            "tables": {"visits": {"person": "person", "columns": columns}},
        }
    )
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE visits (person INTEGER, day INTEGER NOT NULL, spend INTEGER NOT NULL)")
        with DuckDB(connection).snapshot() as snapshot:
            return build(policy, snapshot.schemas(policy.tables))


def plan(query: str, catalog_: Catalog, epsilon: Fraction = ONE, delta: Fraction = DELTA) -> Plan:
    made = compile(query, catalog_, epsilon, delta)
    assert isinstance(made, Plan)
    return made


USERS = "SELECT day, count(DISTINCT person) FROM visits GROUP BY day"


@pytest.mark.parametrize("groups", [*range(1, 20), 100])
@pytest.mark.parametrize(("epsilon", "crossover"), [("0.1", 6.6), ("0.5", 8.1), ("1", 8.9), ("2", 9.9)])
def test_the_crossover_of_public_groups(groups: int, epsilon: str, crossover: float) -> None:
    """One in each of N groups: sqrt(2) N / epsilon against sqrt(N) / mu; the published crossovers at delta 1e-6."""
    made = plan(USERS, known(groups, 100, declared=200), Fraction(epsilon))
    (noise,) = made.release.mechanisms
    assert isinstance(noise, Gaussian if groups > crossover else Laplace)
    assert f"{noise.name} noise: it is 0." in made.why
    smaller = min(math.sqrt(2) * groups / float(epsilon), math.sqrt(groups) / mu_of(Fraction(epsilon), DELTA))
    assert noise.deviation / made.release.summands[0].weight == pytest.approx(smaller, rel=1e-6)
    assert made.charge.delta == (units(DELTA) if groups > crossover else 0)
    assert made.delta == (DELTA if groups > crossover else 0)


def test_the_crossover_of_sums() -> None:
    """k sums of the same rows: k against sqrt(k)."""
    for k in (1, 4, 8, 9, 10, 20, 120):
        made = plan(f"SELECT {', '.join(f'sum(spend * {i + 1})' for i in range(k))} FROM visits", known())
        assert len(made.release.summands) == k and isinstance(made.release.noises[0], Gaussian if k > 8.9 else Laplace)


@pytest.mark.parametrize("groups", [1, 2, 5, 30])
@pytest.mark.parametrize("shown", ["count(DISTINCT person)", "count(*)", "count(*), sum(spend), avg(spend)"])
def test_private_groups(groups: int, shown: str) -> None:
    """The lower threshold, where the noise is small beside it: Laplace's for one group of each person."""
    made = plan(f"SELECT day, {shown} FROM visits GROUP BY day", known(groups))
    assert made.release.threshold is not None
    assert isinstance(
        made.release.threshold.noise, Laplace if groups == 1 or (groups == 2 and "DIST" in shown) else Gaussian
    )
    found = [int(word.replace(",", "")) for word in made.why.split() if word.replace(",", "").isdigit()]
    assert found[0] == made.release.threshold.least <= found[1]
    assert made.charge.delta <= units(DELTA)


def test_without_a_delta_it_is_laplace() -> None:
    for catalog_, delta in ((known(100, 100, 200, delta=0), Fraction(0)), (known(100, 100, 200), Fraction(0))):
        made = plan(USERS, catalog_, delta=delta)
        assert isinstance(made.release.noises[0], Laplace) and made.charge.delta == 0 and not made.why
    tiny = plan(USERS, known(12, 100, 200), delta=Fraction(1, 10**30))
    assert isinstance(tiny.release.noises[0], Laplace)


def test_other_ledgers_have_gaussian_noise() -> None:
    for accounting in ("gdp", "zcdp"):
        made = plan(USERS, known(1, 100, 200, accounting=accounting))
        assert isinstance(made.release.noises[0], Gaussian) and not made.why


@pytest.mark.parametrize("groups", [4, 9, 17])
def test_neighbours_by_replacement(groups: int) -> None:
    """Two persons are 2 apart in L1 and sqrt(2) in L2: the crossover is at half as many."""
    made = plan(USERS, known(groups, 100, 200, neighbours="replace"))
    assert isinstance(made.release.noises[0], Gaussian if groups > 8.9 / 2 else Laplace)
    assert isinstance(made.sampled[0], Approximate if groups > 8.9 / 2 else Laplace)


@pytest.mark.parametrize(("query", "declared", "kind"), [
    ("SELECT day, count(*), sum(spend) FROM visits GROUP BY day", 0, Gaussian),
    ("SELECT count(*), sum(spend) FROM visits", 0, Laplace),
    (USERS, 200, Gaussian),  # of which groups are not declared
])  # fmt: skip
def test_limits_that_are_chosen_first(query: str, declared: int, kind: type[Gaussian | Laplace]) -> None:
    """The noise is chosen before the limits, and the charge covers it, whichever these are."""
    made = plan(query, known(rows=None, declared=declared))
    assert made.then is not None and made.why and made.release.ladder is not None
    assert made.charge.amount <= units(ONE) and made.charge.delta <= units(DELTA)
    assert (made.charge.delta > 0) == (kind is Gaussian)
    for one in (made, *made.extremes):
        assert all(isinstance(noise, kind) for noise in one.release.noises) and one.charge == made.charge
        lost = cost((*[made.release.ladder] * len(made.release.unknowns), *one.release.drawn), "epsilon")
        assert lost.amount <= made.charge.amount and lost.delta <= made.charge.delta


def test_several_releases_choose_for_themselves() -> None:
    catalog_ = known(30, 100)
    query = f"SELECT * FROM ({USERS}), (SELECT count(*) AS rows_ FROM visits)"
    made = compile(query, catalog_, ONE, DELTA)
    assert isinstance(made, Program)
    users, rows = made.parts
    assert isinstance(users.release.noises[0], Gaussian) and isinstance(rows.release.noises[0], Laplace)
    assert users.charge.amount + rows.charge.amount == pytest.approx(10**18, abs=2)
    assert isinstance(users.sampled[0], Approximate) and users.sampled[0].epsilon == ONE / 2
    assert users.charge.delta <= units(DELTA / 2) and made.charge.delta <= units(DELTA)


def test_what_waits_is_charged_the_same_with_either_noise() -> None:
    """A released value may decide how many groups there are, and with them which noise is smaller."""
    query = "SELECT day, count(DISTINCT person) FROM visits WHERE day IN (SELECT max(d) FROM (SELECT day AS d, count(*) AS n FROM visits GROUP BY day) WHERE n > 9) GROUP BY day"
    made = compile(query, known(100, 100, declared=100), ONE, DELTA)
    assert isinstance(made, Program)
    (waits,) = [part for part in made.parts if part.waits]
    assert waits.given is not None
    few, many = (waits.given((tuple(range(n)),)) for n in (2, 60))
    assert isinstance(few.release.noises[0], Laplace) and isinstance(many.release.noises[0], Gaussian)
    assert few.charge == many.charge == waits.charge
    for one in (few, many):
        drawn = cost(one.release.drawn, "epsilon")
        assert drawn.amount <= waits.charge.amount and drawn.delta <= waits.charge.delta
    assert made.charge.amount <= units(ONE) and made.charge.delta <= units(DELTA)


def test_levels_measure_alike() -> None:
    """A ROLLUP's totals agree with their parts, so its levels have the same blocks, whichever noise each has."""
    query = "SELECT day, count(*), var_pop(spend), count(DISTINCT person) FROM visits GROUP BY ROLLUP (day)"
    made = compile(query, known(200, 1000, declared=200), ONE, DELTA)
    assert isinstance(made, Program)
    assert {type(part.release.noises[0]) for part in made.parts} == {Laplace, Gaussian}
    assert len({part.release.summands for part in made.parts}) == 1
    alone = plan(
        "SELECT day, var_pop(spend), count(DISTINCT person) FROM visits GROUP BY day", known(200, 1000, declared=200)
    )
    assert isinstance(alone.release.noises[0], Gaussian) and {summand.norm for summand in alone.release.summands} == {2}


def test_noise_beyond_all_bounds_is_no_choice() -> None:
    """At a delta that small Gaussian noise would be refused."""
    made = plan("SELECT sum(weight) FROM orders", catalog("pure").limited(2**31 - 1, None), Fraction(1, 10**8), Fraction(1, 10**30))  # fmt: skip
    assert isinstance(made.release.noises[0], Laplace) and made.charge == Charge("epsilon", units(Fraction(1, 10**8)))
