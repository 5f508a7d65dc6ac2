"""Loss, and its conversion to (epsilon, delta). Pure arithmetic: no state, no clock, no data.

A ledger adds up charges in one currency: `epsilon` in a pure ledger, `mu^2` in a GDP ledger, `rho` in a zCDP ledger;
deltas are added beside it. (A pure ledger is one of pure epsilons as long as nothing asks for a delta.) Charges are integers of 1e-18, rounded up; budgets are rounded down.

Needs:   each release is (epsilon, delta)-DP (pure), or mu-GDP or rho-zCDP up to its delta, with the amount and the delta as
         charged, whatever was released before
Gives:   while the sums stay within the budget, all releases together are (epsilon_B, delta_B)-DP
Proof:   basic composition (pure; it holds for parameters that are chosen as one goes, Rogers et al. 2016) and the fully adaptive filters of GDP (Smith and Thakurta 2022) and of zCDP (Feldman and
         Zrnic 2021): parameters may be chosen after seeing earlier answers as long as the running sum is kept within a
         bound that was fixed before. The budget mu_B (rho_B) is the largest for which delta(mu_B, epsilon_B) <= delta_B -
         reserve; the reserve is the budget for deltas, which add to the rest (`Threshold`).
         Conversions: mu-GDP is (mu^2/2)-zCDP, as the Gaussian mechanism is and the rest are its post-processing. An
         epsilon-DP release is post-processing of a coin that is right with odds e^epsilon: its trade-off curve is made of
         the two chords of G_mu where Phi(-mu/2) = 1/(1 + e^epsilon), and G_mu is convex, so it is mu-GDP; and it is
         epsilon^2/2-zCDP (Bun and Steinke 2016). Where the log-ratio of any two outputs moves by at most epsilon
         (bounded range), the two coins' log-odds differ by epsilon. Phi^-1 of the logistic function is concave above zero
         and odd (van Zwet 1964), so mu is largest where they are +-epsilon/2: that of an epsilon/2-DP coin. And it is
         epsilon^2/8-zCDP (Cesar and Rogers 2021)
Checked: test_accountant, against Google's dp-accounting and high-precision arithmetic
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from statistics import NormalDist
from typing import Literal, TypeVar

UNIT = 10**18
# Of a GDP budget's delta this part is kept for the thresholds of private keys, which are charged in delta.
RESERVED_FOR_KEYS = Fraction(45, 100)
# What float arithmetic below may err by, many times over; every mu is reduced by it.
SLACK = 1e-9

Accounting = Literal["pure", "gdp", "zcdp"]
Currency = Literal["epsilon", "mu^2", "rho"]
Guarantee = Literal["epsilon-DP", "bounded range", "mu-GDP"]
CURRENCIES: dict[Accounting, Currency] = {"pure": "epsilon", "gdp": "mu^2", "zcdp": "rho"}
Number = TypeVar("Number", float, Fraction)


def units(exact: Fraction) -> int:
    """Units of 1e-18, rounded up: what is charged is never less than what is lost."""
    return math.ceil(exact * UNIT)


def above_zero(number: Number) -> Number:
    """A number of a ledger's record: one that is not above zero, or not finite, would make its charge smaller."""
    if not 0 < number < math.inf:
        raise ValueError("a scale, a rate or a loss is not above zero")
    return number


@dataclass(frozen=True)
class Charge:
    """What is written to the ledger, in units of 1e-18."""

    currency: Currency
    amount: int
    delta: int = 0


@dataclass(frozen=True)
class Loss:
    """A charge or a balance in words that people know: the guarantee (epsilon, delta) beside the ledger's amount."""

    epsilon: float
    delta: float
    currency: Currency
    amount: float


def log_phi(x: float) -> float:
    """log of the standard normal distribution function, accurate far into the lower tail."""
    if x > -30:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    if x < -1e100:
        return -math.inf
    square = x * x  # asymptotic series; the next term is below 1e-12 relative here
    tail = -1 / square + 3 / square**2 - 15 / square**3 + 105 / square**4
    return -square / 2 - math.log(-x) - math.log(2 * math.pi) / 2 + math.log1p(tail)


def delta_of_mu(mu: float, epsilon: float) -> float:
    """The smallest delta for which mu-GDP is (epsilon, delta)-DP (Balle and Wang 2018), rounded up.

    >>> round(delta_of_mu(1 / 4.22467888933, 1.0) * 1e6, 6)
    1.0
    """
    high = log_phi(mu / 2 - epsilon / mu)
    low = epsilon + log_phi(-mu / 2 - epsilon / mu)
    rounding = 2**-50 * (1 + abs(high) + abs(low))  # what the difference below may have lost by cancellation
    return math.exp(high) * min(rounding - math.expm1(min(low - high, 0.0)), 1.0)


