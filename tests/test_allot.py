"""How much noise a statement gets, and what it is charged."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stages import planned
from test_lemmas import beside, catalog, read, releases

from dpsql.compiler.program import Plan
from dpsql.kernel.accountant import UNIT, mu_of, units
from dpsql.kernel.mechanisms import Gaussian, cost

COLUMNS = ["quantity", "amount", "weight", "quantity * 2", "amount * quantity", "-weight"]


def plan(query: str, ledger: str, epsilon: str = "1", delta: str = "1e-8") -> Plan:
    return planned(read(query), beside(catalog(ledger), query), Fraction(epsilon), Fraction(delta))


EPSILONS = ("1e-6", "0.1", "1", "20", "1e9", "1e20")
ASKED = [
    *((query, EPSILONS[i % 6]) for i, query in enumerate(releases("shop"))),
    *product(releases("shop")[::25], EPSILONS),
]


@pytest.mark.parametrize(("query", "epsilon"), dict.fromkeys(ASKED))
def test_charge(query: str, epsilon: str) -> None:
    """The charge is what the sampled scales cost, never more than what was asked for, and hardly less."""
    for ledger in ("pure", "gdp", "zcdp"):
        made = plan(query, ledger, epsilon)
        if not made.release.noise:  # public keys alone
            assert made.charge.amount == made.charge.delta == made.epsilon == made.delta == 0
            continue
        ratios = [m.sensitivity / Fraction(m.scale) for m in made.release.noises]
        gaussian = isinstance(made.release.noises[0], Gaussian)
        lost = sum(r * r for r in ratios) if gaussian else sum(ratios)
        if ledger == "zcdp":  # the same noise as gdp's, in another currency
            same = plan(query, "gdp", epsilon)
            assert made.sampled == same.sampled and made.charge == cost(same.sampled, "rho")
            assert made.release.unknowns or made.charge.amount == units(lost / 2)
            continue
        noise = Fraction("1e-8") * (Fraction(55, 100) if made.release.threshold else 1)
        key_delta = made.release.threshold.delta if made.release.threshold else Fraction(0)
        asked = Fraction(mu_of(Fraction(epsilon), noise)) ** 2 if ledger == "gdp" else Fraction(epsilon)
        if ledger == "pure" and gaussian:  # it costs its epsilon and delta, which allow just that noise
            assert (
                made.release.covered is not None
                and made.release.drawn == (made.release.covered,)
                and made.release.covered.noise == noise
            )
            assert made.release.covered.drawn == (
                *made.release.mechanisms,
                *([made.release.threshold] if made.release.threshold else []),
            )
            allowed = Fraction(mu_of(made.release.covered.epsilon, noise)) ** 2
            assert allowed * Fraction(999_999, 1_000_000) <= lost <= allowed
            lost, key_delta = made.release.covered.epsilon, made.release.covered.delta
        if made.release.ladder is None:
            assert lost * UNIT <= made.charge.amount < lost * UNIT + 1
            assert made.charge.delta == units(key_delta)
        else:  # charged before the limits are known: what noise and choice may cost at the most
            lost += made.release.ladder.loss * len(made.release.unknowns)
            assert lost * UNIT <= made.charge.amount <= asked * UNIT + 1
            assert made.charge.delta >= units(key_delta)
        assert asked * Fraction(999_999, 1_000_000) <= lost <= asked
        assert not made.release.threshold or made.release.threshold.delta <= Fraction("0.45e-8" if gaussian else "1e-8")
        assert made.charge.delta <= units(Fraction("1e-8"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True))
def test_one_calibration_for_the_whole_vector(columns: list[str]) -> None:
    """k sums cost sqrt(k) in noise under GDP and k under pure epsilon, and counts and averages of them nothing."""
    sums = ", ".join(f"sum({c}), avg({c}), count({c})" for c in columns)
    for ledger, factor in (("gdp", math.sqrt(len(columns))), ("pure", len(columns))):
        one = plan(f"SELECT sum({columns[0]}) FROM orders", ledger)
        many = plan(f"SELECT {sums} FROM orders", ledger)
        assert len(many.release.summands) == len(columns)
        first = next(
            m
            for s, m in zip(many.release.summands, many.release.mechanisms, strict=True)
            if s == one.release.summands[0]
        )
        assert first.scale == pytest.approx(one.release.mechanisms[0].scale * factor, rel=1e-12)


def test_counts_are_shared() -> None:
    """Where x cannot be NULL its pair also counts the rows; where it can be, the rows are a block of their own."""
    assert (
        len(plan("SELECT count(*), sum(quantity), avg(quantity), count(quantity) FROM orders", "gdp").release.summands)
        == 1
    )
    assert (
        len(plan("SELECT count(*), sum(amount), avg(amount), count(amount) FROM orders", "gdp").release.summands) == 2
    )
    assert (
        len(
            plan(
                "SELECT count(*), count(quantity), count(status), count(1), count() FROM orders", "gdp"
            ).release.summands
        )
        == 2
    )


def test_sensitivity_is_the_limit_in_grid_units() -> None:
    for query, rows in (("SELECT sum(age) FROM customer", 1), ("SELECT sum(quantity) FROM orders", 16)):
        made = plan(query, "pure")
        (summand,), (mechanism,) = made.release.summands, made.release.mechanisms
        assert made.release.max_rows == rows and mechanism.sensitivity == rows * summand.weight
        assert summand.weight >= 2**20 and summand.weight % summand.axes[0].grid == 0
