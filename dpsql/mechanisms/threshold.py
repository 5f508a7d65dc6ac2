"""Which groups are shown: those whose noisy number of persons reaches a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import ClassVar

from dpsql.accountant import SLACK, log_phi
from dpsql.mechanisms.gaussian import Gaussian
from dpsql.mechanisms.laplace import Laplace


@dataclass(frozen=True)
class Threshold:
    """Show a key if persons + noise >= least, where the count of persons is noised by `noise`.

    Needs:   for each key the number of persons who have it; a person has at most `keys` keys and counts once in each;
             the sums released beside it cover keys that others have as well
    Gives:   showing the keys that pass costs `delta` and nothing else: the release is that of the noise on the keys
             that both neighbours have, up to an event of probability `delta`
    Proof:   let D' be D with one person more. Keys that only D' has exist through her alone: at most `keys`, each with one
             person. Couple the noise of all other keys. Each of hers passes with probability p = P(1 + noise >= least),
             independently, so none does except with probability 1 - (1 - p)^keys = delta; and then what is shown is a
             function of the noisy vector on the common keys. The noise is an integer: for round(N(0, s^2)) the tail is
             P(N >= least - 3/2), for the discrete Laplace q^(least - 1) / (1 + q) with q = exp(-1 / scale)
    Checked: test_threshold
    """

    least: int
    keys: int
    noise: Gaussian | Laplace

    name: ClassVar[str] = "threshold"

    @classmethod
    def calibrate(cls, noise: Gaussian | Laplace, keys: int, delta: Fraction) -> Threshold:
        """The smallest threshold that costs at most this delta."""
        each = -math.expm1(math.log1p(-float(delta)) / keys)
        if isinstance(noise, Gaussian):
            guess = 1.5 - noise.scale * NormalDist().inv_cdf(each)
        else:
            guess = 1 - noise.scale * (math.log(each) + math.log1p(math.exp(-1 / noise.scale)))
        # The guess is good to a few units; where it is not, the step grows, and then the smallest is found by halving.
        below, least, step = 1, max(2, math.floor(guess) - 1), 1
        while cls(least, keys, noise).delta > delta:
            below, least, step = least, least + step, 2 * step
        while least - below > 1 and step > 1:
            middle = (below + least) // 2
            below, least = (middle, least) if cls(middle, keys, noise).delta > delta else (below, middle)
        return cls(least, keys, noise)

    @property
    def delta(self) -> Fraction:
        """What it costs, rounded up."""
        if isinstance(self.noise, Gaussian):
            log_tail = log_phi(-(self.least - 1.5) / self.noise.scale)
        else:
            log_tail = -(self.least - 1) / self.noise.scale - math.log1p(math.exp(-1 / self.noise.scale))
        none = self.keys * math.log1p(-min(math.exp(log_tail) * (1 + SLACK), 0.5))
        return Fraction(max(-math.expm1(none) * (1 + SLACK), 5e-324))
