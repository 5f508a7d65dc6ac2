"""The accountant against high-precision arithmetic (mpmath, 60 digits) and against Google's dp-accounting."""

import bisect
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from statistics import NormalDist

import duckdb
import mpmath
import numpy as np
import pytest
from dp_accounting.dp_event import ZCDpEvent
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.privacy_loss_distribution import from_privacy_parameters
from dp_accounting.rdp import RdpAccountant
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

import dpsql
from dpsql.kernel.accountant import (
    UNIT,
    Charge,
    Currency,
    budget_of,
    composed,
    convert,
    delta_of_mu,
    epsilon_of,
    epsilon_of_rho,
    in_words,
    loss_of,
    mu_of,
    mu_of_pure,
    rho_of,
    units,
)
from dpsql.kernel.mechanisms import Gaussian, Laplace, Threshold

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


# --- zCDP ---------------------------------------------------------------------------------------------------------------


def true_delta_of_rho(rho: mpmath.mpf, epsilon: mpmath.mpf) -> mpmath.mpf:
    """Canonne, Kamath and Steinke (2020), Proposition 12, with the order found in 60 digits."""
    with mpmath.workdps(60):
        low, high = mpmath.mpf(10) ** -40, mpmath.mpf(10) ** 40  # a - 1
        for _ in range(250):
            b = mpmath.sqrt(low * high)
            low, high = (low, b) if (2 * b + 1) * rho - epsilon - mpmath.log1p(1 / b) > 0 else (b, high)
        return mpmath.exp(low * (rho - epsilon + low * rho - mpmath.log1p(1 / low)) - mpmath.log1p(low))


@pytest.mark.parametrize(
    ("epsilon", "delta", "rho"),
    [
        ("0.1", "1e-6", 0.0003210477),
        ("0.5", "1e-6", 0.0066415244),
        ("1", "1e-5", 0.0305565952),
        ("1", "1e-6", 0.0243559704),
        ("1", "1e-9", 0.0149730577),
        ("2", "1e-6", 0.0881526884),
        ("3", "1e-9", 0.1205824289),
    ],
)
def test_rho_table(epsilon: str, delta: str, rho: float) -> None:
    assert rho_of(Fraction(epsilon), Fraction(delta)) == pytest.approx(rho, rel=3e-9, abs=1e-10)
    assert epsilon_of_rho(Fraction(rho), Fraction(delta)) == pytest.approx(float(epsilon), rel=1e-6)


@pytest.mark.parametrize("delta", ["1e-30", "1e-15", "1e-9", "1e-6", "1e-3", "0.3"])
def test_rho_is_conservative_and_tight(delta: str) -> None:
    """From epsilon 1e-6 to 1e20: no more than delta, and a rho that is a little larger costs more."""
    for epsilon in ["1e-6", "3e-5", "1e-3", "0.1", "1", "7", "40", "1e3", "1e6", "3e9", "1e14", "1e20"]:
        with mpmath.workdps(60):
            e, d = precise(Fraction(epsilon)), precise(Fraction(delta))
            rho = precise(rho_of(Fraction(epsilon), Fraction(delta)))
            assert true_delta_of_rho(rho, e) <= d, (epsilon, delta)
            assert true_delta_of_rho(rho * (1 + mpmath.mpf("1e-6")), e) > d, (epsilon, delta)


@pytest.mark.parametrize("rho", [f"{digit}e{n}" for n in range(-14, 22, 3) for digit in (1, 4)])
def test_epsilon_of_rho_is_an_upper_bound_and_tight(rho: str) -> None:
    for delta in ["1e-15", "1e-6", "1e-3"]:
        with mpmath.workdps(60):
            epsilon = precise(epsilon_of_rho(Fraction(rho), Fraction(delta)))
            assert true_delta_of_rho(precise(Fraction(rho)), epsilon) <= precise(Fraction(delta))
            less = epsilon * (1 - mpmath.mpf("1e-5"))
            assert epsilon == 0 or true_delta_of_rho(precise(Fraction(rho)), less) > precise(Fraction(delta))


