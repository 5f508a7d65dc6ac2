"""A limit chosen privately: the exponential mechanism on a ladder of candidates, with a prior for the lower ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from dpsql.kernel.accountant import SLACK, Currency, above_zero, convert, log_phi


@dataclass(frozen=True)
class Ladder:
    """Choose rung i with probability proportional to prior_i * exp(-rate * N_i), N_i the number of persons above it.

    Needs:   integers N_i, each of which rises by 0 or 1 when a person is added, by 1 up to some rung and by 0 above; a public prior; an exact sampler
    Gives:   log-probabilities that all move within one interval of length `rate`: epsilon-DP with epsilon = rate, and
             mu-GDP with mu = 2 Phi^-1(s) at s = 1 / (1 + exp(-rate / 2))
    Proof:   with b_i in {0, 1} the person's part of N_i and Z the sum of all weights, log P'(i) - log P(i) = -rate * b_i +
             log Z - log Z', and the last two are the same for all i, with Z exp(-rate) <= Z' <= Z. So the loss lies in
             [t - rate, t] for some t in [0, rate], and such a pair is a post-processing of two coins p, p' with loss
             exactly t or t - rate, that is logit p' - logit p = rate. Their trade-off curve has one corner, and lies above
             that of mu-GDP if the corner does: mu >= Phi^-1(p') - Phi^-1(p). The slope of Phi^-1 by the logit is
             p (1 - p) / phi(Phi^-1(p)), which is symmetric and falls away from p = 1/2; so its integral over an interval
             of length `rate` is largest for the interval around 0, and is the mu above. Replacing a person: she is above
             the first m rungs and the other above the first m', so N_i moves by 0 or 1 for all i, or by 0 or -1 for all i,
             and the same holds
    Checked: test_ladder (the claim against exact probabilities and over all offsets t; the sampler against them)
    """

    rate: float
    currency: Currency

    name: ClassVar[str] = "ladder"
    delta: ClassVar[Fraction] = Fraction(0)

    @classmethod
    def calibrate(cls, share: Fraction, currency: Currency) -> Ladder:
        """The largest rate whose loss is at most this share."""
        if currency == "epsilon":
            return cls(math.nextafter(float(share), 0.0), currency)
        half = math.sqrt(share) / 2
        return cls(2 * (log_phi(half) - log_phi(-half)) * (1 - 2 * SLACK), currency)

    @property
    def loss(self) -> Fraction:
        return self.cost(self.currency)

    def cost(self, currency: Currency) -> Fraction:
        return convert("bounded range", Fraction(self.rate), currency)

    @property
    def record(self) -> dict[str, str]:
        """As the ledger keeps it; `read` is its inverse."""
        return {"mechanism": self.name, "rate": self.rate.hex(), "currency": self.currency}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Ladder:
        return cls(above_zero(float.fromhex(record["rate"])), record["currency"])