@lru_cache(maxsize=256)
def mu_of(epsilon: Fraction, delta: Fraction) -> float:
    """The largest mu, rounded down, for which mu-GDP is (epsilon, delta)-DP.

    Above epsilon 1e6 the difference in `delta_of_mu` cancels; there the first term alone gives a smaller, valid mu:
    Phi(mu/2 - epsilon/mu) <= delta solved for mu, with z = Phi^-1(1 - delta).

    >>> round(mu_of(Fraction(1), Fraction(1, 10**6)) ** 2, 8)
    0.05602896
    """
    e, d = float(epsilon), float(delta)
    if e > 1e6:
        z = -NormalDist().inv_cdf(d)
        return 2 * e / (z + math.sqrt(z * z + 2 * e)) * (1 - SLACK)
    low, high = 1e-12 * min(e, d), 2 * math.sqrt(2 * e) + 40
    for _ in range(200):
        middle = math.sqrt(low * high)
        if delta_of_mu(middle, e) <= d:
            low = middle
        else:
            high = middle
    return low * (1 - SLACK)


def epsilon_of(mu2: Fraction, delta: Fraction) -> float:
    """The epsilon that goes with mu-GDP at this delta, rounded up; for display."""
    mu = math.sqrt(mu2)
    if mu == 0 or delta_of_mu(mu, 0.0) <= delta:
        return 0.0
    z = -NormalDist().inv_cdf(float(delta))
    if mu > 1e3:  # the difference cancels; the first term alone is an upper bound
        return (mu * mu / 2 + mu * max(z, 0.0)) * (1 + SLACK)
    low, high = 0.0, mu * mu / 2 + mu * (z + 1) + 1e-12
    for _ in range(200):
        middle = (low + high) / 2
        if delta_of_mu(mu, middle) <= delta:
            high = middle
        else:
            low = middle
    return high * (1 + SLACK)


def mu_of_pure(epsilon: Fraction | float) -> float:
    """The mu of an epsilon-DP release, rounded up: -2 Phi^-1(1 / (1 + e^epsilon)).

    Below 1e-3 by its tangent, which lies above since the curve is concave.

    >>> round(mu_of_pure(Fraction(1)), 6)
    1.232035
    """
    e = float(epsilon)
    if e < 1e-3:
        return math.sqrt(math.pi / 2) * e * (1 + SLACK)
    wanted = -(e + math.log1p(math.exp(-e)))
    low, high = 0.0, 2 * math.sqrt(2 * e) + 1
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if log_phi(-middle / 2) <= wanted else (middle, high)
    return high * (1 + SLACK)


def delta_of_rho(rho: float, epsilon: float) -> float:
    """A delta for which rho-zCDP is (epsilon, delta)-DP: the infimum over orders a of Canonne, Kamath and Steinke 2020.

    Every order gives a valid delta, so it does no harm that the best one, where the derivative is zero, is not met exactly.
    """
    low, high = -100.0, 100.0  # log(a - 1)
    for _ in range(64):
        middle = (low + high) / 2
        b = math.exp(middle)
        low, high = (low, middle) if (2 * b + 1) * rho - epsilon - math.log1p(1 / b) > 0 else (middle, high)
    b = math.exp(low)
    return math.exp(min(b * (rho - epsilon + b * rho - math.log1p(1 / b)) - math.log1p(b), 0.0))


def rho_of(epsilon: Fraction, delta: Fraction) -> float:
    """The largest rho, rounded down, for which rho-zCDP is (epsilon, delta)-DP.

    >>> round(rho_of(Fraction(1), Fraction(1, 10**6)), 10)
    0.0243559704
    """
    e, d = float(epsilon), float(delta)
    low, high = 1e-12 * min(e, e * e), e + 50
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if delta_of_rho(middle, e) <= d else (low, middle)
    return low * (1 - SLACK)


def epsilon_of_rho(rho: Fraction, delta: Fraction) -> float:
    """The epsilon that goes with rho-zCDP at this delta, rounded up; for display.

    >>> round(epsilon_of_rho(Fraction(1, 2), Fraction(1, 10**6)), 5)
    5.22153
    """
    r, d = float(rho), float(delta)
    if r == 0 or delta_of_rho(r, 0.0) <= d:
        return 0.0
    low, high = 0.0, r + 2 * math.sqrt(r * -math.log(d))
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of_rho(r, middle) <= d else (middle, high)
    return high * (1 + SLACK)