@pytest.mark.parametrize("rho", [0.001, 0.05, 0.5, 4.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-6])
def test_rho_agrees_with_google(rho: float, delta: float) -> None:
    """Their Renyi accountant takes the same infimum over the orders that it is given."""
    orders = 1 + np.geomspace(1e-3, 1e5, 20_000)
    theirs = RdpAccountant(orders).compose(ZCDpEvent(rho)).get_epsilon(delta)
    ours = epsilon_of_rho(Fraction(rho), Fraction(delta))
    assert ours <= theirs * (1 + 1e-8) and ours == pytest.approx(theirs, rel=1e-5)


def test_a_zcdp_budget_is_within_what_it_promises() -> None:
    budget = budget_of(Fraction(2), Fraction("1e-6"), "zcdp")
    assert budget.currency == "rho" and budget.delta == 45 * UNIT // 10**8
    loss = in_words(budget, Fraction("1e-6"))
    assert loss.epsilon == pytest.approx(2, rel=1e-6) and loss.delta == pytest.approx(1e-6)


# --- conversions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "mu"), [("0.01", 0.0125331), ("0.1", 0.125309), ("0.5", 0.623893), ("1", 1.232035), ("2", 2.357961)]
)
def test_mu_of_pure(epsilon: str, mu: float) -> None:
    assert mu_of_pure(Fraction(epsilon)) == pytest.approx(mu, rel=2e-6)


def test_mu_of_pure_is_conservative_and_tight() -> None:
    for epsilon in [f"{digit}e{n}" for n in range(-9, 21) for digit in (1, 3)] + ["0.000999999", "37", "710"]:
        with mpmath.workdps(60):
            mu, e = precise(mu_of_pure(Fraction(epsilon))), precise(Fraction(epsilon))
            odds = -e - mpmath.log1p(mpmath.exp(-e))
            assert mpmath.log(mpmath.ncdf(-mu / 2)) <= odds, epsilon
            assert mpmath.log(mpmath.ncdf(-mu / 2 * (1 - mpmath.mpf("1e-6")))) > odds, epsilon


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 12.0])
def test_pure_is_gdp(epsilon: float) -> None:
    """The trade-off curve of an epsilon-DP coin lies above that of mu, at every level; so does bounded range's, for each shift."""
    normal, levels = NormalDist(), [i / 500 for i in range(1, 500)]

    def curve(mu: float, level: float) -> float:
        return normal.cdf(normal.inv_cdf(1 - level) - mu)

    mu = mu_of_pure(Fraction(epsilon))
    for level in levels:
        coin = max(0.0, 1 - math.exp(epsilon) * level, math.exp(-epsilon) * (1 - level))
        assert coin >= curve(mu, level) - 1e-12
    half = math.sqrt(convert("bounded range", Fraction(epsilon), "mu^2"))
    for shift in [epsilon * i / 200 for i in range(1, 200)]:
        right = math.expm1(shift - epsilon) / (math.exp(shift - epsilon) - math.exp(shift))
        assert normal.inv_cdf(right * math.exp(shift)) - normal.inv_cdf(right) <= half + 1e-9


def test_conversions() -> None:
    half = Fraction(1, 2)
    assert convert("mu-GDP", half, "mu^2") == half and convert("mu-GDP", half, "rho") == half / 2
    assert convert("epsilon-DP", half, "epsilon") == half and convert("epsilon-DP", half, "rho") == Fraction(1, 8)
    assert convert("bounded range", half, "epsilon") == half and convert("bounded range", half, "rho") == Fraction(
        1, 32
    )
    assert math.sqrt(convert("bounded range", Fraction(1, 10), "mu^2")) == pytest.approx(0.0626629, rel=1e-4)
    assert math.sqrt(convert("bounded range", Fraction(1), "mu^2")) == pytest.approx(0.623893, rel=1e-5)
    with pytest.raises(ValueError):
        convert("mu-GDP", half, "epsilon")


