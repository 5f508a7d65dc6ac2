"""The accountant against high-precision arithmetic (mpmath, 60 digits) and against Google's dp-accounting."""

import math
from collections.abc import Iterator
from fractions import Fraction

import duckdb
import mpmath
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dpsql
from dpsql.accountant import UNIT, Charge, budget_of, delta_of_mu, epsilon_of, in_words, mu_of, units
from dpsql.mechanisms import Gaussian, Laplace

DELTAS = [f"1e-{n}" for n in range(3, 16)]
EPSILONS = [f"{digit}e{n}" for n in range(-6, 4) for digit in (1, 2.5, 6)] + ["1e4"]
EXPENSIVE = [f"{digit}e{n}" for n in range(4, 21) for digit in (1, 3)]
POLICY = {
    "dataset": {"id": "shop"},
    "budget": {"epsilon": 1.0},
    "tables": {
        "visits": {
            "person": "person",
            "max_rows_contributed": 1,
            "columns": {"spend": {"between": [0, 10]}, "age": {"between": [0, 120]}},
        }
    },
}


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE visits AS SELECT i::INT AS person, 5 AS spend, 40 AS age FROM range(9) t(i)")
        yield connection


@pytest.fixture
def db(database: duckdb.DuckDBPyConnection) -> Iterator[dpsql.Session]:
    with dpsql.connect(database, policy=POLICY, ledger=":memory:") as session:
        yield session


def precise(value: Fraction | float) -> mpmath.mpf:
    exact = Fraction(value)
    return mpmath.mpf(exact.numerator) / exact.denominator


def true_delta(mu: mpmath.mpf, epsilon: mpmath.mpf) -> mpmath.mpf:
    """Balle and Wang (2018), in 60 digits; at epsilon 1e20 the exponents take 20 of them."""
    with mpmath.workdps(60):
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def check_mu(epsilon: str, delta: str, tolerance: float) -> None:
    """The mu that is used costs no more than delta, and a mu that is larger by the tolerance costs more."""
    with mpmath.workdps(60):
        e, d = precise(Fraction(epsilon)), precise(Fraction(delta))
        mu = precise(mu_of(Fraction(epsilon), Fraction(delta)))
        excess = true_delta(mu, e) / d - 1
        assert excess <= 0, f"epsilon {epsilon}, delta {delta}: true delta is too large by {mpmath.nstr(excess, 3)}"
        assert true_delta(mu * (1 + tolerance), e) > d, f"epsilon {epsilon}, delta {delta}: noise is wasted"


@pytest.mark.parametrize(
    ("epsilon", "delta", "sigma", "mu2"),
    [
        ("0.1", "1e-6", 36.3046904262, 0.00075870776),
        ("0.5", "1e-6", 8.05761848073, 0.0154023362),
        ("1", "1e-5", 3.73063163482, 0.0718514047),
        ("1", "1e-6", 4.22467888933, 0.0560289638),
        ("1", "1e-9", 5.49526615724, 0.0331148305),
        ("2", "1e-6", 2.23047627119, 0.2010040394),
        ("3", "1e-9", 1.94372426351, 0.2646858276),
    ],
)
def test_sigma_table(epsilon: str, delta: str, sigma: float, mu2: float) -> None:
    mu = mu_of(Fraction(epsilon), Fraction(delta))
    assert 1 / mu == pytest.approx(sigma, rel=2e-9)
    assert mu**2 == pytest.approx(mu2, rel=1e-8)


@pytest.mark.parametrize("delta", DELTAS)
def test_mu_is_conservative_and_tight(delta: str) -> None:
    for epsilon in EPSILONS:
        check_mu(epsilon, delta, 1e-6)


@pytest.mark.parametrize("epsilon", ["1e-9", "2e-9", "1e-8", "7e-8", "1e-7", "1e-6", "1e-5", "1e-4"])
def test_mu_is_conservative_where_queries_are_smallest(epsilon: str) -> None:
    """A query may ask for epsilon from 1e-9 and delta from 1e-30: the two terms of delta then agree in many digits."""
    for delta in ["1e-30", "3e-28", "1e-25", "1e-20", "5e-17", "1e-15", "1e-9", "0.001", "0.5"]:
        check_mu(epsilon, delta, 1e-3)


