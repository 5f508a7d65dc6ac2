"""The mechanisms, one file each. This tuple is the table of contents.

`write` and `read` are how a ledger keeps what was sampled; `cost` is what it charges for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from fractions import Fraction

from dpsql.kernel.accountant import Charge, Currency, units
from dpsql.kernel.mechanisms.approximate import Approximate
from dpsql.kernel.mechanisms.gaussian import Gaussian
from dpsql.kernel.mechanisms.ladder import Ladder
from dpsql.kernel.mechanisms.laplace import Laplace
from dpsql.kernel.mechanisms.later import Later
from dpsql.kernel.mechanisms.response import Response
from dpsql.kernel.mechanisms.threshold import Threshold

Mechanism = Laplace | Gaussian
Sampled = Laplace | Gaussian | Threshold | Approximate | Ladder | Later
CHARGED = (Laplace, Gaussian, Threshold, Approximate, Ladder, Later)
MECHANISMS = (*CHARGED, Response)


def write(sampled: Iterable[Sampled]) -> str:
    """Canonical JSON."""
    return json.dumps([one.record for one in sampled], sort_keys=True, separators=(",", ":"))


def read(text: str) -> tuple[Sampled, ...]:
    kinds = {kind.name: kind for kind in CHARGED}
    return tuple(kinds[record["mechanism"]].read(record) for record in json.loads(text))


def cost(sampled: Iterable[Sampled], currency: Currency) -> Charge:
    """Losses add up, and so do deltas; rounded up once."""
    all_of_it = tuple(sampled)
    lost, delta = (
        sum(parts, Fraction(0)) for parts in ((s.cost(currency) for s in all_of_it), (s.delta for s in all_of_it))
    )
    return Charge(currency, units(lost), units(delta))


def more_for(persons: int, sampled: Iterable[Sampled]) -> Fraction:
    """What Gaussian noise that is charged in epsilon costs a group beyond as many times its epsilon."""
    noises = (one for one in sampled if isinstance(one, Approximate))
    return sum((one.epsilon_for(persons) - persons * one.epsilon for one in noises), Fraction(0))


__all__ = [
    "MECHANISMS",
    "Approximate",
    "Gaussian",
    "Ladder",
    "Laplace",
    "Later",
    "Mechanism",
    "Response",
    "Sampled",
    "Threshold",
    "cost",
    "more_for",
    "read",
    "write",
]