# --- composition and groups ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "count", "fits"), [("0.05", 26, True), ("0.05", 27, False), ("0.01", 562, True), ("0.01", 563, False)]
)
def test_optimal_composition(epsilon: str, count: int, fits: bool) -> None:
    assert (composed(Fraction(epsilon), count, Fraction("1e-6")) <= 1) == fits


@pytest.mark.parametrize(("epsilon", "count"), [("0.05", 26), ("0.2", 30), ("1", 5)])
def test_composition_agrees_with_google(epsilon: str, count: int) -> None:
    """Their privacy loss distribution, rounded up to a grid of 1e-4."""
    one = from_privacy_parameters(DifferentialPrivacyParameters(float(epsilon), 0), value_discretization_interval=1e-4)
    theirs = one.self_compose(count).get_epsilon_for_delta(1e-6)
    ours = composed(Fraction(epsilon), count, Fraction("1e-6"))
    assert ours == pytest.approx(theirs, rel=1e-3)


@settings(deadline=None, max_examples=40)
@given(st.decimals("1e-6", "1e20", allow_nan=False).map(Fraction), st.integers(1, 10**7))
def test_composition_is_never_worse_than_the_sum(epsilon: Fraction, count: int) -> None:
    assert 0 <= composed(epsilon, count, Fraction("1e-9")) <= count * float(epsilon) * (1 + 1e-8)