@pytest.mark.parametrize("delta", ["1e-15", "1e-9", "1e-6", "1e-3", "0.3"])
def test_mu_is_conservative_at_huge_epsilon(delta: str) -> None:
    for epsilon in EXPENSIVE:
        check_mu(epsilon, delta, 1e-5)


def test_delta_against_high_precision() -> None:
    for epsilon in EPSILONS:
        for delta in DELTAS:
            mu = mu_of(Fraction(epsilon), Fraction(delta))
            with mpmath.workdps(60):
                true = true_delta(precise(mu), precise(float(epsilon)))
                assert abs(delta_of_mu(mu, float(epsilon)) / true - 1) < 1e-6, (epsilon, delta)


@pytest.mark.parametrize("mu2", [f"{digit}e{n}" for n in range(-12, 6) for digit in (1, 4)])
def test_epsilon_is_an_upper_bound_and_tight(mu2: str) -> None:
    check_epsilon(mu2)


@pytest.mark.parametrize("mu2", ["1e6", "2e6", "7e8", "3e13", "3.4393233568050926e19", "1.9038486065742696e26", "7e33"])
def test_epsilon_is_an_upper_bound_where_mu_is_huge(mu2: str) -> None:
    check_epsilon(mu2)


def check_epsilon(mu2: str) -> None:
    for delta in ["1e-15", "1e-9", "2.965097709755726e-09", "1e-6", "0.00013489725936259223", "1e-3"]:
        with mpmath.workdps(100):
            mu, d = mpmath.sqrt(precise(Fraction(mu2))), precise(Fraction(delta))
            epsilon = precise(epsilon_of(Fraction(mu2), Fraction(delta)))
            assert true_delta(mu, epsilon) <= d, f"mu^2 {mu2}, delta {delta}: the bound is below the loss"
            assert epsilon == 0 or true_delta(mu, epsilon * (1 - mpmath.mpf("1e-5"))) > d, (mu2, delta)


def test_nothing_spent_is_epsilon_zero() -> None:
    assert epsilon_of(Fraction(0), Fraction(1, 10**6)) == 0


@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 4.22467888933, 30.0, 1000.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-6, 1e-3])
def test_epsilon_agrees_with_google(sigma: float, delta: float) -> None:
    ours = epsilon_of(1 / Fraction(sigma) ** 2, Fraction(delta))
    assert ours == pytest.approx(get_epsilon_gaussian(sigma, delta), rel=1e-7, abs=1e-9)


def test_charges_round_up_and_budgets_round_down() -> None:
    third = Fraction(1, 3)
    assert (units(third), units(Fraction(7, UNIT)), units(Fraction(1, 10 * UNIT))) == (333333333333333334, 7, 1)
    assert budget_of(third, third, "pure") == Charge("epsilon", 333333333333333333, 333333333333333333)


@pytest.mark.parametrize(("epsilon", "delta"), [("1", "1e-6"), ("0.01", "1e-9"), ("10", "1e-5"), ("1e20", "1e-9")])
def test_a_gdp_budget_is_within_what_it_promises(epsilon: str, delta: str) -> None:
    """What the ledger allows, noise and thresholds together, costs at most (epsilon, delta), and nearly that."""
    budget = budget_of(Fraction(epsilon), Fraction(delta), "gdp")
    with mpmath.workdps(60):
        mu, e = mpmath.sqrt(precise(Fraction(budget.amount, UNIT))), precise(Fraction(epsilon))
        reserve = precise(Fraction(budget.delta, UNIT))
        assert reserve > 0
        assert true_delta(mu, e) + reserve <= precise(Fraction(delta))
        assert true_delta(mu * (1 + mpmath.mpf("1e-6")), e) + reserve > precise(Fraction(delta))


