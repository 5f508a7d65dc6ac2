"""Loss, and its conversion to (epsilon, delta). Pure arithmetic: no state, no clock, no data.

A ledger adds up charges in one currency: `epsilon` in a pure ledger, `mu^2` in a GDP ledger; deltas are added beside
it. Charges are integers of 1e-18, rounded up; budgets are rounded down.

Needs:   each release is epsilon-DP (pure) or mu-GDP with mu^2 and delta as charged, whatever was released before
Gives:   while the sums stay within the budget, all releases together are (epsilon_B, delta_B)-DP
Proof:   basic composition (pure) and the fully adaptive GDP filter (Smith and Thakurta 2022): parameters may be chosen
         after seeing earlier answers as long as the running sum is kept within a bound that was fixed before. The GDP
         budget mu_B is the largest with delta(mu_B, epsilon_B) <= delta_B - reserve; the reserve is the budget for
         deltas, which add to the rest (conditioning on the bad events of probability at most their sum)
Checked: test_accountant, against Google's dp-accounting and high-precision arithmetic
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Literal

UNIT = 10**18
# Of a GDP budget's delta this part is kept for the thresholds of private keys, which are charged in delta.
RESERVED_FOR_KEYS = Fraction(45, 100)
# What float arithmetic below may err by, many times over; every mu is reduced by it.
SLACK = 1e-9

Currency = Literal["epsilon", "mu^2"]


def units(exact: Fraction) -> int:
    """Units of 1e-18, rounded up: what is charged is never less than what is lost."""
    return math.ceil(exact * UNIT)


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


def budget_of(epsilon: Fraction, delta: Fraction, accounting: Literal["pure", "gdp"]) -> Charge:
    """A budget in its ledger's currency, rounded down."""
    if accounting == "pure":
        return Charge("epsilon", math.floor(epsilon * UNIT), math.floor(delta * UNIT))
    reserve = delta * RESERVED_FOR_KEYS
    mu = Fraction(mu_of(epsilon, delta - reserve))
    return Charge("mu^2", math.floor(mu * mu * UNIT), math.floor(reserve * UNIT))


def in_words(charge: Charge, delta: Fraction) -> Loss:
    """A balance of a ledger as (epsilon, delta); `delta` is the budget's, of which the reserve is kept apart."""
    amount = Fraction(charge.amount, UNIT)
    spent = Fraction(charge.delta, UNIT)
    if charge.currency == "epsilon":
        return Loss(float(amount), float(spent), charge.currency, float(amount))
    noise = delta * (1 - RESERVED_FOR_KEYS)
    return Loss(epsilon_of(amount, noise), float(noise + spent), charge.currency, float(amount))