def test_groups() -> None:
    """k persons: k epsilon, k mu, k^2 rho; and the delta of a threshold from its own tail."""
    charge = Charge("mu^2", UNIT // 100, 0)
    assert loss_of(charge, Fraction("1e-6"), 3).epsilon == epsilon_of(Fraction(9, 100), Fraction("1e-6"))
    rho = Charge("rho", UNIT // 100, 0)
    assert loss_of(rho, Fraction("1e-6"), 3).epsilon == epsilon_of_rho(Fraction(9, 100), Fraction("1e-6"))
    assert loss_of(Charge("epsilon", UNIT // 10, 0), Fraction(0), 3).epsilon == pytest.approx(0.3)
    for noise in (Gaussian(5.0, 1), Laplace(5.0, 1)):
        made = Threshold(30, 2, noise)
        for persons in (1, 3, 29, 30, 31, 100):
            draws = [pmf(noise, k) for k in range(30 - persons, 400)] if persons < 400 else []
            tail = min(math.fsum(draws), 1.0)
            truth = -math.expm1(2 * persons * math.log1p(-tail)) if tail < 1 else 1.0
            assert truth * (1 - 1e-9) <= made.delta_for(persons) <= 1
            if persons < 30:
                assert float(made.delta_for(persons)) == pytest.approx(truth, rel=1e-6)
    assert Threshold(30, 2, Laplace(5.0, 1)).delta_for(40) == 1


def pmf(noise: Gaussian | Laplace, k: int) -> float:
    if isinstance(noise, Laplace):
        q = math.exp(-1 / noise.scale)
        return (1 - q) / (1 + q) * q ** abs(k)
    root = noise.scale * math.sqrt(2)
    return (math.erfc((abs(k) - 0.5) / root) - math.erfc((abs(k) + 0.5) / root)) / 2


# --- how many counts fit in (1, 1e-6), all of delta for the noise ----------------------------------------------------------

EACH = (0.1, 0.05, 0.02, 0.01)
DELTA = Fraction("1e-6")


def fit(within: Callable[[int], bool]) -> int:
    return bisect.bisect_left(range(5000), True, lo=1, key=lambda count: not within(count)) - 1


def bounded_range_delta(e: float, count: int) -> float:
    """Exact, for the worst shift t that all of them have in common."""
    worst, j = 0.0, np.arange(count + 1)
    for t in np.linspace(0.3 * e, 0.7 * e, 41):
        q = math.expm1(t - e) / (math.exp(t - e) - math.exp(t))
        p = q * math.exp(t)
        logs = (
            gammaln(count + 1)
            - gammaln(j + 1)
            - gammaln(count - j + 1)
            + j * math.log(p)
            + (count - j) * math.log1p(-p)
        )
        loss = count * (t - e) + j * e
        worst = max(worst, float(np.sum(np.exp(logs) * -np.expm1(np.minimum(1 - loss, 0)))))
    return worst


@pytest.mark.parametrize(
    ("accountant", "counts"),
    [
        ("basic", (10, 20, 50, 100)),
        ("Dwork, Rothblum and Vadhan", (10, 20, 84, 337)),
        ("KOV, closed form", (10, 20, 98, 393)),
        ("Laplace, zCDP, old conversion", (3, 13, 87, 349)),
        ("Laplace, zCDP", (4, 19, 121, 487)),
        ("KOV, exact", (10, 26, 142, 562)),
        ("Gaussian, zCDP", (9, 38, 243, 974)),
        ("Gaussian, GDP", (11, 44, 280, 1120)),
        ("bounded range, zCDP", (19, 77, 487, 1948)),
        ("bounded range, exact", (22, 90, 560, 2241)),  # at 2242 the worst shift, 0.515 of epsilon, costs 1.0016e-6
    ],
)
def test_how_many_counts_fit(accountant: str, counts: tuple[int, ...]) -> None:
    """Counts with the deviation of Laplace noise at each epsilon; choices at that epsilon."""
    log = -math.log(1e-6)
    rho = math.floor(Fraction(rho_of(Fraction(1), DELTA)) * UNIT)
    mu2 = math.floor(Fraction(mu_of(Fraction(1), DELTA)) ** 2 * UNIT)
    for e, expected in zip(EACH, counts, strict=True):
        exact, gaussian = Fraction(str(e)), Gaussian(Laplace(1 / e, 1).deviation, 1)
        drift = e * math.expm1(e) / (math.exp(e) + 1)
        found = {
            "basic": lambda exact=exact: UNIT // units(exact),
            "Dwork, Rothblum and Vadhan": lambda e=e: fit(
                lambda k: min(k * e - 1e-9, math.sqrt(2 * k * log) * e + k * e * math.expm1(e)) <= 1
            ),
            "KOV, closed form": lambda e=e, drift=drift: fit(
                lambda k: (
                    min(
                        k * e - 1e-9,
                        k * drift + e * math.sqrt(2 * k * min(log, math.log(math.e + math.sqrt(k) * e / 1e-6))),
                    )
                    <= 1
                )
            ),
            "Laplace, zCDP, old conversion": lambda e=e: fit(
                lambda k: k * e * e / 2 + 2 * math.sqrt(k * e * e / 2 * log) <= 1
            ),
            "Laplace, zCDP": lambda exact=exact: rho // units(convert("epsilon-DP", exact, "rho")),
            "KOV, exact": lambda exact=exact: fit(lambda k: composed(exact, k, DELTA) <= 1 + 1e-8),
            "Gaussian, zCDP": lambda gaussian=gaussian: rho // units(gaussian.cost("rho")),
            "Gaussian, GDP": lambda gaussian=gaussian: mu2 // units(gaussian.cost("mu^2")),
            "bounded range, zCDP": lambda exact=exact: rho // units(convert("bounded range", exact, "rho")),
            "bounded range, exact": lambda e=e: fit(lambda k: bounded_range_delta(e, k) <= 1e-6),
        }[accountant]()
        assert found == expected, e


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
    mechanisms = Gaussian.calibrate(blocks, Fraction(mu) ** 2)
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


@pytest.mark.parametrize("currency", ["epsilon", "rho", "mu^2"])
def test_what_is_unspent_has_no_delta(currency: Currency) -> None:
    loss = in_words(Charge(currency, 0, 0), Fraction(1, 10**6))
    assert (loss.epsilon, loss.delta, loss.amount) == (0, 0, 0)