def test_in_words_pure() -> None:
    loss = in_words(Charge("epsilon", UNIT // 4, UNIT // 8), Fraction(1, 2))
    assert (loss.epsilon, loss.delta, loss.currency, loss.amount) == (0.25, 0.125, "epsilon", 0.25)


def test_in_words_gdp() -> None:
    """A budget read back is the budget; half of its mu^2 is less than its epsilon and more than half of it."""
    epsilon, delta = Fraction(2), Fraction(1, 10**6)
    whole = budget_of(epsilon, delta, "gdp")
    loss = in_words(whole, delta)
    assert loss.epsilon == pytest.approx(2, rel=1e-6)
    assert loss.delta == pytest.approx(1e-6, rel=1e-9)
    assert loss.amount == pytest.approx(float(Fraction(whole.amount, UNIT)))
    half = in_words(Charge("mu^2", whole.amount // 2), delta)
    assert 1 < half.epsilon < 2
    assert half.delta == pytest.approx(0.55e-6)


@pytest.mark.parametrize(("epsilon", "counts"), [(0.1, 11), (0.05, 44), (0.02, 280), (0.01, 1120)])
def test_how_many_counts_fit(epsilon: float, counts: int) -> None:
    """Counts with the deviation that Laplace noise of `epsilon` has, in (1, 1e-6) with all of delta for the noise."""
    deviation = Laplace(1 / epsilon, 1).deviation
    budget = math.floor(Fraction(mu_of(Fraction(1), Fraction(1, 10**6))) ** 2 * UNIT)
    assert budget // units(Gaussian(deviation, 1).loss) == counts


BLOCKS = st.lists(st.integers(1, 2**62), min_size=1, max_size=12)


@settings(deadline=None)
@given(BLOCKS, st.decimals("1e-9", "1e21", allow_nan=False).map(Fraction))
def test_laplace_uses_all_of_epsilon_and_no_more(blocks: list[int], epsilon: Fraction) -> None:
    mechanisms = Laplace.calibrate(blocks, epsilon)
    loss = sum(m.sensitivity / Fraction(m.scale) for m in mechanisms)
    assert [m.sensitivity for m in mechanisms] == blocks
    assert epsilon * (1 - Fraction(1, 10**6)) <= loss <= epsilon
    assert loss == sum(m.loss for m in mechanisms)


@settings(deadline=None)
@given(BLOCKS, st.floats(1e-12, 1e11))
def test_gaussian_uses_all_of_mu_and_no_more(blocks: list[int], mu: float) -> None:
    mechanisms = Gaussian.calibrate(blocks, mu)
    loss = sum((m.sensitivity / Fraction(m.scale)) ** 2 for m in mechanisms)
    assert [m.sensitivity for m in mechanisms] == blocks
    assert Fraction(mu) ** 2 * (1 - Fraction(1, 10**6)) <= loss <= Fraction(mu) ** 2
    assert loss == sum(m.loss for m in mechanisms)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) FROM visits",
        "SELECT sum(spend), avg(age) FROM visits",
        "SELECT count(*), sum(spend), avg(age) FROM visits",
    ],
)
def test_ten_queries_of_a_tenth_fit_and_no_eleventh(db: dpsql.Session, query: str) -> None:
    for _ in range(10):
        db.sql(query, epsilon=0.1)
    assert db.budget.left.amount <= 1e-9
    with pytest.raises(dpsql.BudgetExhausted):
        db.sql(query, epsilon=0.1)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(epsilon=st.integers(10**6, 10**18), aggregates=st.integers(1, 3))
def test_a_plan_costs_no_more_than_was_asked_for(db: dpsql.Session, epsilon: int, aggregates: int) -> None:
    """What is charged for a plan of several blocks is what was asked for, to the last of the ledger's units."""
    columns = ", ".join(("count(*)", "sum(spend)", "avg(age)")[:aggregates])
    plan = db._plan(f"SELECT {columns} FROM visits", epsilon / 10**15, None)
    asked = Fraction(str(epsilon / 10**15))
    assert asked * (1 - Fraction(1, 10**6)) <= Fraction(plan.charge.amount, UNIT) <= Fraction(units(asked), UNIT)