def convert(guarantee: Guarantee, amount: Fraction, currency: Currency) -> Fraction:
    """What a release costs in a ledger's currency, rounded up; `amount` is its epsilon or its mu^2."""
    if guarantee == "mu-GDP":
        if currency == "epsilon":
            raise ValueError("Gaussian noise has no pure epsilon")
        return amount if currency == "mu^2" else amount / 2
    alone = amount if guarantee == "epsilon-DP" else amount / 2
    match currency:
        case "epsilon":
            return amount
        case "mu^2":
            return Fraction(mu_of_pure(alone)) ** 2
        case "rho":
            return alone * alone / 2


def composed(epsilon: Fraction, count: int, delta: Fraction) -> float:
    """The epsilon of `count` releases that are epsilon-DP and fixed beforehand (Kairouz, Oh and Viswanath 2015), rounded up.

    For display. With queries that depend on earlier answers only the ledger's own sum is a promise.

    >>> round(composed(Fraction(1, 100), 562, Fraction(1, 10**6)), 3)
    0.999
    """
    e, d = float(epsilon), float(delta)
    if count > 2000 or e > 30:  # too many terms; zCDP is close, and no worse than either
        return min(count * e, epsilon_of_rho(count * epsilon * epsilon / 2, delta))
    right = -math.log1p(math.exp(-e))
    chances = [
        (
            (count - 2 * j) * e,
            math.exp(math.lgamma(count + 1) - math.lgamma(j + 1) - math.lgamma(count - j + 1) + count * right - j * e),
        )
        for j in range(count // 2 + 1)
    ]
    low, high = 0.0, count * e
    for _ in range(60):
        middle = (low + high) / 2
        lost = math.fsum(-p * math.expm1(middle - loss) for loss, p in chances if loss > middle)
        low, high = (low, middle) if lost * (1 + SLACK) <= d else (middle, high)
    return high * (1 + SLACK)


@cache
def budget_of(epsilon: Fraction, delta: Fraction, accounting: Accounting) -> Charge:
    """A budget in its ledger's currency, rounded down."""
    if accounting == "pure":
        return Charge("epsilon", math.floor(epsilon * UNIT), math.floor(delta * UNIT))
    reserve = delta * RESERVED_FOR_KEYS
    if accounting == "gdp":
        amount = Fraction(mu_of(epsilon, delta - reserve)) ** 2
    else:
        amount = Fraction(rho_of(epsilon, delta - reserve))
    return Charge(CURRENCIES[accounting], math.floor(amount * UNIT), math.floor(reserve * UNIT))


@cache
def most_of(epsilon: Fraction, delta: Fraction, accounting: Accounting) -> int:
    """The largest charge of one query that asks for no more than (epsilon, delta)."""
    if accounting == "pure":
        return units(epsilon)
    return units(convert("mu-GDP", Fraction(mu_of(epsilon, delta)) ** 2, CURRENCIES[accounting]))


def loss_of(charge: Charge, noise: Fraction, persons: int = 1, more: Fraction = Fraction(0)) -> Loss:
    """A charge as (epsilon, delta), of which the delta `noise` is for the noise and the charge's own for thresholds.

    For several persons who come or go together (group privacy): k epsilon, k mu, k^2 rho. The charge's delta must then be
    that of as many persons (`Threshold.delta_for`), and `more` what Gaussian noise costs beyond k epsilon (`Approximate`).
    """
    amount = Fraction(charge.amount, UNIT) * (persons if charge.currency == "epsilon" else persons**2) + more
    spent = Fraction(charge.delta, UNIT)
    if charge.currency == "epsilon":
        return Loss(float(amount), float(min(spent, Fraction(1))), charge.currency, float(amount))
    epsilon = (epsilon_of if charge.currency == "mu^2" else epsilon_of_rho)(amount, noise)
    return Loss(epsilon, float(min(noise + spent, Fraction(1))), charge.currency, float(amount))


def in_words(charge: Charge, delta: Fraction, persons: int = 1, more: Fraction = Fraction(0)) -> Loss:
    """A balance of a ledger as (epsilon, delta); `delta` is the budget's, of which the reserve is kept apart."""
    if not charge.amount and not charge.delta:
        return Loss(0.0, 0.0, charge.currency, 0.0)
    return loss_of(charge, delta * (1 - RESERVED_FOR_KEYS), persons, more)


def roughly(count: int) -> str:
    """A capacity in words: three digits are more than anyone can use.

    >>> roughly(1120), roughly(123456), roughly(7), roughly(10**12)
    ('about 1,120', 'about 123,000', '7', 'more than a million')
    """
    if count >= 10**6:
        return "more than a million"
    return (
        str(count) if count < 100 else f"about {count // 10 ** (len(str(count)) - 3) * 10 ** (len(str(count)) - 3):,}"
    )
